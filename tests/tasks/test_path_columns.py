"""Folders such as `year=2021/lang=en` are columns that text, id and filter can name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.datasets import build, local_store, make_spec, open_documents, stored_documents
from tests.builders.refusals import assert_refused
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.versions.published import load_manifest, version_path
from tokenloom.tasks.sources.files.path_columns import path_columns

KINDS = ("jsonl", "csv", "parquet", "arrow")
FOLDERS = ("year=2021/lang=en", "year=2022/lang=de", "year=2022/lang=x%2Fy", "year=__HIVE_DEFAULT_PARTITION__/lang=en")


def write(path: Path, kind: str) -> None:
    """Write a file of one row with the text "same"."""
    path.parent.mkdir(parents=True)
    table = pa.table({"text": ["same"]})
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write(table)
    else:
        path.write_text('{"text": "same"}\n' if kind == "jsonl" else "text\nsame\n")


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """A source of four files with the same bytes."""
    for folder in FOLDERS:
        write(tmp_path / "year=1" / folder / f"a.{request.param}", request.param)
    return {"kind": request.param, "path": f"{tmp_path}/year=1/**/a.{request.param}"}  # the root names no column


def spec_of(source: dict[str, Any], tmp_path: Path, **options: Any) -> BuildSpec:
    return make_spec(tmp_path / "store", [{**source, **options}], documents={"deduplicate": False})


def ids_of(spec: BuildSpec) -> list[str]:
    store = local_store(spec.store, spec.dataset)
    manifest: Manifest = load_manifest(store, build(spec).version)
    names = [shard.name for split in manifest.splits.values() for shard in split.shards]
    tables = [open_documents(store.local(version_path(manifest.version, name)).with_suffix(".docs")) for name in names]
    return sorted(str(row["id"]) for table in tables for row in table.to_pylist())


def test_columns_of_the_path_are_texts_ids_and_filters(source: dict[str, Any], tmp_path: Path) -> None:
    texts = spec_of(source, tmp_path, text="lang")  # the files are equal, so their spills must not be shared
    found = stored_documents(texts, build(texts).version)
    assert sorted(document["ids"].tobytes().decode() for document in found) == ["de", "en", "en", "x/y"]
    assert ids_of(spec_of(source, tmp_path, id="year")) == ["2021", "2022", "2022", "None"]
    assert ids_of(spec_of(source, tmp_path, id="lang", filter="year >= 2022")) == ["de", "x/y"]
    assert ids_of(spec_of(source, tmp_path, id="lang", filter='lang == "en" and year < 2022')) == ["en"]
    numbers = spec_of(source, tmp_path, text="year", filter="year > 2021")
    assert len(stored_documents(numbers, build(numbers).version)) == 2


def test_a_column_of_the_file_comes_first(tmp_path: Path) -> None:
    (tmp_path / "text=path").mkdir()
    (tmp_path / "text=path/a.jsonl").write_text(json.dumps({"text": "file"}) + "\n" + json.dumps({}) + "\n")
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": f"{tmp_path}/*/a.jsonl"}])
    found = stored_documents(spec, build(spec).version)
    assert sorted(document["ids"].tobytes().decode() for document in found) == ["file", "path"]


def test_without_such_a_folder_the_column_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "year=1/a.parquet", "parquet")
    spec = make_spec(tmp_path / "store", [{"kind": "parquet", "path": f"{tmp_path}/year=1/*.parquet", "text": "year"}])
    assert_refused(spec, "no column 'year'", "its columns are: text")


@pytest.mark.parametrize("take", [{}, {"take": 2}])
def test_the_package_datasets_reads_no_columns_of_paths(take: dict[str, int], tmp_path: Path) -> None:
    """A stream of several files had the columns of the first one."""
    for year in ("2021", "2022"):
        write(tmp_path / f"year={year}/a.jsonl", "jsonl")
    source = {"kind": "huggingface", "name": "json", "data_files": f"{tmp_path}/*/a.jsonl", "id": "year", **take}
    assert_refused(make_spec(tmp_path / "store", [source]), "no row has the key 'year'")


def test_a_column_is_of_integers_if_all_its_values_are() -> None:
    paths = ["a=1/b=01/x", "a=-20/b=2/x", "a=__HIVE_DEFAULT_PARTITION__/x", "c=1/x"]
    found = path_columns(paths, ["a", "b"])
    assert found == [
        {"a": (1, True), "b": ("01", False)},
        {"a": (-20, True), "b": ("2", False)},
        {"a": (None, True)},
        {},
    ]
