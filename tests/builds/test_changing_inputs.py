"""Input files that change while a build reads them: an error that names the file, and nothing visible."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.builders.damaging import flip_bit
from tests.builders.datasets import build, built_alone, listed_files, make_spec, write_jsonl, write_parquet
from tests.builders.observing import at_step
from tests.builders.refusals import TEXTS, assert_nothing_visible
from tests.counts import FULL
from tokenloom.errors import TokenloomError
from tokenloom.spec.build_spec import BuildSpec

_LONG = [f"{text} {'x' * 10_000}" for text in TEXTS]  # several batches of small ones
_WRITERS: dict[str, Callable[..., Path]] = {"jsonl": write_jsonl, "parquet": write_parquet}


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"text": "one more"}\n')


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _rewrite(path: Path) -> None:
    """Change a byte in the middle and set the time of change back: only ctime shows the change."""
    before = path.stat()
    flip_bit(path, before.st_size // 2)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace(path: Path) -> None:
    """Put another file of the same length and time in its place: only the inode shows the change."""
    other = path.with_suffix(".new")
    shutil.copy2(path, other)
    _rewrite(other)
    other.replace(path)


_CHANGES = [_append, _truncate, _rewrite, _replace, Path.unlink]
_MOMENTS = ["cut", "tokenize", "in tokenize", "assign", "shuffle", "in shuffle", "validate"]
_CASES = [
    pytest.param(change, moment, kind, id=f"{change.__name__.strip('_')}-{moment}-{kind}")
    for change in _CHANGES
    for moment in _MOMENTS
    for kind in _WRITERS
    if FULL or (kind == "jsonl" and moment in ("tokenize", "assign", "validate")) or moment == "in tokenize"
]


def _spec(path: Path, kind: str, on_error: str = "fail") -> BuildSpec:
    source, documents = {"kind": kind, "path": str(path)}, {"on_error": on_error}
    return make_spec(path.parent.parent / "store", [source], shard_tokens=1_000_000, documents=documents)


@cache
def _undisturbed(kind: str) -> dict[str, str]:
    """Return the listed files of a build in which nothing changes."""
    with tempfile.TemporaryDirectory() as folder:
        spec = _spec(_WRITERS[kind](Path(folder, "data", f"a.{kind}"), _LONG), kind)
        return listed_files(spec, build(spec).version)


@pytest.mark.parametrize(("change", "moment", "kind"), _CASES)
def test_an_input_that_changes_at_any_step_is_named(
    change: Callable[[Path], None], moment: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.tasks.sources.base.BATCH_BYTES", 30_000)
    path = tmp_path / "data" / f"a.{kind}"
    _WRITERS[kind](path, _LONG)
    whole = path.read_bytes()
    spec = _spec(path, kind)
    with at_step(moment, lambda: change(path)), pytest.raises(TokenloomError) as caught:
        build(spec)
    assert str(path) in str(caught.value)
    assert_nothing_visible(spec)
    path.write_bytes(whole)
    assert listed_files(spec, build(spec).version) == _undisturbed(kind)


@pytest.mark.parametrize("change", [_append, _rewrite, _replace], ids=lambda change: change.__name__.strip("_"))
def test_an_input_change_seen_by_workers_is_named(change: Callable[[Path], Any], tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "data" / "a.jsonl", _LONG)
    spec = _spec(path, "jsonl", "skip")
    with at_step("in tokenize", lambda: change(path)), pytest.raises(TokenloomError, match="changed while"):
        build(spec, num_workers=1)
    assert_nothing_visible(spec)


@pytest.mark.parametrize("change", [_append, _rewrite, _replace], ids=lambda change: change.__name__.strip("_"))
def test_an_input_change_between_builds_creates_a_new_version(change: Callable[[Path], Any], tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "data" / "a.jsonl", _LONG)
    spec = _spec(path, "jsonl")
    first = build(spec)
    change(path)
    second = build(spec)
    assert second.published
    assert second.version != first.version
    assert listed_files(spec, second.version) == built_alone(spec, tmp_path)


def _link(link: Path, target: str) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _linked_spec(folder: Path) -> BuildSpec:
    """Return a spec that reads through the link `data`, to `old`; `new` has another text in one row."""
    write_jsonl(folder / "old" / "a.jsonl", _LONG)
    write_jsonl(folder / "new" / "a.jsonl", [_LONG[0].upper(), *_LONG[1:]])
    _link(folder / "data", "old")
    return _spec(folder / "data" / "a.jsonl", "jsonl")


def test_another_folder_in_the_place_of_the_input_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.tasks.sources.base.BATCH_BYTES", 30_000)
    spec = _linked_spec(tmp_path)
    there = at_step("tokenize", lambda: _link(tmp_path / "data", "new"))
    back = at_step("in tokenize", lambda: _link(tmp_path / "data", "old"))
    with pytest.raises(TokenloomError, match="changed while it was read"), there:  # before it is put back
        build(spec)
    _link(tmp_path / "data", "old")
    assert_nothing_visible(spec)
    with back:
        assert listed_files(spec, build(spec).version) == built_alone(spec, tmp_path)


def test_spills_whose_texts_differ_from_their_source_are_made_again_by_the_next_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = _linked_spec(tmp_path)
    with monkeypatch.context() as patch:  # a look that misses the change
        patch.setattr("tokenloom.tasks.building.tokenization.check_unchanged", lambda file: None)
        there = at_step("tokenize", lambda: _link(tmp_path / "data", "new"))
        back = at_step("assign", lambda: _link(tmp_path / "data", "old"))
        with pytest.raises(TokenloomError, match="its text differs from"), there, back:
            build(spec)
    assert_nothing_visible(spec)
    assert listed_files(spec, build(spec).version) == built_alone(spec, tmp_path)
