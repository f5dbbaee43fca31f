"""Plans that a machine keeps: equal to computed ones, never used if damaged or of other samples, bounded in size."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.errors import StoreError
from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.shard import ShardHeader
from tokenloom.storage.packing import plan_file
from tokenloom.storage.packing.best_fit_plan import plan_best_fit
from tokenloom.storage.packing.plan_file import PlanFile, kept_plan
from tokenloom.storage.packing.plans import ShardPlan

LENGTHS = [5, 18, 3, 1, 9, 2, 5]


def offsets_of(lengths: list[int]) -> UInt64s:
    return np.cumsum([0, *lengths], dtype=np.uint64)


def header_of(offsets: UInt64s) -> ShardHeader:
    checksum = xxhash.xxh3_128_digest(offsets.tobytes())
    return ShardHeader(2, int(offsets[-1]), len(offsets) - 1, 4096, 0, 0, bytes(16), checksum, {})


def all_pieces(plan: ShardPlan) -> list[list[int]]:
    return [part.tolist() for part in plan.pieces(np.arange(len(plan)))]


@pytest.fixture
def keeps_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the plans of small shards too."""
    monkeypatch.setattr(plan_file, "_LEAST_DOCUMENTS", 0)


def made(folder: Path, lengths: list[int] = LENGTHS, seq_len: int = 8, *, mapped: bool = True) -> list[list[int]]:
    offsets = offsets_of(lengths)
    return all_pieces(kept_plan(folder, "best_fit", seq_len, header_of(offsets), offsets, mapped=mapped))


@given(
    lengths=st.lists(st.integers(1, 40), max_size=40),
    seq_len=st.integers(1, 20),
    unit=st.sampled_from([1, 2**28]),  # with the larger one most shards have over 2**32 tokens
)
def test_a_plan_that_is_read_equals_the_one_that_was_written(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seq_len: int, unit: int
) -> None:
    offsets = offsets_of([unit * length for length in lengths])
    seq_len = min(unit * seq_len, 2**31 - 1)
    plan = plan_best_fit(seq_len, offsets)
    file = PlanFile(tmp_path_factory.mktemp("cache"), header_of(offsets), seq_len)
    assert file.read() is None
    assert file.write(plan.ordered(), 2**30)
    for mapped in (True, False):
        read = file.read(mapped=mapped)
        assert read is not None
        assert all_pieces(read) == all_pieces(plan)


