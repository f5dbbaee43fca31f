"""What a name of a version vouches for outside: files at URLs with equal ETags, and what says how a folder is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, make_spec, stored_texts
from tests.builders.equal_files import TEXTS, csv_lines, json_lines, made_texts
from tests.counts import every
from tests.servers.stores import Place, web_place
from tests.servers.web_server import ETAGS
from tokenloom.errors import InputError
from tokenloom.spec.build_spec import BuildSpec

_SAME_ETAGS = ("time and length", "weak", "one")  # that files of one size share
_NUM_ROWS = 6


@pytest.fixture(scope="module", params=every(2, _SAME_ETAGS))
def web(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A web server whose ETags are equal for files of one size."""
    assert request.param in ETAGS
    with web_place(tmp_path_factory.mktemp("web"), request.param) as place:
        yield place


def spec_of(folder: Path, *sources: dict[str, Any], **fields: Any) -> BuildSpec:
    """Return a spec with one split, whose store is always the same one of a test."""
    return make_spec(folder / "store", sources, splits={"train": 1.0}, **fields)


#: A source with one file but for its root, and the form of the file.
_URLS: dict[str, tuple[dict[str, Any], str]] = {
    "jsonl": ({"kind": "jsonl", "path": "/a.jsonl"}, "jsonl"),
    "parquet": ({"kind": "parquet", "path": "/a.parquet"}, "parquet"),
    "a data set of json": ({"kind": "huggingface", "name": "json", "data_files": "/a.jsonl"}, "jsonl"),
    "a data set of csv": ({"kind": "huggingface", "name": "csv", "data_files": "/a.csv"}, "csv"),
    "a stream of csv": ({"kind": "huggingface", "name": "csv", "data_files": "/a.csv", "take": 4}, "csv"),
}


@pytest.mark.parametrize("name", _URLS)
def test_another_url_with_an_equal_etag_is_another_version(name: str, web: Place, tmp_path: Path) -> None:
    source, form = _URLS[name]
    key = "data_files" if "data_files" in source else "path"
    versions = set()
    for file in TEXTS[form].of_equal_size(2, _NUM_ROWS):
        (content,) = file.parts.values()
        root = web.publish({source[key][1:]: content})
        spec = spec_of(tmp_path, {**source, key: f"{root}{source[key]}"})
        version = build(spec).version
        versions.add(version)
        assert stored_texts(spec, version) == sorted(file.rows.values())[: source.get("take")]
    assert len(versions) == 2


@pytest.mark.parametrize("form", ["exclude", "marks"])
def test_another_url_of_a_list_with_an_equal_etag_is_another_version(form: str, web: Place, tmp_path: Path) -> None:
    texts = made_texts(1, _NUM_ROWS)
    (tmp_path / "a.jsonl").write_bytes(json_lines(texts))
    source = {"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}
    versions = set()
    for i in (0, 3):
        root = web.publish({"list.jsonl": json_lines(texts[i : i + 1])})
        path = f"{root}/list.jsonl"
        documents = (
            {"marks": [{"path": path, "key": "content", "as": "remove"}]} if form == "marks" else {"exclude": path}
        )
        spec = spec_of(tmp_path, source, documents=documents)
        version = build(spec).version
        versions.add(version)
        assert stored_texts(spec, version) == sorted(texts[:i] + texts[i + 1 :])
    assert len(versions) == 2


def test_an_empty_etag_is_none(tmp_path: Path) -> None:
    with web_place(tmp_path / "web", "empty") as web:
        root = web.publish({"a.jsonl": json_lines(made_texts(1, _NUM_ROWS))})
        with pytest.raises(InputError, match=r"a\.jsonl: .*nor an ETag; copy the file to a local folder"):
            build(spec_of(tmp_path, {"kind": "jsonl", "path": f"{root}/a.jsonl"}))


@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
def test_a_file_of_a_folder_that_says_how_it_is_read_is_in_the_name(name: str, tmp_path: Path) -> None:
    texts = made_texts(1, _NUM_ROWS)
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a.csv").write_bytes(csv_lines(texts))
    spec = spec_of(tmp_path, {"kind": "huggingface", "name": str(folder)})
    versions = []
    for num_skipped in (1, 3, 3):
        options = f"names: [number, text]\n  skiprows: {num_skipped}"
        configs = f"configs:\n- config_name: default\n  data_files: a.csv\n  {options}\n"
        (folder / name).write_text(configs if name.endswith(".yaml") else f"---\n{configs}---\n")
        versions.append(build(spec).version)
        assert stored_texts(spec, versions[-1]) == sorted(texts[num_skipped - 1 :])
    assert versions[0] != versions[1] == versions[2]
