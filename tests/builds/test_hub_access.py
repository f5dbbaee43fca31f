"""What builds ask of the Hugging Face Hub: renamed, closed, missing and busy datasets, and paths at hf://."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import local_store
from tests.builders.equal_files import assert_complete, documents_of, json_lines, rows_at
from tests.builders.hub_builds import ON_HUB, WAYS, HubBuilds, Hubs, files_of, parts_of, published, source_of
from tests.counts import every
from tests.drivers.hub_driver import HubCommands
from tests.servers.dataset_hub import CONVERTED, DatasetHub, Repository

_BUILDERS = {"parquet": "parquet", "text": "txt"}  # the suffix of the files of each, one read by us and one streamed


def test_the_hub_of_tests_tells_what_the_hub_tells(hub: DatasetHub) -> None:
    from huggingface_hub import HfApi

    parquet, lines = (ON_HUB[name].of_equal_size(1)[0] for name in ("parquet", "jsonl"))
    name = "answers/data"
    old = published(hub, name, {"data/a.parquet": parquet})
    hub.repositories[name].tags["v1"] = old
    new = published(hub, name, {"data/a.parquet": parquet, "b.jsonl": lines})
    converted = published(hub, name, {"a.parquet": parquet}, CONVERTED)
    api = HfApi(endpoint=hub.url)
    references = api.list_repo_refs(name, repo_type="dataset")
    refs = [(item.name, item.ref, item.target_commit) for item in references.branches + references.tags]
    assert refs == [("main", "refs/heads/main", new), ("v1", "refs/tags/v1", old)]
    assert [(item.name, item.target_commit) for item in references.converts] == [("parquet", converted)]
    (content,) = parquet.parts.values()
    for expand in (False, True):
        paths = api.get_paths_info(name, ["data/a.parquet", "b.jsonl", "data", "c"], repo_type="dataset", expand=expand)
        tree = list(api.list_repo_tree(name, recursive=True, repo_type="dataset", expand=expand))
        assert [entry.path for entry in tree] == ["README.md", "b.jsonl", "data", "data/a.parquet"]
        assert [entry in tree for entry in paths] == [True, True, True]
        assert [entry.last_commit is not None for entry in paths] == [expand] * 3
    assert paths[0].lfs.sha256 == hashlib.sha256(content).hexdigest()
    assert paths[1].lfs is None


def test_a_dataset_is_read_by_its_old_name_and_by_its_new_one(hub: DatasetHub, builds: Hubs) -> None:
    files = files_of(ON_HUB["parquet"]) | files_of(ON_HUB["jsonl"], folder="lines")
    published(hub, "before/data", files)
    hub.rename("before/data", "after/data")
    for name in ("before/data", "after/data"):
        data = builds(*[{"name": name, "data_files": f"{folder}/*"} for folder in ("data", "lines")])
        assert_complete(data.spec, data.build()["version"], rows_at(files))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("private", "data, revision main: its commit can't be read"), ("gated", "'gated/data' is a gated dataset")],
)
def test_a_dataset_that_not_everyone_may_read_needs_a_token(
    kind: str, reason: str, hub: DatasetHub, builds: Hubs
) -> None:
    files = files_of(ON_HUB["parquet"]) | files_of(ON_HUB["txt"], folder="lines") | files_of(ON_HUB["jsonl"])
    name = f"{kind}/data"
    hub.repositories[name] = Repository(token="hf_secret", is_private=kind == "private")
    published(hub, name, files)
    sources: list[dict[str, Any]] = [{"name": name, "data_files": files} for files in ("data/*.parquet", "lines/*")]
    sources.append({"kind": "jsonl", "path": f"hf://datasets/{name}/*/*.jsonl"})
    data = builds(*sources)
    for environment in ({}, {"HF_TOKEN": "hf_wrong"}):
        refused = data.run("build", "--direct", "--workers", 0, **environment)
        assert refused.code == 1
        assert reason in refused.errors
    assert local_store(data.spec.store, "data").names("versions") == []
    version = data.build(HF_TOKEN="hf_secret")["version"]
    assert_complete(data.spec, version, rows_at(files))


@pytest.mark.parametrize("name", ["missing/data", "there/data"])
def test_a_dataset_or_revision_that_is_missing_is_named(name: str, hub: DatasetHub, builds: Hubs) -> None:
    published(hub, "there/data", files_of(ON_HUB["jsonl"]))
    for source in (
        {"name": name, "revision": "v9"},
        {"kind": "jsonl", "path": f"hf://datasets/{name}@v9/data/train-0.jsonl"},
    ):
        refused = builds(source).run("plan")
        assert refused.code == 1
        assert f"{name}, revision v9: its commit can't be read" in refused.errors


@pytest.mark.parametrize("header", ["Retry-After", "RateLimit"])
def test_a_build_waits_when_the_hub_says_that_there_were_too_many_requests(
    header: str, hub: DatasetHub, on_hub: HubCommands, tmp_path: Path
) -> None:
    files = files_of(ON_HUB["parquet"], 2) | files_of(ON_HUB["jsonl"], 2)
    published(hub, "busy/data", files)
    sources = [{"name": "busy/data", "data_files": "data/*.parquet"}]
    sources.append({"kind": "jsonl", "path": "hf://datasets/busy/data/*/*.jsonl"})

    def built(name: str) -> list[int]:
        """Build into a new store; return the statuses of the hub's answers."""
        (tmp_path / name).mkdir()
        before = len(hub.asked)
        data = HubBuilds(hub, on_hub, tmp_path / name, *sources)
        assert_complete(data.spec, data.build()["version"], rows_at(files))
        return [status for _, _, status in hub.asked[before:]]

    built("first")  # from now on, README.md is on this machine
    num_requests = len(built("second"))
    for number in every(9, range(1, num_requests + 1)):
        with hub.limited(number, 1, header):
            assert 429 in built(f"limited {number}")


