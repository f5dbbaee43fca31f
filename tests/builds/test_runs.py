"""Spills that are merged into runs first: no byte of a version changes, and a damaged part is made alone."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.builders.chats import with_chats
from tests.builders.damaging import flip_bit
from tests.builders.datasets import build, listed_files, local_store, make_spec
from tests.builders.observing import at_step
from tests.builders.row_files import write_rows
from tests.counts import FULL, count, every, full_only
from tokenloom.errors import WorkError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.work.records import find_assignments
from tokenloom.tasks import sizes
from tokenloom.tasks.building.merge import recorded_spill
from tokenloom.tasks.retention import DAY, Policy, collect

_PARTS = re.compile(r"[0-9a-f]{32}-\d+\.000\.spill")


def _spec(folder: Path, seed: int) -> BuildSpec:
    """Return a spec of 33 files with duplicates within and across them, and what else the seed adds."""
    made = random.Random(seed)
    texts = [f"document {i}, said {i % 7} times " * made.randint(1, 6) for i in range(90)]
    for number in range(33):
        rows = [{"text": made.choice(texts), "id": f"{number}-{i}" * (i % 3)} for i in range(made.randint(1, 9))]
        write_rows(folder / "in" / f"{number:02}.jsonl", rows)
    source = {"kind": "jsonl", "path": str(folder / "in" / "*.jsonl")} | ({"id": "id"} if made.random() < 0.6 else {})
    documents: dict[str, Any] = {"deduplicate": made.random() < 0.6}
    if made.random() < 0.6:
        (folder / "removed.txt").write_text("\n".join(map(json.dumps, texts[::3])))
        marks = [{"path": str(folder / "removed.txt"), "key": "content", "as": "gone"}]
        documents |= {"marks": marks, "keep": "not gone", "repeat": {"by": "gone", "times": {"False": 3}}}
    splits = made.choice([{"train": 1.0}, {"train": 0.5, "validation": 0.3, "test": 0.2}])
    shard_tokens = made.randint(500, 4000)
    spec = make_spec(folder / "store", [source], documents=documents, splits=splits, shard_tokens=shard_tokens)
    return with_chats(spec, folder, 9) if made.random() < 0.6 else spec


def _built(spec: BuildSpec, fan_in: int, store: Path) -> dict[str, str]:
    """Build into a store with another largest number of files that a shard reads; return its listed files."""
    sizes.MAX_FAN_IN = fan_in
    spec = spec.model_copy(update={"store": str(store)})
    return listed_files(spec, build(spec).version)


def _parts(folder: Path) -> list[Path]:
    """Return the files of runs in all stores below a folder."""
    return sorted(path for path in folder.rglob("*.spill") if _PARTS.fullmatch(path.name))


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_FAN_IN", "PIECE_DOCUMENTS"):
        monkeypatch.setattr(sizes, name, getattr(sizes, name))


@cache
def _hashes() -> dict[str, str]:
    """Return the listed files of the version of seed 3 without runs: of conversations and copies."""
    with tempfile.TemporaryDirectory() as folder:
        return _built(_spec(Path(folder), 3), 1024, Path(folder, "store"))


@pytest.mark.parametrize("seed", range(count(4, 300)))
def test_runs_change_no_byte(tmp_path: Path, seed: int) -> None:
    spec = _spec(tmp_path, seed)
    expected = _built(spec, 1024, tmp_path / "plain")
    for fan_in in (2, 4) if FULL else (2 + seed % 2 * 2,):
        sizes.PIECE_DOCUMENTS = random.Random(seed).choice([24, 80, 10**6])
        store = tmp_path / str(fan_in)
        assert _built(spec, fan_in, store) == expected
        assert len(_parts(store)) >= 33 // fan_in


def _damage(path: Path, place: str) -> None:
    if place == "missing":
        path.unlink()
    elif place == "cut short":
        os.truncate(path, path.stat().st_size - 1)
    else:
        flip_bit(path, {"header": 60, "tokens": path.stat().st_size - 1}[place])
    recorded_spill.cache_clear()  # as in a process that has read no header yet


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=full_only)])
@pytest.mark.parametrize("place", every(2, ["header", "tokens", "cut short", "missing"]))
def test_a_damaged_part_of_a_run_ends_the_build_and_the_next_makes_it_alone(
    tmp_path: Path, place: str, num_workers: int
) -> None:
    expected, spec, damaged = _hashes(), _spec(tmp_path, 3), list[Path]()
    sizes.MAX_FAN_IN = 4

    def damage() -> None:
        damaged.append(_parts(tmp_path)[2])
        _damage(damaged[0], place)

    with at_step("shuffle", damage), pytest.raises(WorkError) as caught:
        build(spec, num_workers)
    assert damaged[0].name in str(caught.value)
    assert not damaged[0].exists()
    before = {path: path.stat().st_ino for path in _parts(tmp_path)}
    result = build(spec, num_workers)
    assert {path: path.stat().st_ino for path in _parts(tmp_path) if path != damaged[0]} == before
    assert damaged[0].exists()
    assert (listed_files(spec, result.version), result.num_encoded) == (expected, 0)


@pytest.mark.parametrize("step", every(2, ["merge", "shuffle"]))
def test_gc_keeps_runs_that_a_build_reads(tmp_path: Path, step: str) -> None:
    expected, spec, kept = _hashes(), _spec(tmp_path, 3), dict[Path, int]()
    sizes.MAX_FAN_IN = 4
    with at_step("check", lambda: 1 / 0), pytest.raises(ZeroDivisionError):
        build(spec)
    shutil.rmtree(tmp_path / "store/data/work/builds")  # all that says which spills and runs are used but the plan
    _parts(tmp_path)[0].unlink()

    def gc() -> None:
        for path in (tmp_path / "store/data/work/spills").iterdir():
            os.utime(path, (0, 0))
        kept.update({path: path.stat().st_ino for path in _parts(tmp_path)})
        collect(local_store(spec.store, spec.dataset), Policy(0, DAY), delete=True)

    with at_step(step, gc):
        result = build(spec)
    assert {path: path.stat().st_ino for path in kept} == kept
    assert (listed_files(spec, result.version), result.num_encoded) == (expected, 0)


def test_gc_removes_runs_with_the_last_version_that_was_made_of_them(tmp_path: Path) -> None:
    sizes.MAX_FAN_IN = 4
    spec = _spec(tmp_path, 3)
    build(spec)
    store, old = local_store(spec.store, spec.dataset), _parts(tmp_path)
    assert collect(store, Policy(0, 0), delete=True).leftovers == {}
    write_rows(tmp_path / "in" / "00.jsonl", [{"text": "another", "id": "1"}])
    version = build(spec).version
    assert len(collect(store, Policy(0, 0), delete=True).deleted) == 1
    used = {part.name for part in find_assignments(store, version)[-1].parts}
    assert {path.name.partition(".")[0] for path in _parts(tmp_path)} == used
    assert not set(old) <= set(_parts(tmp_path))