def mapped_files(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


def test_a_map_of_a_plan_stays_valid_when_the_plan_is_replaced_or_removed(keeps_all: None, tmp_path: Path) -> None:
    expected = made(tmp_path)
    file = PlanFile(tmp_path, header_of(offsets_of(LENGTHS)), 8)
    copy, mapped = file.read(mapped=False), file.read()
    assert copy is not None
    assert mapped is not None
    assert len(mapped_files(tmp_path)) == 1
    assert file.write(mapped, 2**30)
    file.path.unlink()
    assert all_pieces(mapped) == all_pieces(copy) == expected
    del mapped
    assert not mapped_files(tmp_path)


def test_a_plan_is_read_where_it_cannot_be_mapped(
    keeps_all: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    expected = made(tmp_path)
    monkeypatch.setattr(mmap, "mmap", refuse)
    monkeypatch.setattr(plan_file, "plan_best_fit", None)
    assert made(tmp_path) == expected


def test_a_plan_is_made_once(keeps_all: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = made(tmp_path)
    assert expected == all_pieces(plan_best_fit(8, offsets_of(LENGTHS)))
    monkeypatch.setattr(plan_file, "plan_best_fit", None)  # a plan that must be computed is an error
    assert made(tmp_path) == expected


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("damage", ["cut", "byte", "empty", "short", "folder", "format"])
def test_a_damaged_plan_is_made_again(
    keeps_all: None, damage: str, mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = made(tmp_path)
    path = PlanFile(tmp_path, header_of(offsets_of(LENGTHS)), 8).path
    data = path.read_bytes()
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "format":
        with monkeypatch.context() as patch:
            patch.setattr(plan_file, "_FORMAT_VERSION", 2)
            assert made(tmp_path, mapped=mapped) == expected
        assert path.read_bytes() != data
    else:
        path.write_bytes({"cut": data[:-4], "byte": flipped, "empty": b"", "short": data[:7]}[damage])
    assert made(tmp_path, mapped=mapped) == expected
    assert path.is_dir() if damage == "folder" else path.read_bytes() == data
    assert [*path.parent.iterdir()] == [path]  # no temporary file stays


def test_a_plan_is_not_used_for_other_documents_or_another_length(keeps_all: None, tmp_path: Path) -> None:
    made(tmp_path)
    kept = PlanFile(tmp_path, header_of(offsets_of(LENGTHS)), 8).path
    for lengths, seq_len in ((LENGTHS, 9), ([18, 5, 3, 1, 9, 2, 5], 8)):
        offsets = offsets_of(lengths)
        shutil.copy(kept, PlanFile(tmp_path, header_of(offsets), seq_len).path)
        assert made(tmp_path, lengths, seq_len) == all_pieces(plan_best_fit(seq_len, offsets))


def test_a_folder_that_cannot_be_written_is_one_warning(
    keeps_all: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    for seq_len in (8, 9):
        assert made(tmp_path / "file", seq_len=seq_len) == all_pieces(plan_best_fit(seq_len, offsets_of(LENGTHS)))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith(f"{tmp_path / 'file' / 'plans'}: can't be written: Not a directory; TOKENLOOM_CACHE")


def test_a_plan_in_a_read_only_folder_is_read(keeps_all: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    expected = made(tmp_path)
    monkeypatch.setattr(plan_file, "plan_best_fit", None)
    monkeypatch.setattr(os, "utime", refuse)  # not a folder's mode: the tests may run as root
    assert made(tmp_path) == expected


def test_the_least_recently_used_plans_are_removed(
    keeps_all: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    folder = tmp_path / "plans"
    size = next(folder.iterdir()).stat().st_size
    monkeypatch.setenv("TOKENLOOM_CACHE_LIMIT", str(3 * size * plan_file._LIMIT_SHARE))
    (folder / "mine").write_bytes(bytes(10 * size))
    paths = [PlanFile(tmp_path, header_of(offsets_of([*LENGTHS, n])), 8).path for n in range(1, 5)]
    for age, path in enumerate(paths):
        made(tmp_path, [*LENGTHS, age + 1])
        os.utime(path, ns=(age, age))
    made(tmp_path, [*LENGTHS, 1])  # used again
    made(tmp_path, [*LENGTHS, 7])
    kept = {path.name for path in folder.iterdir()}
    assert {"mine", paths[0].name} <= kept
    assert sum((folder / name).stat().st_size for name in kept - {"mine"}) <= 3 * size
    assert paths[1].name not in kept


def test_small_shards_and_other_packings_leave_no_files(tmp_path: Path) -> None:
    offsets = offsets_of(LENGTHS)
    for packing in ("document", "document_padded", "best_fit"):
        kept_plan(tmp_path, packing, 8, header_of(offsets), offsets)
    assert not [*tmp_path.iterdir()]


def test_an_interrupted_write_leaves_nothing_that_is_read(
    keeps_all: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path)
    offsets = offsets_of(LENGTHS)
    assert PlanFile(tmp_path, header_of(offsets), 8).read() is None
    assert made(tmp_path) == all_pieces(plan_best_fit(8, offsets))


def test_a_plan_may_be_written_later(keeps_all: None, tmp_path: Path) -> None:
    offsets, writes = offsets_of(LENGTHS), list[Callable[[], object]]()
    file = PlanFile(tmp_path, header_of(offsets), 8)
    plan = kept_plan(tmp_path, "best_fit", 8, header_of(offsets), offsets, writes.append)
    assert all_pieces(plan) == all_pieces(plan_best_fit(8, offsets))
    assert file.read() is None
    (write,) = writes
    write()
    read = file.read()
    assert read is not None
    assert all_pieces(read) == all_pieces(plan)
    kept_plan(tmp_path, "best_fit", 8, header_of(offsets), offsets, writes.append)
    assert len(writes) == 1  # nothing to write


@pytest.mark.parametrize("code", [errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT])
def test_a_folder_that_cannot_be_read_keeps_no_plan(
    keeps_all: None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(plan_file, "default_limit", refuse)  # not a folder's mode: the tests may run as root
    assert made(tmp_path) == all_pieces(plan_best_fit(8, offsets_of(LENGTHS)))


def test_a_wrong_limit_is_an_error_before_the_plan_is_made(
    keeps_all: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE_LIMIT", "much")
    monkeypatch.setattr(plan_file, "plan_best_fit", None)
    offsets = offsets_of(LENGTHS)
    with pytest.raises(StoreError, match="TOKENLOOM_CACHE_LIMIT"):
        kept_plan(tmp_path, "best_fit", 8, header_of(offsets), offsets, lambda write: None)
