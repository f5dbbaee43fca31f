"""Reading a remote store by blocks: the same batches as locally, each byte once, and damage is named."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
import xxhash
from torch.utils.data import DataLoader

from tests.counts import count
from tests.reader.oracle import FIELDS, PACKINGS, make_store
from tests.reader.test_remote_reading import (
    Published,
    assert_all_same,
    assert_ends,
    cached,
    digest,
    epoch,
    faults,
    loader_of,
    publish,
    published_in_memory,
    run_children,
)
from tests.servers.faulty_proxy import FaultyProxy
from tokenloom.errors import FormatError, StoreError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.shards import shard_files
from tokenloom.storage.cache import cache_files, partial_file, partial_shard, shard_cache
from tokenloom.storage.cache.cache_files import CacheFiles
from tokenloom.storage.cache.partial_file import PartialFile, create_partial
from tokenloom.storage.cache.partial_shard import PartialShard, read_blocks
from tokenloom.storage.cache.shard_cache import ShardCache
from tokenloom.storage.formats import blocks as blocks_module
from tokenloom.storage.formats.blocks import ShardBlocks, blocks_name, decode_blocks, encode_blocks
from tokenloom.storage.stores import remote_retries
from tokenloom.storage.stores.remote import RemoteStore

_T = 16
_NUM_SHARDS = 6
_BLOCK_BYTES = 512
_REQUEST_BYTES = 4 * _BLOCK_BYTES


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several requests per shard, and short waits between retries."""
    monkeypatch.setattr(partial_shard, "_REQUEST_BYTES", _REQUEST_BYTES)
    monkeypatch.setattr(remote_retries, "FIRST_WAIT_SECONDS", 0.01)


def make_blocks_store(folder: Path, seed: int = 0) -> str:
    """Write a version with small blocks; return its reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCK_BYTES", _BLOCK_BYTES)
        return make_store(folder, [4000 + 300 * i for i in range(_NUM_SHARDS)], seed=seed, with_blocks=True)


@pytest.fixture(scope="module")
def published(s3_url: str, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A version in the S3 store that no test changes."""
    return publish(s3_url, make_blocks_store(tmp_path_factory.mktemp("blocks")))


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Published]:
    """A version in fsspec's memory store, which a test may change."""
    with published_in_memory(make_blocks_store(tmp_path / "memory"), "blocks") as found:
        yield found


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds, for at most two minutes: starting a process may take half of one."""
    end = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def bytes_of_shards(proxy: FaultyProxy) -> int:
    """Return the bytes of shards that the server sent."""
    return proxy.bytes_sent(".tok")


def write_in_memory(name: str, data: bytes) -> None:
    """Replace a file of the version in the memory store."""
    fsspec.filesystem("memory").pipe_file(f"/blocks/data/{name}", data)


def partials(cache: ShardCache) -> list[Path]:
    """Return the files of shards that are not complete."""
    return [path for path in (cache.folder / "partial").iterdir() if path.name[:64].isalnum()]


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


def num_opened(cache: ShardCache) -> int:
    """Return how many shards of a cache this process reads by blocks."""
    return sum(path.parent.parent == cache.folder for path in partial_file._opened)


# ---- the same batches


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(("order", "access"), [("block", "mmap"), ("full", "pread"), ("full", "mmap")])
def test_an_epoch_by_blocks_is_the_local_one(
    packing: str, order: str, access: str, in_memory: Published, cache: ShardCache
) -> None:
    fields = FIELDS if order == "full" else ()
    expected = epoch(TokenDataset(in_memory.reference, seq_len=_T, packing=packing, fields=fields), order=order)
    data = in_memory.open(cache, packing=packing, fields=fields, access=access)
    for prefetch in (0, None):
        assert_all_same(epoch(data, order=order, prefetch=prefetch), expected)
    wait_until(lambda: len(cached(cache)) == _NUM_SHARDS)
    assert {path.stem: path.read_bytes() for path in cached(cache)} == {
        entry.sha256: path.read_bytes() for entry, path in zip(data.files.entries, in_memory.shards, strict=True)
    }
    assert partials(cache) == []
    assert cache.stats()["bytes_downloaded"] == in_memory.num_bytes
    assert cache.stats()["downloads"] == _NUM_SHARDS


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


def test_access_by_range_needs_the_blocks(in_memory: Published, cache: ShardCache) -> None:
    with pytest.raises(ValueError, match="never downloads"):
        in_memory.open(cache, access="range", verify="full")
    system = fsspec.filesystem("memory")
    for path in system.glob("/blocks/data/versions/*/train/*.blocks"):
        system.rm(path)
    with pytest.raises(StoreError, match="write-blocks"):
        in_memory.open(cache, access="range")[0]


@pytest.fixture
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep threads from completing shards."""
    monkeypatch.setattr(ShardCache, "ahead", lambda *_: None)


