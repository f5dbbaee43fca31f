"""Reading a remote store through the cache: the same batches as locally, each byte once, and damage is named."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from torch.utils.data import DataLoader

from tests.builders.memory_objects import SCHEME
from tests.counts import count
from tests.reader import cache_ranks
from tests.reader.cache_ranks import cached, digest, loader_of
from tests.reader.oracle import FIELDS, PACKINGS, assert_same, make_store, shard_paths
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.processes import wait_until
from tests.servers.s3_server import BUCKET, put, upload
from tokenloom.errors import FormatError, StoreError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.storage.cache import partial_shard, shard_cache
from tokenloom.storage.cache.cache_files import CacheFiles
from tokenloom.storage.cache.shard_cache import ShardCache
from tokenloom.storage.formats import blocks as blocks_module
from tokenloom.storage.formats.blocks import blocks_name
from tokenloom.storage.stores.remote import RemoteStore

_T = cache_ranks.T
_BATCH = cache_ranks.BATCH
_NUM_SHARDS = cache_ranks.NUM_SHARDS
_BLOCK_BYTES = 512

Batches = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several requests per shard."""
    monkeypatch.setattr(partial_shard, "REQUEST_BYTES", cache_ranks.REQUEST_BYTES)


@dataclass
class Published:
    """A version in a local folder, and the same version in the S3 store."""

    reference: str
    url: str
    server: str
    key: str

    @property
    def shards(self) -> list[Path]:
        """The local files of the shards."""
        return shard_paths(self.reference)

    @property
    def num_bytes(self) -> int:
        """The total size of the shards."""
        return sum(path.stat().st_size for path in self.shards)

    def name(self, index: int) -> str:
        """Return the name of a shard, relative to the dataset's folder."""
        return self.shards[index].relative_to(self.reference).as_posix()

    def put(self, index: int, data: bytes) -> None:
        """Write a shard in the S3 store."""
        put(self.server, f"{self.key}/data/{self.name(index)}", data)

    def local(self, **options: Any) -> Batches:
        """Return the batches of an epoch, read from the local folder."""
        return epoch(TokenDataset(self.reference, seq_len=_T, **options), prefetch=0)

    def open(self, cache: ShardCache, **options: Any) -> TokenDataset:
        """Open the dataset in the S3 store."""
        return TokenDataset(self.url, seq_len=_T, cache=cache, **options)


def publish(server: str, reference: str) -> Published:
    """Upload a version."""
    key = f"reading/{uuid.uuid4().hex}"
    upload(server, Path(reference).parent, key)
    return Published(reference, f"s3://{BUCKET}/{key}/data", server, key)


@contextmanager
def published_in_memory(reference: str, name: str) -> Iterator[Published]:
    """Copy a version to NAME/data in fsspec's memory store: S3 clients are slow to start."""
    system = fsspec.filesystem("memory")
    system.put(reference, f"/{name}/data", recursive=True)
    try:
        yield Published(reference, f"{SCHEME}://{name}/data", "", "")
    finally:
        system.rm(f"/{name}", recursive=True)


def make_reading_store(folder: Path) -> str:
    """Write a version of small shards with small blocks; return its reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCK_BYTES", _BLOCK_BYTES)
        return make_store(folder, [2000 + 100 * i for i in range(_NUM_SHARDS)])


@pytest.fixture(scope="module")
def published(s3_url: str, folder: Path) -> Published:
    """A version that no test changes."""
    return publish(s3_url, make_reading_store(folder / "remote"))


@pytest.fixture
def in_memory(published: Published) -> Iterator[Published]:
    """The same version in fsspec's memory store, which a test may change."""
    with published_in_memory(published.reference, "reading") as found:
        yield found


@pytest.fixture
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep threads from completing shards."""
    monkeypatch.setattr(ShardCache, "ahead", lambda *_, **__: None)


def epoch(data: TokenDataset, **options: Any) -> Batches:
    """Return the batches of an epoch."""
    return list(loader_of(data, **options))


def assert_all_same(found: Batches, expected: Batches) -> None:
    """Check that two epochs are equal, element by element."""
    assert len(found) == len(expected) > 10
    for batch, other in zip(found, expected, strict=True):
        assert_same(batch, other)


def partials(cache: ShardCache) -> list[Path]:
    """Return the files of shards that are not complete."""
    return sorted((cache.folder / "partial").glob("*.part"))


def run_forked(work: Callable[[], object]) -> None:
    """Run a function in a forked process, which leaves the tests at its end."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def write_in_memory(name: str, data: bytes) -> None:
    """Replace a file of the version in the memory store."""
    fsspec.filesystem("memory").pipe_file(f"/reading/data/{name}", data)


