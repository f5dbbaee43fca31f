"""Many large shards (sparse files of zeros): open files, maps and memory grow only with what is read."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.synthetic_store import write_sparse_store
from tests.counts import count, full_only
from tests.reader.oracle import FIELDS
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader

_NUM_SHARDS = count(200, 5000)
_SHARD_TOKENS = 2 * 10**9  # 4 GB
_DOCUMENT_TOKENS = 10**6
_T = 1000
_GROWTH_BYTES = 100 * 2**20
_SAMPLES = {  # in each shard
    "concat": (_SHARD_TOKENS - 1) // _T,
    "document": (_DOCUMENT_TOKENS - 1) // _T * (_SHARD_TOKENS // _DOCUMENT_TOKENS),
}
_RESUMED = 10**8


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    """A version of 4 GB shards."""
    return write_sparse_store(folder / "scale", _NUM_SHARDS, _SHARD_TOKENS, _DOCUMENT_TOKENS)


class Children:
    """Processes forked from one that has done no work yet: each has its own limits and memory."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", "from tests.reader import test_scale; test_scale.serve()"]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function of this module in a new process and return its result; arguments and result travel as JSON."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps([function.__name__, args]) + "\n")
        self._server.stdin.flush()
        found = self._server.stdout.readline().strip()
        assert found, "it failed, see its standard error"
        return json.loads(found)

    def close(self) -> None:
        """End the server."""
        self._server.communicate(timeout=60)


def serve() -> None:
    """Run each function that standard input names in a new process; print an empty line for one that failed."""
    for line in sys.stdin:
        if not (child := os.fork()):
            name, args = json.loads(line)
            print(json.dumps(globals()[name](*args)), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            print(flush=True)


@pytest.fixture(scope="module")
def children(_cache_folder: None) -> Iterator[Children]:
    """Runs functions of this module in separate processes."""
    made = Children()
    yield made
    made.close()


def mapped_shards(reference: str) -> int:
    """Return how many shards of a version this process has mapped."""
    return len(set(re.findall(rf"{re.escape(reference)}/\S+\.tok$", Path("/proc/self/maps").read_text(), re.MULTILINE)))


def resident_bytes() -> int:
    """Return the memory of this process, including pages of mapped files."""
    (found,) = re.findall(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) * 1024


def read_batches(data: TokenDataset, num_batches: int, start: int = 0, **options: Any) -> int:
    """Read batches of zeros from a sample on, as a resumed loader does; return the maximum number of mapped shards."""
    loader = TokenLoader(data, 4, **{"prefetch": 0, "device": "numpy", **options})
    loader.load_state_dict(loader.state_dict() | {"samples": start})
    most = 0
    for _ in range(num_batches):
        batch = next(loader)
        assert batch["input_ids"].shape == batch["labels"].shape == (4, _T)
        assert not batch["input_ids"].any()
        assert not batch["labels"][batch["labels"] != -100].any()
        most = max(most, mapped_shards(data.reference.partition("@")[0]))
    loader.close()
    return most


def resume(reference: str, packing: str, order: str) -> tuple[int, int]:
    """Read from two places; return the maximum number of mapped shards, and the growth of the memory."""
    before = resident_bytes()
    data = TokenDataset(reference, seq_len=_T, packing=packing, max_open_shards=64)
    assert len(data) == _NUM_SHARDS * _SAMPLES[packing]
    assert data[len(data) - 1]["input_ids"].tolist() == [0] * _T
    mapped = [read_batches(data, 10, start, order=order, io_threads=0) for start in (0, _RESUMED)]
    return max(mapped), resident_bytes() - before


@pytest.mark.parametrize(("packing", "order"), [("concat", "full"), ("document", "block"), ("document", "full")])
def test_large_splits_open_and_resume_within_100_mb(
    packing: str, order: str, reference: str, children: Children
) -> None:
    mapped, growth = children.run(resume, reference, packing, order)
    assert mapped <= 64 + (packing != "concat")  # a thread may still open a shard that was dropped meanwhile
    assert growth <= _GROWTH_BYTES


def read_billionth(reference: str) -> int:
    """Check the samples at 10**9; return the number of mapped shards."""
    data = TokenDataset(reference, seq_len=16, fields=("position_ids",))
    assert len(data) > 2 * 10**9
    loader = TokenLoader(data, 4, prefetch=0, device="numpy")
    loader.load_state_dict(loader.state_dict() | {"samples": 10**9})
    batch = next(loader)
    assert not batch["input_ids"].any()
    order = loader.stream.members[None].order
    first = TokenDataset(reference, seq_len=16, fields=("position_ids",))
    for row, sample in enumerate(order.samples(np.arange(10**9, 10**9 + 4)).tolist()):
        assert first[sample]["position_ids"].tolist() == batch["position_ids"][row].tolist()
    return mapped_shards(reference)


def test_the_billionth_sample_is_read_like_the_first(folder: Path, children: Children) -> None:
    reference = write_sparse_store(folder / "billion", 200, 2 * 10**8, 10**6)
    assert children.run(read_billionth, reference) <= 8


def read_in_full_order(reference: str, packing: str, fields: list[str], max_open_shards: int) -> int:
    """Return the maximum number of mapped shards."""
    data = TokenDataset(reference, seq_len=_T, packing=packing, fields=fields, max_open_shards=max_open_shards)
    return read_batches(data, 15, order="full", io_threads=0)


@pytest.mark.parametrize(("packing", "fields"), [("concat", ()), ("concat", FIELDS), ("document", ())])
@pytest.mark.parametrize("max_open_shards", [1, pytest.param(2, marks=full_only), 7])
def test_at_most_max_open_shards_stay_mapped(
    max_open_shards: int, packing: str, fields: tuple[str, ...], reference: str, children: Children
) -> None:
    """Where samples depend on documents, a thread maps one more while it counts its samples."""
    most = max_open_shards + (packing == "document")
    assert 1 <= children.run(read_in_full_order, reference, packing, fields, max_open_shards) <= most


def read_with_few_files(reference: str, packing: str, fields: list[str], access: str, prefetch: int) -> int:
    """Return the maximum number of mapped, or open, shards with 64 file descriptors."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    data = TokenDataset(reference, seq_len=_T, packing=packing, fields=fields, access=access)
    most = read_batches(data, 30, order="full", prefetch=prefetch)
    return most if access == "mmap" else len(data.shards)


@pytest.mark.slow
@pytest.mark.parametrize(("packing", "fields"), [("concat", FIELDS), ("document", ())])
@pytest.mark.parametrize(("access", "prefetch"), [("mmap", 0), ("mmap", 8), ("pread", 4)])
def test_reading_works_with_few_file_descriptors(
    access: str, prefetch: int, packing: str, fields: tuple[str, ...], reference: str, children: Children
) -> None:
    assert 1 < children.run(read_with_few_files, reference, packing, fields, access, prefetch) < 64


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["concat", "document"])
def test_the_first_batch_opens_only_the_shards_that_it_reads(packing: str, reference: str) -> None:
    data = TokenDataset(reference, seq_len=_T, packing=packing)
    loader = TokenLoader(data, 4, prefetch=0, io_threads=0)
    assert len(data.shards) == 0
    next(loader)
    loader.close()
    if packing == "concat":  # with other packings, a thread opens shards ahead
        assert len(data.shards) == 4
    assert len(data.shards) <= 64 + 4