@pytest.mark.usefixtures("nothing_ahead")
def test_a_batch_downloads_only_its_blocks(in_memory: Published, cache: ShardCache) -> None:
    loader = loader_of(in_memory.open(cache), prefetch=0)
    expected = iter(loader_of(TokenDataset(in_memory.reference, seq_len=_T), prefetch=0))
    for number in range(1, 6):
        assert torch.equal(next(loader)["input_ids"], next(expected)["input_ids"])
        made = 1 if number == 1 else 9  # a window of one batch, then one of eight
        assert 0 < cache.stats()["bytes_downloaded"] <= made * 4 * 2 * _BLOCK_BYTES  # a row is in two blocks at most
    assert cached(cache) == []


def test_samples_by_index_and_workers_of_a_dataloader_read_the_same_tokens(
    published: Published, s3_proxy: FaultyProxy, cache: ShardCache
) -> None:
    local, data = TokenDataset(published.reference, seq_len=_T), published.open(cache)
    for index in (0, 7, -1, len(local) // 2):
        assert data[index]["input_ids"].tolist() == local[index]["input_ids"].tolist()
    stream = data.iterable(batch_size=4, seed=3, num_epochs=1, drop_last=False)
    assert_all_same(list(DataLoader(stream, batch_size=None, num_workers=2)), published.local())
    assert bytes_of_shards(s3_proxy) == published.num_bytes


@pytest.mark.usefixtures("nothing_ahead")
def test_a_forked_process_reads_shards_that_its_parent_has_partly_read(in_memory: Published, cache: ShardCache) -> None:
    local, data = TokenDataset(in_memory.reference, seq_len=_T), in_memory.open(cache)
    ends = np.cumsum(data.counts).tolist()
    assert data[0]["input_ids"].tolist() == local[0]["input_ids"].tolist()

    def read() -> None:
        for index in range(ends[1]):
            assert data[index]["input_ids"].tolist() == local[index]["input_ids"].tolist()

    run_forked(read)
    before = cache.stats()["bytes_downloaded"]
    read()
    assert cache.stats()["bytes_downloaded"] == before  # the child has left its blocks


def take_one(reference: str, folder: str) -> None:
    """Run in a process that takes one batch, and exits while blocks are being downloaded."""
    partial_shard._REQUEST_BYTES = _REQUEST_BYTES
    loader = loader_of(TokenDataset(reference, seq_len=_T, cache=ShardCache(Path(folder) / "cache")))
    print(digest(next(loader)))


def test_a_program_can_exit_while_blocks_are_downloaded(
    published: Published, s3_proxy: FaultyProxy, cache: ShardCache
) -> None:
    s3_proxy.always = "slow"
    process = start("take_one", published.url, cache.folder.parent)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out.split()) == (0, [digest(published.local()[0])]), err
    assert "Traceback" not in err
    assert len(cached(cache)) < _NUM_SHARDS


# ---- sharing a cache


def read_rank(reference: str, folder: str, rank: str, world_size: str) -> None:
    """Run in a process: write a digest of each batch of a rank, and end when all shards are complete."""
    partial_shard._REQUEST_BYTES, remote_retries.FIRST_WAIT_SECONDS = _REQUEST_BYTES, 0.01
    cache = ShardCache(Path(folder) / "cache")
    data = TokenDataset(reference, seq_len=_T, cache=cache)
    with (Path(folder) / rank).open("w") as file:
        for batch in loader_of(data, rank=int(rank), world_size=int(world_size)):
            print(digest(batch), file=file, flush=True)
    wait_until(lambda: len(cached(cache)) == _NUM_SHARDS)


