"""Builds of datasets on the Hugging Face Hub hold every row of every file, of the commit that a revision names."""

from __future__ import annotations

import pytest

from tests.builders.equal_files import assert_complete, documents_of, rows_at
from tests.builders.hub_builds import ON_HUB, WAYS, Hubs, files_of, parts_of, published, source_of
from tests.counts import count, every
from tests.servers.dataset_hub import CONVERTED, DatasetHub


def card(*configs: str) -> bytes:
    """Return a README.md with the lines of its configs."""
    lines = "".join(f"- {config}\n" for config in configs)
    return f"---\nconfigs:\n{lines}---\n".encode()


# Every row


@pytest.mark.parametrize("name", ["parquet", *every(2, [name for name in ON_HUB if name != "parquet"])])
def test_every_row_of_files_of_one_size_is_in_the_version(name: str, hub: DatasetHub, builds: Hubs) -> None:
    files = files_of(ON_HUB[name])
    published(hub, f"sizes/{name}", files)
    data = builds({"name": f"sizes/{name}"})
    built = data.build()
    assert_complete(data.spec, built["version"], rows_at(files))
    assert built["rows"]["read"] == len(rows_at(files))
    again = data.build()
    assert (again["version"], again["published"]) == (built["version"], False)


def test_worker_processes_read_the_hub_as_one_process_does(hub: DatasetHub, builds: Hubs) -> None:
    files = files_of(ON_HUB["parquet"]) | files_of(ON_HUB["txt"], folder="lines")
    published(hub, "workers/data", files)
    sources = [{"name": "workers/data", "data_files": f"{folder}/*"} for folder in ("data", "lines")]
    data = builds(*sources)
    assert_complete(data.spec, data.build(workers=count(1, 2))["version"], rows_at(files))


