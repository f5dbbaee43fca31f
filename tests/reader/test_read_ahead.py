"""Blocks of cold files: each is read once, before the rows that need it; the system may evict them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.reader.oracle import make_store, shard_paths
from tokenloom.reader import TokenDataset, producer, shard_data
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.mixture import Mixture
from tokenloom.reader.producer import PAGE, block_bytes
from tokenloom.reader.shard_data import OpenShard
from tokenloom.reader.streams.stream import Stream
from tokenloom.reader.window import TokenWindow

BLOCK = 2**17
SHARD_TOKENS = (300_000, 150_000, 70_000)  # uint16: 5, 3 and 2 blocks


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    return make_store(folder / "read-ahead", SHARD_TOKENS)


@pytest.fixture
def events(reference: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was read ahead, and which pieces were copied, in the order in which both happened."""
    happened: list[tuple[Any, ...]] = []
    read, copy = OpenShard.read_ahead, TokenWindow.tokens

    def read_noted(self: OpenShard, start: int, end: int) -> int:
        num_bytes = read(self, start, end)
        happened.append(("read", shard_paths(reference).index(self.path), start, end))
        return num_bytes

    def copy_noted(self: TokenWindow, first: int, end: int) -> Any:
        rows = self.rows
        # -1 is padding
        pieces = [k for k in range(rows.row_offsets[first], rows.row_offsets[end]) if rows.shards[k] >= 0]
        bounds = ((int(rows.starts[k]) * 2, int(rows.starts[k] + rows.lengths[k]) * 2) for k in pieces)
        happened.extend(("copy", int(rows.shards[k]), *each) for k, each in zip(pieces, bounds, strict=True))
        return copy(self, first, end)

    monkeypatch.setattr(OpenShard, "read_ahead", read_noted)
    monkeypatch.setattr(TokenWindow, "tokens", copy_noted)
    monkeypatch.setattr(producer, "read_around", lambda path: BLOCK)
    monkeypatch.setattr(shard_data, "WARM_READS", 1_000)
    return happened


