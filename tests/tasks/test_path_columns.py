"""Folders such as `year=2021/lang=en` are columns that text, id and filter can name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, local_store, make_spec, open_documents, stored_documents
from tests.builders.refusals import assert_refused
from tests.builders.row_files import write_rows
from tests.builds.test_selection import build_json
from tokenloom.cli import main as cli
from tokenloom.errors import InputError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.versions.published import load_manifest, version_path
from tokenloom.tasks.sources.columns import OPTION, path_columns

_SAME = [{"text": "same"}]
KINDS = ("jsonl", "csv", "parquet", "arrow")
FOLDERS = ("year=2021/lang=en", "year=2022/lang=de", "year=2022/lang=x%2Fy", "year=__HIVE_DEFAULT_PARTITION__/lang=en")


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """A source of four files with the same bytes."""
    for folder in FOLDERS:
        write_rows(tmp_path / "year=1" / folder / f"a.{request.param}", _SAME)
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
    later = spec_of(source, tmp_path, id="lang", filter="year >= 2022")
    assert ids_of(later) == ["de", "x/y"]
    if source["kind"] == "parquet":
        assert build_json(later, build(later))["measured"]["rows_not_read"] == 2
    assert ids_of(spec_of(source, tmp_path, id="lang", filter='lang == "en" and year < 2022')) == ["en"]
    numbers = spec_of(source, tmp_path, text="year", filter="year > 2021")
    assert len(stored_documents(numbers, build(numbers).version)) == 2


def test_a_column_of_the_file_comes_first(tmp_path: Path) -> None:
    (tmp_path / "text=path").mkdir()
    (tmp_path / "text=path/a.jsonl").write_text(json.dumps({"text": "file"}) + "\n" + json.dumps({}) + "\n")
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": f"{tmp_path}/*/a.jsonl"}])
    found = stored_documents(spec, build(spec).version)
    assert sorted(document["ids"].tobytes().decode() for document in found) == ["file", "path"]


@pytest.mark.parametrize("take", [{}, {"take": 2}])
def test_the_package_datasets_reads_no_columns_of_paths(take: dict[str, int], tmp_path: Path) -> None:
    """A stream of several files had the columns of the first one."""
    for year in ("2021", "2022"):
        write_rows(tmp_path / f"year={year}/a.jsonl", _SAME)
    source = {"kind": "huggingface", "name": "json", "data_files": f"{tmp_path}/*/a.jsonl", "id": "year", **take}
    assert_refused(make_spec(tmp_path / "store", [source]), "no row has the key 'year'")


def test_a_number_is_compared_with_the_number_that_a_value_spells(source: dict[str, Any], tmp_path: Path) -> None:
    root, kind = tmp_path / "year=1", source["kind"]
    for folder in ("month=01", "month=12", "month=unknown"):
        write_rows(root / folder / f"a.{kind}", _SAME)
    months = {**source, "path": f"{root}/month=[01]*/a.{kind}"}
    assert ids_of(spec_of(months, tmp_path, id="month", filter="month == 1")) == ["01"]
    assert ids_of(spec_of(months, tmp_path, id="month", filter=f"month in {list(range(2, 30))}")) == ["12"]
    assert ids_of(spec_of(months, tmp_path, id="month", filter='month != "12" and text == "same"')) == ["01"]
    assert_refused(
        spec_of({**source, "path": f"{root}/month=*/a.{kind}"}, tmp_path / "other", filter="month > 1"),
        f"month=unknown/a.{kind}",
        "'month' is 'unknown', which the filter can't compare with 1",
        "check the filter",
    )


def test_a_deep_check_reads_the_columns_of_paths_again(source: dict[str, Any], tmp_path: Path) -> None:
    spec = spec_of(source, tmp_path, id="lang", filter="year > 0")
    build(spec)
    assert cli.main(["verify", f"{spec.store}/{spec.dataset}", "--deep"]) == 0


def test_only_the_columns_that_a_source_names_decide_how_a_file_is_read() -> None:
    options = {"text": "text", "id": None, "filter": "a == 1 and b.c == 2"}
    assert path_columns("x/a=1/a=%32/b.c=/d=4/e=5.txt", options) == {OPTION: {"a": "2", "b.c": ""}}
    assert path_columns("d=4/a.txt", options) == path_columns("a=1", options) == {}
    with pytest.raises(InputError, match=r"a=%ff/x: '%ff' is not UTF-8"):
        path_columns("a=%ff/x", options)