# ---- the same batches


@pytest.mark.parametrize(
    ("kind", "packing", "order", "access"),
    [
        ("published", "concat", "block", "mmap"),
        ("published", "best_fit", "full", "pread"),
        *(("in_memory", packing, "block", "pread") for packing in PACKINGS[::2]),
        *(("in_memory", packing, "full", "mmap") for packing in PACKINGS),
    ],
)
def test_a_remote_epoch_is_the_local_one(
    kind: str,
    packing: str,
    order: str,
    access: str,
    s3_proxy: FaultyProxy,
    cache: ShardCache,
    request: pytest.FixtureRequest,
) -> None:
    store: Published = request.getfixturevalue(kind)
    options: dict[str, Any] = {"packing": packing, "fields": FIELDS if order == "full" else ()}
    expected = epoch(TokenDataset(store.reference, seq_len=_T, **options), order=order)
    data = store.open(cache, access=access, **options)
    for prefetch in (None, 0):
        assert_all_same(epoch(data, order=order, prefetch=prefetch), expected)
    wait_until(lambda: cache.stats()["downloads"] == _NUM_SHARDS)
    assert {path.stem: path.read_bytes() for path in cached(cache)} == {
        entry.sha256: path.read_bytes() for entry, path in zip(data.shards.entries, store.shards, strict=True)
    }
    assert partials(cache) == []
    # A block is all of such a small shard, so those of the first batch are read twice.
    assert cache.stats()["bytes_downloaded"] <= 1.4 * store.num_bytes


def test_samples_and_workers_of_a_dataloader_read_the_same_tokens(
    published: Published, s3_proxy: FaultyProxy, cache: ShardCache
) -> None:
    local = TokenDataset(published.reference, seq_len=_T)
    data = published.open(cache)
    assert data[7]["input_ids"].tolist() == local[7]["input_ids"].tolist()  # opens connections before the fork
    stream = data.iterable(batch_size=_BATCH, seed=3, num_epochs=1, drop_last=False)
    found = list(DataLoader(stream, batch_size=None, num_workers=2))
    assert_all_same(found, published.local())
    assert s3_proxy.bytes_sent(".tok") <= 1.15 * published.num_bytes


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_access_by_range_downloads_only_the_blocks_of_its_samples(
    packing: str, in_memory: Published, cache: ShardCache
) -> None:
    local = TokenDataset(in_memory.reference, seq_len=_T, packing=packing)
    data = in_memory.open(cache, packing=packing, access="range")
    assert data[5]["input_ids"].tolist() == local[5]["input_ids"].tolist()
    few = cache.stats()["bytes_downloaded"]
    assert 0 < few < in_memory.num_bytes / 2
    assert_all_same(epoch(data), epoch(local))
    assert cached(cache) == []
    assert cache.stats()["bytes_downloaded"] <= in_memory.num_bytes