def read_ranks(reference: str, folder: str, world_size: str) -> None:
    """Run in the processes of a machine, which share a cache."""
    run_children(int(world_size), lambda rank: read_rank(reference, folder, str(rank), world_size))


def start(function: str, *args: object) -> subprocess.Popen[str]:
    """Start a process that runs a function of this module."""
    code = "import sys; from tests.reader import test_blocks_reading as t; getattr(t, sys.argv[1])(*sys.argv[2:])"
    command = [sys.executable, "-c", code, function, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_an_epoch_by_four_processes_downloads_each_byte_once(
    published: Published, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    s3_proxy.always = "slow"  # so that they need the same blocks at the same time
    assert_ends(start("read_ranks", published.url, tmp_path, 4))
    local = TokenDataset(published.reference, seq_len=_T)
    for rank in range(4):
        expected = [digest(batch) for batch in loader_of(local, rank=rank, world_size=4)]
        assert (tmp_path / str(rank)).read_text().split() == expected
    assert bytes_of_shards(s3_proxy) == published.num_bytes


def test_two_caches_of_one_folder_download_each_byte_once(in_memory: Published, cache: ShardCache) -> None:
    other = ShardCache(cache.folder)
    loaders = [loader_of(in_memory.open(each)) for each in (cache, other)]
    for batch, same in zip(*loaders, strict=True):
        assert torch.equal(batch["input_ids"], same["input_ids"])
    wait_until(lambda: len(cached(cache)) == _NUM_SHARDS)
    assert cache.stats()["bytes_downloaded"] + other.stats()["bytes_downloaded"] == in_memory.num_bytes


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize("lanes", [2, 6])
def test_a_cache_smaller_than_the_split_gives_the_same_batches_within_its_limit(
    lanes: int, packing: str, in_memory: Published, tmp_path: Path
) -> None:
    limit = int(2.5 * max(path.stat().st_size for path in in_memory.shards))
    cache = ShardCache(tmp_path / "cache", limit)
    found, used = [], CacheFiles(cache.folder, limit).used
    for batch in loader_of(in_memory.open(cache, packing=packing, max_open_shards=2), lanes=lanes):
        found.append(batch)
        assert used() <= limit
    assert_all_same(found, epoch(TokenDataset(in_memory.reference, seq_len=_T, packing=packing), lanes=lanes))
    assert cache.stats()["evictions"] > 0


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_access_by_range_reads_a_split_that_is_larger_than_the_cache(
    packing: str, in_memory: Published, tmp_path: Path
) -> None:
    limit = int(2.5 * max(path.stat().st_size for path in in_memory.shards))
    cache = ShardCache(tmp_path / "cache", limit)
    found, used = [], CacheFiles(cache.folder, limit).used
    for batch in loader_of(in_memory.open(cache, packing=packing, access="range"), order="sequential"):
        found.append(batch)
        assert used() <= limit
    assert_all_same(found, epoch(TokenDataset(in_memory.reference, seq_len=_T, packing=packing), order="sequential"))
    assert cached(cache) == []


@pytest.mark.parametrize("access", ["mmap", "range"])
def test_few_file_descriptors_allow_few_shards_by_blocks_at_a_time(
    access: str, in_memory: Published, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_cache, "max_partial_files", lambda: 2)
    monkeypatch.setattr(shard_files, "_NUM_REQUESTS", 1)
    found, data = [], in_memory.open(cache, access=access)
    for batch in loader_of(data, order="full", prefetch=0):
        found.append(batch)
        assert len(cache._process().partials) <= 4  # two threads may each be about to add one
        assert len(data.shards) <= (2 if access == "range" else _NUM_SHARDS)
    assert_all_same(found, epoch(TokenDataset(in_memory.reference, seq_len=_T), order="full"))
    wait_until(lambda: len(cached(cache)) == (_NUM_SHARDS if access == "mmap" else 0))


@pytest.mark.usefixtures("nothing_ahead")
def test_shards_that_another_process_completed_are_closed(in_memory: Published, cache: ShardCache) -> None:
    data = in_memory.open(cache)
    firsts = (np.cumsum(data.counts) - data.counts).tolist()
    samples = [data[first] for first in firsts[:-1]]
    assert num_opened(cache) == len(samples)

    def complete() -> None:
        other = ShardCache(cache.folder)
        for index in range(len(samples)):
            other.fetch(data.files._request(index))

    run_forked(complete)
    samples.append(data[firsts[-1]])
    assert len(cache._process().partials) == 1
    with CacheFiles(cache.folder, None)._room_lock():
        assert num_opened(cache) == 1
    local = TokenDataset(in_memory.reference, seq_len=_T)
    assert [sample["input_ids"].tolist() for sample in samples] == [local[i]["input_ids"].tolist() for i in firsts]


def test_a_full_disk_has_room_for_the_map_of_a_partial_file(in_memory: Published, cache: ShardCache) -> None:
    blocks = read_blocks(in_memory.open(cache).files._request(0))
    partial_file.create_partial(cache.folder.parent / "shard.part", blocks)
    with (cache.folder.parent / "shard.map").open("rb") as file:  # a write to a hole would be a signal
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 1 + blocks.num_blocks


@pytest.mark.usefixtures("nothing_ahead")
def test_a_shard_that_is_being_downloaded_as_a_whole_is_not_begun_by_blocks(
    in_memory: Published, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_cache, "max_partial_files", lambda: 0)  # so that `fetch` downloads it as a whole
    request, other = in_memory.open(cache).files._request(0), ShardCache(cache.folder)
    read = RemoteStore.read_range

    def read_noted(store: RemoteStore, path: str, start: int, end: int) -> bytes:
        monkeypatch.setattr(shard_cache, "max_partial_files", lambda: 10)
        assert other.begin(request, waits=False) is None
        return read(store, path, start, end)

    monkeypatch.setattr(RemoteStore, "read_range", read_noted)
    assert cache.fetch(request).stat().st_size == request.num_bytes
    assert other.begin(request) is None
    assert cache.stats()["downloads"] == 1


# ---- kills


def test_a_killed_process_leaves_blocks_that_the_next_one_verifies_and_keeps(
    published: Published, s3_proxy: FaultyProxy, cache: ShardCache
) -> None:
    s3_proxy.always = "slow"
    process = start("read_rank", published.url, cache.folder.parent, 0, 1)
    wait_until(lambda: process.poll() is not None or bytes_of_shards(s3_proxy) > published.num_bytes / 3)
    process.kill()
    _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err
    s3_proxy.always = "ok"
    assert len(cached(cache)) < _NUM_SHARDS
    left = sorted(path for path in partials(cache) if path.suffix == ".part")
    assert left
    data = bytearray(left[0].read_bytes())
    data[5000:] = bytes(len(data) - 5000)  # what a power failure may leave
    left[0].write_bytes(data)
    sent = bytes_of_shards(s3_proxy)
    assert_all_same(epoch(published.open(cache)), published.local())
    wait_until(lambda: len(cached(cache)) == _NUM_SHARDS)
    assert bytes_of_shards(s3_proxy) - sent < published.num_bytes * 0.9
    assert partials(cache) == []


@pytest.mark.usefixtures("nothing_ahead")
def test_a_file_that_nobody_uses_is_removed_to_make_room(in_memory: Published, tmp_path: Path) -> None:
    run_forked(lambda: in_memory.open(ShardCache(tmp_path / "cache"))[0])
    largest = max(path.stat().st_size for path in in_memory.shards)
    cache = ShardCache(tmp_path / "cache", largest)
    (left,) = [path for path in partials(cache) if path.suffix == ".part"]
    data = in_memory.open(cache)
    cache.fetch(data.files._request(_NUM_SHARDS - 1))
    assert not left.exists()


# ---- faults


def test_a_failed_download_that_takes_up_the_limit_is_an_error_and_reading_continues_later(
    in_memory: Published, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise StoreError("as planned")

    largest = max(path.stat().st_size for path in in_memory.shards)
    data = in_memory.open(ShardCache(tmp_path / "cache", 2 * largest))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartialShard, "complete", fail)
        with pytest.raises(StoreError, match="as planned"):
            epoch(data)
    assert_all_same(epoch(data), in_memory.local())


def test_a_full_disk_is_a_named_error(in_memory: Published, cache: ShardCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_to_full_disk(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PartialFile, "put", write_to_full_disk)
    with pytest.raises(StoreError, match=rf"{cache.folder}: .*No space left on device; free space there, or set TOK"):
        epoch(in_memory.open(cache))


def test_a_full_disk_empties_the_cache_before_a_shard_is_begun(
    in_memory: Published, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(path: Path, blocks: ShardBlocks) -> None:
        if cached(cache):
            raise OSError(errno.ENOSPC, "No space left on device")
        create_partial(path, blocks)

    data = in_memory.open(cache)
    cache.fetch(data.files._request(0))
    monkeypatch.setattr(cache_files, "create_partial", create)
    cache.fetch(data.files._request(1))
    assert [path.stem for path in cached(cache)] == [data.files.entries[1].sha256]
    assert cache.stats()["evictions"] == 1


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.parametrize("access", ["mmap", "range"])
def test_shards_are_downloaded_again_after_the_folder_of_the_cache_was_deleted(
    access: str, in_memory: Published, cache: ShardCache
) -> None:
    first = in_memory.open(cache, access=access)
    expected = first[5]["input_ids"].tolist()
    shutil.rmtree(cache.folder)
    assert in_memory.open(cache, access=access)[5]["input_ids"].tolist() == expected
    assert in_memory.open(ShardCache(cache.folder), access=access)[5]["input_ids"].tolist() == expected
    assert first[6]["input_ids"].tolist() == in_memory.open(cache, access=access)[6]["input_ids"].tolist()


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
    assert bytes_of_shards(s3_proxy) <= 1.3 * published.num_bytes + counted
    wait_until(lambda: not any(thread.name == "tokenloom-blocks" for thread in threading.enumerate()))


@pytest.mark.usefixtures("nothing_ahead")
def test_a_block_that_is_damaged_in_transit_is_downloaded_again(
    published: Published, s3_proxy: FaultyProxy, cache: ShardCache
) -> None:
    data = published.open(cache)
    s3_proxy.plan("ok", "flip", "flip")  # the .blocks file arrives as it is
    assert data[3]["input_ids"].tolist() == TokenDataset(published.reference, seq_len=_T)[3]["input_ids"].tolist()
    assert cache.stats()["failed_checks"] == 2


@pytest.mark.parametrize("kind", ["missing", "damaged", "another shard's", "empty"])
def test_shards_without_usable_blocks_are_read_whole_with_one_line_in_the_log(
    kind: str, in_memory: Published, cache: ShardCache, caplog: pytest.LogCaptureFixture
) -> None:
    names = [blocks_name(in_memory.name(i)) for i in range(_NUM_SHARDS)]
    right = (Path(in_memory.reference) / names[0]).read_bytes()
    wrong = {"damaged": right[:-1], "another shard's": right, "empty": b""}
    for name in names[1:]:
        if kind == "missing":
            fsspec.filesystem("memory").rm_file(f"/blocks/data/{name}")
        else:
            write_in_memory(name, wrong[kind])
    assert_all_same(epoch(in_memory.open(cache)), in_memory.local())
    assert cache.stats()["downloads"] == _NUM_SHARDS
    lines = [record.getMessage() for record in caplog.records if "read whole" in record.getMessage()]
    assert len(lines) == (1 if kind == "missing" else _NUM_SHARDS - 1)
    assert all("tokenloom verify --write-blocks" in line for line in lines)


def lie(published: Published, index: int, **changes: object) -> None:
    """Change a `.blocks` file, and its own checksum with it."""
    name = blocks_name(published.name(index))
    blocks = decode_blocks((Path(published.reference) / name).read_bytes(), name)
    write_in_memory(name, encode_blocks(replace(blocks, **changes)))  # type: ignore[arg-type]


def test_blocks_that_lie_about_a_checksum_are_a_named_error(in_memory: Published, cache: ShardCache) -> None:
    name = blocks_name(in_memory.name(2))
    checksums = decode_blocks((Path(in_memory.reference) / name).read_bytes(), name).checksums
    lie(in_memory, 2, checksums=checksums[:160] + bytes(16) + checksums[176:])
    where = re.escape(in_memory.name(2))
    with pytest.raises(
        FormatError, match=rf"{where}: block 10 does not have the checksum in .*\.blocks, in 3 downloads"
    ):
        epoch(in_memory.open(cache))
    assert len([path for path in cached(cache) if path.read_bytes() == in_memory.shards[2].read_bytes()]) == 0


def test_a_header_that_lies_is_not_used(in_memory: Published, cache: ShardCache) -> None:
    name = blocks_name(in_memory.name(2))
    header = decode_blocks((Path(in_memory.reference) / name).read_bytes(), name).header
    other = decode_blocks((Path(in_memory.reference) / blocks_name(in_memory.name(3))).read_bytes(), name).header
    for lying in (other, bytes(len(header)), header[:100] + b"x" + header[101:]):
        lie(in_memory, 2, header=lying)
        shutil.rmtree(cache.folder, ignore_errors=True)
        assert_all_same(epoch(in_memory.open(ShardCache(cache.folder))), in_memory.local())


@pytest.mark.parametrize("with_blocks", [True, False])
@pytest.mark.parametrize("left", [None, 0, 9000])
def test_a_shard_that_is_gone_or_cut_short_is_named_once_with_what_to_do(
    left: int | None, with_blocks: bool, in_memory: Published, tmp_path: Path
) -> None:
    name, system = in_memory.name(2), fsspec.filesystem("memory")
    system.rm_file(f"/blocks/data/{name}")
    if left is not None:
        write_in_memory(name, in_memory.shards[2].read_bytes()[:left])
    if not with_blocks:
        for path in system.glob("/blocks/data/versions/*/train/*.blocks"):
            system.rm_file(path)
    for number, access in enumerate(("mmap", "pread", "range")[: 2 + with_blocks]):
        data = in_memory.open(ShardCache(tmp_path / str(number)), access=access)
        with pytest.raises((StoreError, FormatError), match=rf"/{name}: .*; restore it$") as caught:
            epoch(data)
        assert str(caught.value).count(name) == 1


def damage_a_token(published: Published) -> str:
    """Change a token of the first shard, and its `.blocks` file with it; return what the error says."""
    name, shard = published.name(0), bytearray(published.shards[0].read_bytes())
    shard[5000] ^= 1
    write_in_memory(name, bytes(shard))
    starts = range(0, len(shard), _BLOCK_BYTES)
    lie(published, 0, checksums=b"".join(xxhash.xxh3_128_digest(shard[i : i + _BLOCK_BYTES]) for i in starts))
    return rf"{re.escape(name)}: its SHA-256 is not the one listed.*restore both files"


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_shard_whose_sha256_is_wrong_is_an_error(
    prefetch: int, packing: str, in_memory: Published, cache: ShardCache
) -> None:
    message = damage_a_token(in_memory)
    with pytest.raises(FormatError, match=message):  # the check ends some time after the last block
        epoch(in_memory.open(cache, packing=packing), prefetch=prefetch, order="sequential", num_epochs=None)
    assert not (cache.folder / "shards" / f"{in_memory.open(cache).files.entries[0].sha256}.tok").exists()


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_the_error_of_a_wrong_sha256_names_the_samples_that_were_read(
    packing: str, in_memory: Published, cache: ShardCache
) -> None:
    message = damage_a_token(in_memory)
    data = in_memory.open(cache, packing=packing)
    for index in (2, 0, 2):
        data[index]
    with pytest.raises(FormatError, match=message):
        cache.fetch(data.files._request(0))
    with pytest.raises(FormatError, match=message + "; 2 samples of the split .* may be wrong: 0, 2$"):
        data[1]
