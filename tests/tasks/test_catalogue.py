"""The catalogue of a store: it lists what is published, is inert, limited, and fails nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import html5lib
import pytest

from tests.builders.datasets import build, small_spec
from tests.builders.synthetic_store import random_documents, write_store
from tokenloom.cli.main import main
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions import tag_moves, tags
from tokenloom.storage.versions.published import version_path
from tokenloom.tasks.report import catalogue
from tokenloom.tasks.report.catalogue import try_to_write_catalogue, write_catalogue

_XHTML = "{http://www.w3.org/1999/xhtml}"


def _tree(store: Path) -> Any:
    return html5lib.HTMLParser(strict=True).parse((store / "index.html").read_text())


def _rows(store: Path) -> list[list[str]]:
    """Return the cells of each version in the catalogue."""
    rows = [[" ".join("".join(cell.itertext()).split()) for cell in row] for row in _tree(store).iter(f"{_XHTML}tr")]
    return [row for row in rows if row[0] != "version"]


def test_publications_moves_and_gc_keep_the_catalogue_up_to_date(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    old = build(small_spec(tmp_path, report=True))
    assert [row[0] for row in _rows(store)] == [old.version]
    new = build(small_spec(tmp_path, report=True, seed=1))
    rows = {row[0]: row for row in _rows(store)}
    assert rows.keys() == {old.version, new.version}
    documents, tokens = (sum(split[key] for split in new.splits.values()) for key in ("documents", "tokens"))
    assert rows[new.version][2:4] == [f"{documents:,}", f"{tokens:,}"]
    assert [rows[version][5] for version in (old.version, new.version)] == ["", "latest"]
    assert rows[new.version][6:] == [tag_moves.user(), "none set"]
    links = [link.get("href") for link in _tree(store).iter(f"{_XHTML}a")]
    assert sorted(links) == sorted(f"data/reports/{version}.html" for version in rows)
    assert all((store / link).is_file() for link in links)

    assert main(["tag", old.reference, "stable"]) == 0
    assert {row[0]: row[5] for row in _rows(store)}[old.version] == "stable"
    assert main(["rollback", str(store / "data")]) == 0
    assert {row[0]: row[5] for row in _rows(store)} == {old.version: "latest stable", new.version: ""}
    for _ in range(2):
        assert main(["gc", str(store / "data"), "--keep-last", "0", "--grace", "0", "--delete"]) == 0
    assert [row[0] for row in _rows(store)] == [old.version]

    capsys.readouterr()
    (store / "index.html").unlink()
    for command in ("ls", "du", "report"):
        assert main([command, str(store), "--json"]) == 0, command
    listed, _, written = map(json.loads, capsys.readouterr().out.splitlines())
    assert [each["dataset"] for each in listed["datasets"]] == ["data"]
    assert written["catalogue"] == str(store / "index.html")
    assert written["bytes"] == (store / "index.html").stat().st_size
    assert sorted(path.name for path in store.iterdir()) == ["data", "index.html"]
    assert main(["ls", str(store)]) == main(["du", str(store)]) == main(["verify", str(store / "data")]) == 0


def test_a_catalogue_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "store/index.html").mkdir(parents=True)
    result = build(small_spec(tmp_path, report=True))
    assert result.published
    problem = try_to_write_catalogue(LocalStore(tmp_path / "store/data"))
    assert problem is not None
    assert "the catalogue was not written: " in problem
    assert f"`tokenloom report {tmp_path}/store`" in problem


def test_a_version_with_the_manifest_of_another_one_is_listed_as_damaged(tmp_path: Path) -> None:
    version = build(small_spec(tmp_path)).version
    store, other = LocalStore(tmp_path / "store/data"), "0" * 16
    store.replace(version_path(other, "manifest.json"), store.read(version_path(version, "manifest.json")))
    listed = catalogue.list_versions(store, [version, other])
    assert listed[version].damage is None
    assert listed[other].manifest is None
    assert f"it is the manifest of {version}, not of {other}; `tokenloom verify" in str(listed[other].damage)


def test_a_catalogue_of_many_versions_lists_those_of_the_last_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(6):
        write_store(tmp_path, [random_documents(100, 10, seed)], vocab_size=seed + 300)
    store = LocalStore(tmp_path / "data")
    versions = [entry.version for entry in tags.log(store, "latest")]
    tag_moves.move(store, "oldest", versions[0], 0, "kept")
    monkeypatch.setattr(catalogue, "_MAX_VERSIONS", 3)
    read_all = LocalStore.read_all
    read: list[str] = []

    def counted(self: LocalStore, paths: Sequence[str]) -> list[bytes | None]:
        read.extend(paths)
        return read_all(self, paths)

    monkeypatch.setattr(LocalStore, "read_all", counted)
    for _ in range(2):  # the page does not count as a dataset
        read.clear()
        write_catalogue(str(tmp_path))
    assert {row[0] for row in _rows(tmp_path)} == {versions[0], versions[5], versions[4]}
    assert len(read) == 6
    assert "6 versions; 3 of them are not listed" in (tmp_path / "index.html").read_text()