def test_a_listing_in_many_pages_is_read_to_its_end(
    hub: DatasetHub, builds: Hubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(ON_HUB["jsonl"], 6)
    published(hub, "pages/data", files)
    monkeypatch.setattr(hub, "page", 2)
    data = builds({"name": "pages/data"})
    assert_complete(data.spec, data.build()["version"], rows_at(files))


@pytest.mark.parametrize("by_path", [False, True])
def test_files_with_other_names_than_letters_are_read(by_path: bool, hub: DatasetHub, builds: Hubs) -> None:
    form = ON_HUB["jsonl"]
    names = ["50% off", "été à la mer", "a%20b", "a b", "x+y&z=1", "語料 #1"]
    files = {f"all of it/{name}.jsonl": file for name, file in zip(names, form.of_equal_size(6), strict=True)}
    published(hub, "names/data", files)
    source = {"kind": "jsonl", "path": "hf://datasets/names/data/*/*"} if by_path else {"name": "names/data"}
    data = builds(source)
    assert_complete(data.spec, data.build()["version"], rows_at(files))


def test_equal_files_of_two_datasets_are_duplicates_and_no_other_row_is_lost(hub: DatasetHub, builds: Hubs) -> None:
    form = ON_HUB["parquet"]
    first, second, third = form.of_equal_size(3)
    of_first = {"data/a.parquet": first, "data/b.parquet": second}
    of_second = {"data/c.parquet": first, "data/d.parquet": third}
    published(hub, "twins/one", of_first)
    published(hub, "twins/two", of_second)
    data = builds({"name": "twins/one"}, {"name": "twins/two"})
    built = data.build()
    assert_complete(data.spec, built["version"], rows_at(of_first | of_second))
    assert built["rows"]["duplicates"] == len(first.rows)


@pytest.mark.parametrize("name", ["jsonl", "txt"])
@pytest.mark.parametrize("take", [4, 6, 15])
def test_take_reads_the_first_rows_of_all_files(name: str, take: int, hub: DatasetHub, builds: Hubs) -> None:
    files = files_of(ON_HUB[name])
    published(hub, f"take/{name}", files)
    data = builds({"name": f"take/{name}", "take": take})
    texts = [text for path in sorted(files) for text in files[path].rows.values()]
    version = data.build()["version"]
    documents = {place[1]: text for place, text in documents_of(data.spec, version)}
    assert documents == dict(enumerate(texts[:take]))


# Configs and splits


def test_configs_and_splits_of_the_readme_say_which_files_are_read(hub: DatasetHub, builds: Hubs) -> None:
    pairs = [(config, split) for config in ("small", "large") for split in ("train", "test")]
    paths = [f"{config}/{split}-{i}.parquet" for config, split in pairs for i in range(2)]
    files = dict(zip(paths, ON_HUB["parquet"].of_equal_size(len(paths)), strict=True))
    splits = "data_files: [{split: train, path: NAME/train-*}, {split: test, path: NAME/test-*}]"
    configs = [f"config_name: {name}\n  {splits.replace('NAME', name)}" for name in ("small", "large")]
    published(hub, "configs/data", files, readme=card(*configs))
    versions = set()
    for config, split in pairs:
        data = builds({"name": "configs/data", "config": config, "split": split})
        version = data.build()["version"]
        versions.add(version)
        wanted = {path: file for path, file in files.items() if path.startswith(f"{config}/{split}")}
        assert_complete(data.spec, version, rows_at(wanted))
    assert len(versions) == len(pairs)


@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
def test_an_option_of_the_commit_that_changes_what_is_read_is_another_version(
    name: str, hub: DatasetHub, builds: Hubs
) -> None:
    files = files_of(ON_HUB["csv"], 2)
    config = "config_name: default\n  data_files: data/*\n  names: [number, text]\n  skiprows: NUMBER"
    dataset = f"options/{name.strip('.')}"
    data = builds({"name": dataset})
    versions = set()
    for num_skipped in (1, 3):
        lines = config.replace("NUMBER", str(num_skipped))
        content = card(lines) if name == "README.md" else f"configs:\n- {lines}\n".encode()
        hub.commit(dataset, parts_of(files) | {name: content})
        version = data.build()["version"]
        versions.add(version)
        wanted = {text for file in files.values() for text in list(file.rows.values())[num_skipped - 1 :]}
        assert sorted(text for _, text in documents_of(data.spec, version)) == sorted(wanted)
    assert len(versions) == 2


# Revisions


def test_a_revision_is_a_branch_a_tag_a_commit_or_a_conversion(hub: DatasetHub, builds: Hubs) -> None:
    form = ON_HUB["parquet"]
    contents = form.of_equal_size(8)
    pairs = [{"data/a.parquet": contents[i], "data/b.parquet": contents[i + 1]} for i in range(0, 8, 2)]
    name = "revisions/data"
    old = published(hub, name, pairs[0])
    hub.repositories[name].tags["v1.0"] = published(hub, name, pairs[1])
    published(hub, name, pairs[2])
    published(hub, name, pairs[3], CONVERTED)
    for revision, files in [(old, pairs[0]), ("v1.0", pairs[1]), ("main", pairs[2]), (CONVERTED, pairs[3])]:
        data = builds({"name": name, "revision": revision})
        assert_complete(data.spec, data.build()["version"], rows_at(files))


def test_a_new_commit_is_a_new_version_that_encodes_only_its_new_files(hub: DatasetHub, builds: Hubs) -> None:
    *old, new = ON_HUB["parquet"].of_equal_size(4)
    files = {f"data/{i}.parquet": file for i, file in enumerate(old)}
    name = "moving/data"
    published(hub, name, files)
    data = builds({"name": name})
    first = data.build()
    assert first["partitions_encoded"] == 3
    files["data/1.parquet"] = new
    published(hub, name, files)
    second = data.build()
    assert second["version"] != first["version"]
    assert second["partitions_encoded"] == 1
    assert_complete(data.spec, second["version"], rows_at(files))


@pytest.mark.parametrize("way", WAYS)
def test_the_recorded_commit_is_verified_after_the_branch_has_moved(way: str, hub: DatasetHub, builds: Hubs) -> None:
    name = f"moved/{WAYS[way]}"
    published(hub, name, files_of(ON_HUB[WAYS[way]]))
    data = builds(source_of(way, name))
    version = data.build()["version"]
    hub.commit(name, {"data/train-0.jsonl": b'{"text": "something else"}\n'})
    verified = data.verify(version)
    assert (verified["damages"], verified["warnings"]) == ([], [])
    assert verified["documents_encoded_again"] == len(list(documents_of(data.spec, version)))


def test_a_commit_that_changes_nothing_that_is_read_is_the_same_version(hub: DatasetHub, builds: Hubs) -> None:
    files = files_of(ON_HUB["parquet"])
    data = builds({"name": "prose/data"})
    versions = []
    for words in (b"# Data\n", b"# Data, described better\n"):
        published(hub, "prose/data", files, readme=words)
        versions.append(data.build()["version"])
    assert versions[0] == versions[1]