@pytest.mark.parametrize("way", WAYS)
def test_more_files_are_no_more_requests_for_what_a_dataset_has(way: str, hub: DatasetHub, builds: Hubs) -> None:
    num_requests = []
    for num_files in (3, 12):
        name = f"many/{WAYS[way]}-{num_files}"
        published(hub, name, files_of(ON_HUB[WAYS[way]], num_files))
        before = len(hub.asked)
        planned = builds(source_of(way, name)).run("plan")
        assert planned.code == 0, planned.errors
        num_requests.append(len([path for _, path, _ in hub.asked[before:] if path.startswith("/api/")]))
    assert num_requests[0] == num_requests[1] < 10


# Paths at hf://


@pytest.mark.parametrize("name", ["parquet", "jsonl", "csv"])
def test_the_path_of_a_source_may_lead_to_the_hub(name: str, hub: DatasetHub, builds: Hubs) -> None:
    form = ON_HUB[name]
    files = files_of(form)
    published(hub, f"paths/{name}", files)
    root = f"hf://datasets/paths/{name}"
    names = {path.rpartition("/")[2]: file for path, file in files.items()}
    glob = builds({"kind": name, "path": f"{root}/data/*{form.suffix}"})
    assert_complete(glob.spec, glob.build()["version"], rows_at(names))
    single = builds(*[{"kind": name, "path": f"{root}@main/{path}"} for path in files])
    assert_complete(single.spec, single.build()["version"], rows_at(names))


def test_a_path_on_the_hub_is_another_version_when_its_content_changes(hub: DatasetHub, builds: Hubs) -> None:
    versions = []
    for content in ON_HUB["jsonl"].of_equal_size(2):
        published(hub, "paths/changed", {"data/a.jsonl": content})
        data = builds({"kind": "jsonl", "path": "hf://datasets/paths/changed/data/a.jsonl"})
        versions.append(data.build()["version"])
        assert_complete(data.spec, versions[-1], rows_at({"a.jsonl": content}))
    hub.commit("paths/changed", parts_of({"data/a.jsonl": content}) | {"other.txt": b"another file"})
    versions.append(data.build()["version"])
    assert versions[0] != versions[1] == versions[2]


def test_a_builder_of_the_package_reads_files_on_the_hub(hub: DatasetHub, builds: Hubs) -> None:
    files = files_of(ON_HUB["parquet"]) | files_of(ON_HUB["txt"])
    published(hub, "paths/builder", files)
    root = "hf://datasets/paths/builder/data"
    data = builds(*[{"name": name, "data_files": f"{root}/*.{form}"} for name, form in _BUILDERS.items()])
    version = data.build()["version"]
    assert_complete(data.spec, version, rows_at({path.removeprefix("data/"): file for path, file in files.items()}))


@pytest.mark.parametrize("form", ["exclude", "marks"])
def test_a_list_on_the_hub_is_read_as_it_is_now(form: str, hub: DatasetHub, builds: Hubs) -> None:
    (file,) = ON_HUB["jsonl"].of_equal_size(1)
    published(hub, f"lists/{form}", {"a.jsonl": file})
    texts = list(file.rows.values())
    root = f"hf://datasets/lists/{form}"
    versions = set()
    for text in texts[:2]:
        hub.commit(f"lists/{form}-list", {"remove.jsonl": json_lines([text])})
        path = f"{root}-list/remove.jsonl"
        removed = (
            {"exclude": path} if form == "exclude" else {"marks": [{"path": path, "key": "content", "as": "remove"}]}
        )
        data = builds({"kind": "jsonl", "path": f"{root}/a.jsonl"}, documents=removed)
        version = data.build()["version"]
        versions.add(version)
        assert sorted(words for _, words in documents_of(data.spec, version)) == sorted(set(texts) - {text})
    assert len(versions) == 2
