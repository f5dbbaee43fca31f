"""Hugging Face datasets: files, splits, commits and numbers of rows, and the errors about each of them."""

from __future__ import annotations

import gzip
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, local_store, make_spec, stored_documents, write_jsonl, write_parquet
from tests.tasks.source_conformance import texts_of
from tokenloom.errors import BadRow, InputError
from tokenloom.tasks.building.inputs import check_unchanged, find_inputs
from tokenloom.tasks.sources import FileRange, Rows, SourceReader, hugging_face, make_reader

pytest.importorskip("datasets")
_COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _no_network_and_no_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Requests to the network fail; the home folder is empty."""

    def refuse(*args: Any) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def reader_of(name: Path | str, **options: Any) -> SourceReader:
    """Return the reader that lists the files."""
    return make_reader(_options(name, **options))


def _options(name: Path | str, **options: Any) -> dict[str, Any]:
    return {"kind": "huggingface", "name": str(name), "text": "text", "split": "train", "max_bytes": 2**28, **options}


def files_of(name: Path | str, **options: Any) -> list[tuple[SourceReader, str]]:
    """Return the files of a split, each with the reader that reads it."""
    given = _options(name, **options)
    return [(make_reader({**given, **file.options}), file.url) for file in make_reader(given).files("")]


def batches_of(name: Path | str, **options: Any) -> list[Rows]:
    """Read a whole split."""
    return [
        batch
        for reader, url in files_of(name, **options)
        for part in reader.partitions(url)
        for batch in reader.read(url, part)
    ]


def read(name: Path | str, **options: Any) -> list[str | None]:
    """Return the texts of a whole split."""
    return texts_of(batches_of(name, **options))


def three_files(folder: Path) -> Path:
    """Write a folder of three parquet files of ten rows, in groups of four."""
    for i in range(3):
        write_parquet(folder / f"train-{i}.parquet", [f"text {i} {k}" for k in range(10)], group_rows=4)
    return folder


# Files and splits


def test_splits_and_configs_are_those_of_the_folder_and_its_card(tmp_path: Path) -> None:
    for name, texts in {"train": ["a"], "test": ["b", "c"]}.items():
        write_jsonl(tmp_path / "small" / f"{name}.jsonl", texts)
        write_jsonl(tmp_path / "large" / f"{name}.jsonl", [*texts, "d"])
    assert read(tmp_path / "small", split="test") == ["b", "c"]
    with pytest.raises(InputError, match="no split 'validation' with data files; its splits are: train, test"):
        read(tmp_path / "small", split="validation")
    configs = "".join(f"- config_name: {name}\n  data_files: {name}/train.jsonl\n" for name in ("small", "large"))
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    assert read(tmp_path, config="large") == ["a", "d"]
    assert [file.path for file in reader_of(tmp_path, config="small").files("")] == ["small/train.jsonl"]
    with pytest.raises(InputError, match=r"config huge: .*'huge' not found.*small.*large"):
        read(tmp_path, config="huge")


def card(folder: Path, data_files: str, options: str) -> Path:
    """Write a README.md with one config."""
    config = f"- config_name: default\n  data_files: {data_files}\n  {options}\n"
    (folder / "README.md").write_text(f"---\nconfigs:\n{config}---\n")
    return folder


@pytest.mark.parametrize(
    ("data_files", "options", "wanted"),
    [
        ("train-0.parquet", "filters: [[number, '>=', 7]]", ["text 0 7", "text 0 8", "text 0 9"]),
        ("a.csv", "nrows: 1", ["one"]),
        ("b.csv", "engine: python\n  sep: '[|]{2}'", ["one", "two"]),
        ("c.json", "field: data", ["one", "two"]),
        ("a.txt", "sample_by: paragraph", ["one\ntwo", "three\n"]),
    ],
)
def test_options_of_a_readme_change_what_is_read(
    data_files: str, options: str, wanted: list[str], tmp_path: Path
) -> None:
    three_files(tmp_path)
    (tmp_path / "a.csv").write_text("text,n\none,1\ntwo,2\n")
    (tmp_path / "b.csv").write_text("text||n\none||1\ntwo||2\n")
    (tmp_path / "c.json").write_text('{"data": [{"text": "one"}, {"text": "two"}]}')
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n")
    assert read(card(tmp_path, data_files, options)) == wanted


def test_another_option_in_the_readme_is_another_version(tmp_path: Path) -> None:
    source = {"kind": "huggingface", "name": str(three_files(tmp_path / "data"))}
    spec = make_spec(tmp_path / "store", [source])
    found = []
    for number in (7, 8, 8):
        card(tmp_path / "data", "train-0.parquet", f"filters: [[number, '>=', {number}]]")
        inputs, problems = find_inputs(spec, local_store(spec.store, spec.dataset))
        assert problems == []
        found.append([file.fingerprint for file in inputs])
    assert found[0] != found[1] == found[2]
    card(tmp_path / "data", "train-0.parquet", "filters: [[number, '>=', 19]]")
    with pytest.raises(InputError, match=r"README\.md: .*changed"):
        check_unchanged(inputs[0])


def test_data_files_are_in_the_folder_or_anywhere(any_data: Path, tmp_path: Path) -> None:
    (file,) = reader_of(three_files(tmp_path), data_files="*-1.parquet").files("")
    assert (file.path, file.num_bytes) == ("train-1.parquet", (tmp_path / "train-1.parquet").stat().st_size)
    with pytest.raises(InputError, match=str(tmp_path)):
        read(tmp_path, data_files="nothing*")
    stories = any_data / "tinystories" / "stories.jsonl.gz"
    rows = gzip.decompress(stories.read_bytes()).splitlines()
    texts = [json.loads(row)["story"] for row in rows]
    assert read("json", data_files=str(stories.parent / "*.jsonl.gz"), text="story") == texts
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("one\ntwo\n")
    assert read("text", data_files=f"{tmp_path}/*/a.txt") == ["one", "two"]
    assert reader_of("text", data_files=f"{tmp_path}/*/a.txt").files("")[0].path == "deep/a.txt"


# Take


@pytest.mark.parametrize("take", [1, 9, 10, 11, 25, 30, 1000])
@pytest.mark.parametrize("form", ["parquet", "json", "text"])
def test_take_reads_the_first_rows_of_one_stream(tmp_path: Path, take: int, form: str) -> None:
    texts = [[f"text {i} {k}" for k in range(10)] for i in range(3)]
    for i, some in enumerate(texts):
        write_parquet(tmp_path / f"{i}.parquet", some, group_rows=4)
        write_jsonl(tmp_path / f"{i}.json", some)
        (tmp_path / f"{i}.text").write_text("".join(f"{text}\n" for text in some))
    options: dict[str, Any] = {"name": form, "data_files": str(tmp_path / f"*.{form}"), "take": take}
    first, *rest = reader_of(**options).files("")
    assert first.options["stream"] is True
    reader = reader_of(**options, stream=True)
    (part,) = reader.partitions(first.url)
    assert part.num_bytes == sum(file.num_bytes for file in (first, *rest))
    assert all(reader.partitions(file.url) == [] for file in rest)
    batches = list(reader.read(first.url, part))
    assert texts_of(batches) == [text for some in texts for text in some][:take]
    assert [row for batch in batches for row in batch.rows.tolist()] == list(range(min(take, 30)))
    assert reader.locate(first.url, [0]) == [FileRange(0, 1)]


def test_take_counts_rows_before_the_filter(tmp_path: Path) -> None:
    batches = batches_of(three_files(tmp_path), take=13, filter="number >= 8")
    assert texts_of(batches) == ["text 0 8", "text 0 9"]
    assert sum(batch.num_read for batch in batches) == 13
    assert sum(batch.num_filtered for batch in batches) == 11
    with_ids = batches_of(three_files(tmp_path), take=13, id="number")
    ids = [i for batch in with_ids if batch.ids is not None for i in batch.ids.to_pylist()]
    assert ids == [str(i % 10) for i in range(13)]


# Errors


def test_a_missing_or_empty_folder_and_a_saved_dataset_are_reported(any_data: Path, tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        with pytest.raises(InputError, match=f"{folder}, .*: not a dataset that can be opened: .*any data file"):
            read(folder)
    with pytest.raises(InputError, match=r"read it with kind: arrow and path: "):
        read(any_data / "hf_arrow" / "boolq" / "none" / "validation")


def test_an_error_of_the_package_is_reported_with_its_cause(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\n" * 10 + b"\xff\n")
    with pytest.raises(InputError, match=f"{path}: can't be read: UnicodeDecodeError") as raised:
        read("text", data_files=str(path), on_error="skip")
    assert raised.value.__cause__ is not None
    assert not isinstance(raised.value, BadRow)


def test_texts_are_never_taken_for_something_else(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["plain"])
    write_jsonl(tmp_path / "b.jsonl", ["2020-01-01"])  # the package: 2020-01-01 00:00:00
    for take in (None, 5):
        assert read("json", data_files=f"{tmp_path}/*.jsonl", take=take) == ["plain", "2020-01-01"]
    (tmp_path / "c.csv").write_text("text\nNA\n1\nnull\n")  # the package: null, "1.0", null
    for take in (None, 5):
        assert read("csv", data_files=str(tmp_path / "c.csv"), take=take) == ["NA", "1", "null"]


def test_bad_rows_of_a_stream_are_counted_by_their_position(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["zero", "one"])
    (tmp_path / "b.jsonl").write_bytes(b'{"text": \n{"text": "three"}\n{"text": "four"}\n')
    batches = batches_of("json", data_files=f"{tmp_path}/*.jsonl", take=4, on_error="skip")
    assert texts_of(batches) == ["zero", "one", "three"]
    assert [(bad.row, bad.reason) for batch in batches for bad in batch.bad] == [(2, "invalid_json")]


# The hub


def test_a_hub_that_does_not_answer_is_reported() -> None:
    with pytest.raises(InputError, match=r"org/name, revision v1: its commit can't be read .*network"):
        read("org/name", revision="v1")


@pytest.mark.parametrize("name", ["a.jsonl", "*.jsonl"])
def test_a_hub_url_without_a_network_is_named_with_the_next_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    spec = make_spec(tmp_path, [{"kind": "jsonl", "path": f"hf://datasets/org/name/{name}"}])
    with pytest.raises(InputError, match=r"org/name, revision main: .*HTTPS_PROXY and HF_HUB_OFFLINE.*hf download"):
        build(spec)


def test_files_of_the_hub_are_pinned_to_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from datasets.packaged_modules.parquet.parquet import ParquetConfig

    urls = [f"hf://datasets/org/name@{_COMMIT}/data/train-{i}.parquet" for i in range(3)]
    asked: list[tuple[str, str | None]] = []
    config = ParquetConfig()
    config.data_files = {"train": urls}

    def load(name: str, config_name: str | None, **options: Any) -> Any:
        asked.append((name, options["revision"]))
        return type("Builder", (), {"config": config})()

    def commit(name: str, revision: str | None) -> str:
        asked.append((name, revision))
        return _COMMIT

    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    monkeypatch.setattr(hugging_face, "current_commit", commit)
    monkeypatch.setattr(hugging_face, "_ask_hub", lambda _, url: {"size": 1000, "blob_id": url[-9:]})
    monkeypatch.setattr(hugging_face, "input_bytes", lambda url: 1000)
    hugging_face.load_pinned.cache_clear()
    files = reader_of("org/name", revision="main", split="train").files("")
    assert [(file.path, file.url) for file in files] == [(f"data/train-{i}.parquet", url) for i, url in enumerate(urls)]
    assert [file.fingerprint for file in files] == [f"blob_id:{i}.parquet:1000" for i in range(3)]
    assert {file.options["kind"] for file in files} == {"parquet"}
    worker = reader_of("org/name", take=18, stream=True)  # takes the commit from the URL
    assert worker.partitions(urls[0])[0].num_bytes == 3000
    assert asked == [("org/name", "main"), ("org/name", _COMMIT)]
    hugging_face.load_pinned.cache_clear()


def test_files_that_the_package_reads_as_one_are_read_again_when_any_of_them_changes(tmp_path: Path) -> None:
    """A folder of files with a table of texts beside them: the package can't say which file a row comes from."""
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)

    def write(texts: list[str]) -> None:
        for i in range(len(texts)):
            (folder / f"{i}.png").write_bytes(b"no picture")
        lines = ({"file_name": f"{i}.png", "caption": text} for i, text in enumerate(texts))
        (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    source = {"kind": "huggingface", "name": str(tmp_path / "data"), "text": "caption"}
    spec = make_spec(tmp_path / "store", [source], splits={"train": 1.0})
    for texts in (["one", "two"], ["one", "two", "three"], ["one", "two", "changed"]):
        write(texts)
        stored = stored_documents(spec, build(spec).version)
        assert sorted(document["ids"].tobytes().decode() for document in stored) == sorted(texts)