@pytest.mark.usefixtures("nothing_ahead")
def test_the_first_batch_downloads_only_its_blocks(in_memory: Published, cache: ShardCache) -> None:
    loader = loader_of(in_memory.open(cache), prefetch=0)
    next(loader)
    assert 0 < cache.stats()["bytes_downloaded"] <= _BATCH * 2 * _BLOCK_BYTES  # a row is in two blocks at most
    assert cached(cache) == []
    next(loader)  # the second window waits for whole shards
    assert cache.stats()["downloads"] > 0


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_the_first_batch_of_a_cold_store_takes_at_most_a_second(
    packing: str, published: Published, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    # Each request takes 150 ms, five times what the promise says: two or three round trips of requests at the same
    # time, and what the machine does meanwhile.
    s3_proxy.always = "slow"
    for number in range(3):  # the machine may be busy
        cache = ShardCache(tmp_path / str(number))
        loader = loader_of(published.open(cache, packing=packing), lanes=4, prefetch=0)
        began = time.monotonic()
        next(loader)
        seconds = time.monotonic() - began
        assert cache.stats()["downloads"] == 0  # of whole shards
        if seconds <= 2:
            return
    pytest.fail(f"the first batch took {seconds:.1f} s")


@pytest.mark.usefixtures("nothing_ahead")
def test_a_forked_process_reads_shards_that_its_parent_has_partly_read(in_memory: Published, cache: ShardCache) -> None:
    local, data = TokenDataset(in_memory.reference, seq_len=_T), in_memory.open(cache)
    ends = np.cumsum(data.counts).tolist()
    assert data[0]["input_ids"].tolist() == local[0]["input_ids"].tolist()

    def read() -> None:
        for index in range(ends[1]):
            assert data[index]["input_ids"].tolist() == local[index]["input_ids"].tolist()

    run_forked(read)
    assert cache.stats()["downloads"] == 0
    read()
    assert cache.stats()["downloads"] == 0  # the child has downloaded the shards


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize("lanes", [2, 6])
def test_a_cache_smaller_than_the_split_gives_the_same_batches_within_its_limit(
    lanes: int, packing: str, in_memory: Published, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit = int(2.5 * max(path.stat().st_size for path in in_memory.shards))
    cache = ShardCache(tmp_path / "cache", limit)
    batches, used = [], CacheFiles(cache.folder, limit).used
    for batch in loader_of(in_memory.open(cache, packing=packing), lanes=lanes):
        batches.append(batch)
        assert used() <= limit
    assert_all_same(batches, epoch(TokenDataset(in_memory.reference, seq_len=_T, packing=packing), lanes=lanes))
    if lanes == 2:
        assert cache.stats()["evictions"] > 0
    else:  # single blocks are read of the shards that do not fit beside those in use
        assert caplog.text.count("has no room for all shards that are read now") == 1
        assert cache.stats()["downloads"] < 2 * _NUM_SHARDS


# ---- sharing a cache


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start processes that read a version through one cache; cache_ranks documents the arguments."""
    command = [sys.executable, "-m", "tests.reader.cache_ranks", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def assert_ends(process: subprocess.Popen[str]) -> None:
    """Check that a process exits with 0 within two minutes."""
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_an_epoch_by_four_processes_moves_at_most_1_15_of_the_bytes(
    published: Published, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    s3_proxy.always = "slow"  # so that they need the same blocks at the same time
    assert_ends(start(published.url, tmp_path, 4))
    local = TokenDataset(published.reference, seq_len=_T)
    for rank in range(4):
        expected = [digest(batch) for batch in loader_of(local, rank=rank, world_size=4)]
        assert (tmp_path / str(rank)).read_text().split() == expected
    assert s3_proxy.bytes_sent(".tok") <= 1.15 * published.num_bytes


def test_a_killed_process_blocks_nobody(published: Published, s3_proxy: FaultyProxy, cache: ShardCache) -> None:
    s3_proxy.always = "slow"
    process = start(published.url, cache.folder.parent, 1)
    wait_until(
        lambda: process.poll() is not None or s3_proxy.bytes_sent(".tok") > published.num_bytes / 3, interval=0.01
    )
    process.kill()
    _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err
    s3_proxy.always = "ok"
    assert partials(cache)
    assert len(cached(cache)) < _NUM_SHARDS
    began = time.monotonic()
    assert_all_same(epoch(published.open(cache)), published.local())
    assert time.monotonic() - began < shard_cache.PATIENCE_SECONDS
    wait_until(lambda: len(cached(cache)) == _NUM_SHARDS)
    assert partials(cache) == []


def test_a_process_that_is_stopped_in_a_download_delays_others_but_does_not_block_them(
    in_memory: Published, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ready, begun), never = os.pipe(), threading.Event()
    child = os.fork()
    if not child:
        try:
            monkeypatch.setattr(RemoteStore, "read_range", lambda *_: os.write(begun, b"x") and never.wait())
            data = in_memory.open(ShardCache(cache.folder))
            cache.fetch(data.shards.request(0))
        finally:
            os._exit(1)
    os.close(begun)
    try:
        assert os.read(ready, 1)
        os.kill(child, signal.SIGSTOP)
        monkeypatch.setattr(shard_cache, "PATIENCE_SECONDS", 0.2)
        assert_all_same(epoch(in_memory.open(cache)), in_memory.local())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)


# ---- damaged copies


def flipped(place: int) -> Callable[[bytes], bytes]:
    """Return a function that changes one bit of a file, in the byte at `place`, counted from the end if negative."""

    def flip(data: bytes) -> bytes:
        at = place % len(data)
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]

    return flip


@pytest.mark.parametrize(
    ("damage", "options"),
    [
        (flipped(30), {}),  # of the header
        (lambda data: bytes(len(data)), {"access": "pread"}),
        (flipped(-8), {"packing": "best_fit"}),  # of an offset
        (flipped(5000), {"verify": "full"}),  # of a token
    ],
)
def test_a_copy_that_is_damaged_on_disk_is_named_and_downloaded_again_once_deleted(
    damage: Callable[[bytes], bytes], options: dict[str, Any], in_memory: Published, cache: ShardCache
) -> None:
    expected = in_memory.local(**options)
    assert_all_same(epoch(in_memory.open(cache, **options)), expected)
    wait_until(lambda: len(cached(cache)) == _NUM_SHARDS)
    cut, copy = cached(cache)[:2]
    for path, data in ((cut, cut.read_bytes()[:100]), (copy, damage(copy.read_bytes()))):
        path.unlink()  # the map of the first loader stays as it was
        path.write_bytes(data)
    with pytest.raises(FormatError, match=f"in the cache: {copy}: .*; delete this copy"):
        epoch(in_memory.open(ShardCache(cache.folder), **options))
    copy.unlink()
    assert_all_same(epoch(in_memory.open(ShardCache(cache.folder), **options)), expected)


def test_shards_are_downloaded_again_after_the_folder_of_the_cache_was_deleted(
    in_memory: Published, cache: ShardCache, tmp_path: Path
) -> None:
    loader = loader_of(in_memory.open(cache))
    batches = [next(loader) for _ in range(20)]
    wait_until(lambda: len(cached(cache)) == _NUM_SHARDS)
    cache.folder.rename(tmp_path / "deleted")  # At once: a download may still write into it.
    assert_all_same([*batches, *loader], in_memory.local())
    assert_all_same(epoch(in_memory.open(cache)), in_memory.local())


# ---- damaged stores


@pytest.mark.parametrize("kind", ["missing", "damaged", "another shard's", "empty"])
def test_a_blocks_file_that_is_not_usable_is_named(kind: str, in_memory: Published, cache: ShardCache) -> None:
    names = [blocks_name(in_memory.name(i)) for i in (0, 1)]
    right = (Path(in_memory.reference) / names[0]).read_bytes()
    if kind == "missing":
        fsspec.filesystem("memory").rm_file(f"/reading/data/{names[1]}")
    else:
        write_in_memory(names[1], {"damaged": right[:-1], "another shard's": right, "empty": b""}[kind])
    for options in ({}, {"access": "range"}, {"verify": "full"}):
        with pytest.raises((StoreError, FormatError), match=re.escape(names[1])):
            epoch(in_memory.open(cache, **options))


def test_a_block_that_is_damaged_in_the_store_is_named(in_memory: Published, cache: ShardCache) -> None:
    shard = bytearray(in_memory.shards[2].read_bytes())
    shard[10 * _BLOCK_BYTES] ^= 1
    write_in_memory(in_memory.name(2), bytes(shard))
    message = rf"{re.escape(in_memory.name(2))}: block 10 does not have the checksum in .*\.blocks, in 3 downloads"
    for access in ("mmap", "range"):
        with pytest.raises(FormatError, match=message):
            epoch(in_memory.open(cache, access=access))
    assert shard not in [path.read_bytes() for path in cached(cache)]


@pytest.mark.parametrize("left", [None, 0, 3000])
def test_a_shard_that_is_gone_or_cut_short_is_named_once_and_reading_continues_once_it_is_back(
    left: int | None, in_memory: Published, tmp_path: Path
) -> None:
    name, good = in_memory.name(2), in_memory.shards[2].read_bytes()
    for number, access in enumerate(("mmap", "pread", "range")):
        if left is None:
            fsspec.filesystem("memory").rm_file(f"/reading/data/{name}")
        else:
            write_in_memory(name, good[:left])
        loader = loader_of(in_memory.open(ShardCache(tmp_path / str(number)), access=access))
        found: Batches = []
        with pytest.raises((StoreError, FormatError), match=rf"/{name}: .*; restore it$") as caught:
            found.extend(iter(loader.__next__, None))
        assert str(caught.value).count(name) == 1
        write_in_memory(name, good)
        assert_all_same([*found, *loader], in_memory.local())


# ---- servers


def faults(seed: int, share: float) -> Iterator[str]:
    """Yield the fate of each request: for a `share` of them an error, a truncation, a lost connection or a delay."""
    rng = random.Random(seed)
    while True:
        yield rng.choice(["503", "cut", "drop", "slow", "flip", "500"]) if rng.random() < share else "ok"


@pytest.mark.parametrize("seed", range(count(2, 200)))
def test_a_tenth_of_requests_failing_costs_little_and_changes_no_batch(
    seed: int, published: Published, s3_proxy: FaultyProxy, cache: ShardCache
) -> None:
    chosen, packing = faults(seed, 0.1), PACKINGS[seed % 4]
    data = published.open(cache, packing=packing)  # a damaged manifest is an error
    s3_proxy.plan(*(next(chosen) for _ in range(600)))
    assert_all_same(epoch(data), published.local(packing=packing))
    wait_until(lambda: len(cached(cache)) == _NUM_SHARDS)
    counted = 0 if packing == "concat" else published.num_bytes / 2  # headers and offsets, to count the samples
    assert s3_proxy.bytes_sent(".tok") <= 1.3 * published.num_bytes + counted
    wait_until(lambda: not any(thread.name == "tokenloom-blocks" for thread in threading.enumerate()))


@pytest.mark.parametrize(("always", "prefetch"), [("slow", 4), ("503", 0), ("403", 4)])
def test_the_reader_waits_for_a_slow_server_and_names_one_that_fails(
    always: str, prefetch: int, published: Published, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    largest = max(path.stat().st_size for path in published.shards)
    cache = ShardCache(tmp_path, 4 * largest)  # at most two of the 12 shards are downloaded ahead
    loader = loader_of(published.open(cache), prefetch=prefetch, lanes=1)
    found = [next(loader) for _ in range(3)]
    s3_proxy.always = always
    if always == "slow":
        found += [next(loader) for _ in range(150)]
    else:
        with pytest.raises(StoreError, match=rf"{published.url}/.*\.(tok|blocks): "):
            found.extend(iter(loader.__next__, None))
    s3_proxy.always = "ok"
    assert_all_same([*found, *loader], epoch(TokenDataset(published.reference, seq_len=_T), lanes=1))


# ---- looking ahead, nodes, tags


@pytest.mark.parametrize("packing", ["best_fit"] if count(0, 1) == 0 else PACKINGS)
def test_the_next_shards_are_downloaded_before_they_are_needed(
    packing: str, published: Published, s3_proxy: FaultyProxy, cache: ShardCache
) -> None:
    data = published.open(cache, packing=packing)
    loader = loader_of(data, lanes=1, prefetch=0)
    next(loader)  # from one shard or two
    wait_until(lambda: len(cached(cache)) == _NUM_SHARDS)
    requests = len(s3_proxy.seen)
    assert len(data.shards) <= 2
    assert len(list(loader)) == len(loader) - 1
    assert len(s3_proxy.seen) == requests


def test_looking_ahead_takes_at_most_half_of_the_cache(in_memory: Published, tmp_path: Path) -> None:
    largest = max(path.stat().st_size for path in in_memory.shards)
    cache = ShardCache(tmp_path, 6 * largest)
    loader = loader_of(in_memory.open(cache), lanes=1, prefetch=0)
    next(loader)
    wait_until(lambda: len(cached(cache)) >= 3)
    for _ in range(20):
        next(loader)
    assert cache.stats()["evictions"] == 0
    assert len(cached(cache)) <= 5