def check_reads_precede_copies(events: list[tuple[Any, ...]]) -> set[tuple[int, int]]:
    """Return the blocks that were read; fail if one was read twice, or after a row of it was copied."""
    blocks: set[tuple[int, int]] = set()
    for what, shard, start, end in events:
        touched = {(shard, block) for block in range(start // BLOCK, -(-end // BLOCK))}
        if what == "read":
            assert not touched & blocks
            blocks |= touched
        else:
            assert touched <= blocks
    return blocks


@pytest.mark.parametrize("packing", ["concat", "best_fit", "best_fit_pad10"])
@pytest.mark.parametrize("order", ["block", "full", "sequential"])
@pytest.mark.parametrize("prefetch", [0, 8])
def test_each_block_is_read_once_before_its_rows_are_copied(
    reference: str, events: list[tuple[Any, ...]], order: str, packing: str, prefetch: int
) -> None:
    data = TokenDataset(reference, seq_len=500, packing=packing)
    loader = TokenLoader(data, 4, rank=0, world_size=1, order=order, prefetch=prefetch, num_epochs=1)
    assert sum(1 for _ in loader) == len(loader)
    assert len(check_reads_precede_copies(events)) == 10
    assert f"blocks of {BLOCK // 1024} KiB" in loader.describe()


def test_each_epoch_reads_its_blocks_again(
    reference: str, events: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may have evicted them since the last one."""
    monkeypatch.setattr(producer, "WINDOW_ROWS", 128)
    loader = TokenLoader(TokenDataset(reference, seq_len=500), 4, rank=0, world_size=1, prefetch=0, num_epochs=6)
    assert sum(1 for _ in loader) == len(loader)
    reads = [event for event in events if event[0] == "read"]
    assert 5 * len(set(reads)) <= len(reads) <= 7 * len(set(reads))


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_shard_whose_first_blocks_are_in_memory_is_not_read_further(
    reference: str, events: list[tuple[Any, ...]], is_cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_cached(_: int, buffers: Sequence[bytearray], place: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        probed.append(place)
        if is_cold and len(probed) % 2 == 0:  # the last byte of a block
            raise BlockingIOError
        return len(buffers[0])

    probed: list[int] = []

    monkeypatch.setattr(os, "preadv", read_cached)
    monkeypatch.setattr(shard_data, "WARM_READS", 1)
    loader = TokenLoader(TokenDataset(reference, seq_len=500), 4, rank=0, world_size=1, prefetch=0, num_epochs=1)
    assert sum(1 for _ in loader) == len(loader)
    num_reads = sum(event[0] == "read" for event in events)
    assert num_reads == 10 if is_cold else num_reads < 10
    assert len(probed) == 2 * (3 if is_cold else num_reads)  # of a cold shard, one block is asked for
    num_bytes = loader.stats().bytes_read_ahead
    assert num_bytes > 0.95 * 2 * sum(SHARD_TOKENS) if is_cold else num_bytes == 0


def test_a_block_that_was_just_read_is_found_in_the_cache_of_the_system(reference: str) -> None:
    data = TokenDataset(reference, seq_len=500)
    size = data.shards.num_bytes(0)
    path = shard_paths(reference)[0]
    path.read_bytes()
    with path.open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError as error:
            pytest.skip(f"this file system can't tell: {error}")
    assert data.shards[0].read_ahead(0, size) == 0  # the last block ends behind the file


@pytest.mark.parametrize("prefetch", [0, 8])
def test_what_a_read_raises_reaches_the_consumer_and_the_next_batch_is_the_same(
    reference: str, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    data = TokenDataset(reference, seq_len=500)
    undisturbed = TokenLoader(data, 4, rank=0, world_size=1, prefetch=0, io_threads=0)
    loader = TokenLoader(data, 4, rank=0, world_size=1, prefetch=prefetch)
    with monkeypatch.context() as patch:
        patch.setattr(OpenShard, "read_ahead", _without_memory)
        with pytest.raises(MemoryError):
            next(loader)
    assert next(loader)["input_ids"].equal(next(undisturbed)["input_ids"])
    loader.close()


def _without_memory(self: OpenShard, start: int, end: int) -> int:
    raise MemoryError


_END_WITHOUT_CLOSE = """
import os, sys, time
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader import prefetch
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader import producer
from tokenloom.reader.shard_data import OpenShard


def slow_read(self, start, end):
    os.write(1, b"read ")
    time.sleep(0.1)
    return 0


producer.memory_bytes = lambda: 100  # so each row is a read
prefetch._JOIN_SECONDS = 1000.0
OpenShard.read_ahead = slow_read
options = {"rank": 0, "world_size": 1, "prefetch": int(sys.argv[2]), "io_threads": 4, "device": "numpy"}
loader = TokenLoader(TokenDataset(sys.argv[1], seq_len=500), 4, **options)
next(loader), next(loader)
os.write(1, b"end ")
"""


@pytest.mark.parametrize("prefetch", [0, 8])
def test_a_program_that_ends_does_not_wait_for_planned_reads(reference: str, prefetch: int) -> None:
    command = [sys.executable, "-c", _END_WITHOUT_CLOSE, reference, str(prefetch)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    before, _, after = done.stdout.partition("end")
    assert 4 <= before.count("read") < 100  # of some 150 in two windows
    assert after.count("read") <= 40  # 8, if no thread has to wait for a processor


def test_no_threads_read_nothing_ahead(reference: str, events: list[tuple[Any, ...]]) -> None:
    loader = TokenLoader(TokenDataset(reference, seq_len=500), 4, rank=0, world_size=1, io_threads=0, num_epochs=1)
    assert sum(1 for _ in loader) == len(loader)
    assert not [event for event in events if event[0] == "read"]


def test_only_rows_are_read_if_memory_can_not_hold_their_blocks(
    reference: str, events: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "memory_bytes", lambda: 100)
    loader = TokenLoader(TokenDataset(reference, seq_len=500), 4, rank=0, world_size=1, num_epochs=1)
    assert sum(1 for _ in loader) == len(loader)
    reads = [event for event in events if event[0] == "read"]
    assert reads
    assert all(end - start <= 2 * PAGE for _, _, start, end in reads)  # a row of 1,002 bytes lies in at most two pages


@pytest.mark.parametrize(("window", "block"), [(0, 2**17), (2**18 + 5, 2**18), (2**26, 2**19)])
def test_a_mixture_reads_the_blocks_of_the_disk_that_reads_the_most_around_a_fault(
    reference: str, folder: Path, window: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_store(folder / f"other-disk-{window}", [20_000])
    monkeypatch.setattr(producer, "read_around", lambda path: window if "other-disk" in str(path) else 0)
    members = [(TokenDataset(each, seq_len=500), 1.0) for each in (reference, other)]
    for first, second in (members, members[::-1]):
        assert block_bytes(Stream(Mixture({"a": first, "b": second}), "block", 0, None)) == block


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(producer, "CGROUP_LIMITS", (tmp_path / "other version", limit))
    whole = producer.memory_bytes()
    limit.write_text("max\n")
    assert producer.memory_bytes() == whole > 1_000_000
    limit.write_text("1000000\n")
    assert producer.memory_bytes() == 1_000_000
