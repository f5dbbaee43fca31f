"""A shard of a remote store that is not in the cache yet: its blocks are read from the store as they are needed.

Each block is compared with its checksum in the `.blocks` file, then kept in the memory of the process. A process reads
the blocks of its first batch so. Of what it reads later, it takes at most a thirty-second of a shard in single blocks,
because each process downloads these for itself; for more it waits for the whole shard, which one process of the machine
downloads for all. It reads blocks again if the cache has no room for the shard, or if a download takes too long: the
process that makes it may have been stopped.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tokenloom.errors import FormatError, StoreError
from tokenloom.process import is_ending
from tokenloom.storage.cache.cache_files import CacheFiles, hold
from tokenloom.storage.formats.blocks import ShardBlocks, blocks_name, decode_blocks
from tokenloom.storage.formats.manifest import MASK
from tokenloom.storage.formats.records import sha256_of_bytes
from tokenloom.storage.formats.shard import ShardHeader, unpack_header
from tokenloom.storage.stores.store import MAX_TRANSFERS, Store, join_ranges

if TYPE_CHECKING:
    from pathlib import Path

REQUEST_BYTES = 4 * 2**20  # maximum size of a request
_NUM_REQUESTS = 32  # concurrent requests
_SINGLE_SHARE = 1 / 32  # largest part of a shard that is downloaded in single blocks
_KEPT_BYTES = 2**28  # limit for single blocks in a process's memory, besides those requested last
_MAX_KNOWN = 512  # `.blocks` files that a process keeps in memory
_logger = logging.getLogger("tokenloom")


class ShardRequest(NamedTuple):
    """A shard or mask of a remote store with its SHA-256 in hexadecimal and its length, as a manifest lists it.

    `blocks_sha256` is the SHA-256 of its `.blocks` file.
    """

    store: Store
    path: str
    sha256: str
    num_bytes: int
    blocks_sha256: str

    @property
    def place(self) -> str:
        """The URL of the file, for messages."""
        return self.store.place(self.path)


class CacheProcess:
    """The counters and queued downloads of one process; a forked child starts with empty ones."""

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self.files = CacheFiles(folder, limit_bytes)
        self.lock = threading.Lock()
        self.counters: Counter[str] = Counter()
        self.begun: set[str] = set()  # kinds of files, shards or masks of a dataset, of which it has read blocks
        self.partial: weakref.WeakSet[PartialShard] = weakref.WeakSet()
        self.has_first_batch = threading.Event()
        self.queue: dict[str, ShardRequest] = {}  # by SHA-256
        self.num_threads = 0
        self._warned: set[str] = set()

    def bound_memory(self) -> None:
        """Forget the blocks of all shards if there are too many."""
        with self.lock:
            if sum(shard.kept_bytes for shard in self.partial) > _KEPT_BYTES:
                for shard in self.partial:
                    shard.forget()

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter."""
        with self.lock:
            self.counters[name] += number

    def holds(self, request: ShardRequest) -> bool:
        """Return whether the cache holds a complete file of that name and length now."""
        return self.files.holds(request.sha256, request.num_bytes)

    def next_request(self) -> ShardRequest | None:
        """Take the next shard from the queue; None if a thread must end."""
        with self.lock:
            if not self.queue or is_ending():
                self.num_threads -= 1
                return None
            return self.queue.pop(next(iter(self.queue)))

    def warn_once(self, kind: str, message: str, *args: object) -> None:
        """Write a warning to the log, one of a kind."""
        if kind not in self._warned and not is_ending():
            self._warned.add(kind)
            _logger.warning(message, *args)


def read_blocks(request: ShardRequest) -> ShardBlocks:
    """Return what the `.blocks` file beside a shard says of the shard, or of its mask.

    Raises:
        FormatError: it repeatedly is not the one that the manifest lists, or says nothing of the mask.
        StoreError: it is missing, or can't be read.
    """
    name = blocks_name(request.path)
    blocks = _read_blocks(request.store, name, request.blocks_sha256)
    of_file = blocks.mask if request.path.endswith(MASK) else blocks
    if of_file is None:
        raise FormatError(f"{request.store.place(name)}: it has no checksums of the mask; restore it")
    return of_file


@lru_cache(_MAX_KNOWN)
def _read_blocks(store: Store, name: str, sha256: str) -> ShardBlocks:
    place = store.place(name)
    for _ in range(MAX_TRANSFERS):
        try:
            data = store.read(name)
        except FileNotFoundError as error:
            raise _missing(place) from error
        if sha256_of_bytes(data) == sha256:
            return decode_blocks(data, place)
    raise FormatError(f"{place}: its SHA-256 is not the one listed, in {MAX_TRANSFERS} downloads; restore it")


def _missing(place: str) -> StoreError:
    return StoreError(f"{place}: missing from a published version; restore it")


def runs_of(blocks: Iterable[int], checksums: ShardBlocks) -> list[range]:
    """Return ascending blocks as runs of neighbours, each for one request: [1, 2, 3, 7] -> [1, 2, 3], [7]."""
    longest = max(1, REQUEST_BYTES // checksums.block_bytes)
    return [range(*run) for run in join_ranges(((block, block + 1) for block in blocks), 0, longest)]


def download_run(
    request: ShardRequest, checksums: ShardBlocks, run: range, count: Callable[[str, int], None] = lambda *_: None
) -> bytes:
    """Return the bytes of neighbouring blocks, downloaded again if they arrive damaged.

    Args:
        request: the file that has them.
        checksums: those of its blocks.
        run: the blocks, for one request.
        count: adds to a counter.

    Raises:
        FormatError: a block repeatedly has another checksum.
        StoreError: the store can't be read.
    """
    start, end = checksums.bounds(run.start, run.stop)
    length = checksums.block_bytes
    for _ in range(MAX_TRANSFERS):
        try:
            data = request.store.read_range(request.path, start, end)
        except FileNotFoundError as error:
            raise _missing(request.place) from error
        count("bytes_downloaded", len(data))
        parts = (memoryview(data)[at : at + length] for at in range(0, len(data), length))
        damaged = [block for block, part in zip(run, parts, strict=True) if not checksums.matches(block, part)]
        if not damaged:
            return data
        count("failed_checks", 1)
    raise FormatError(
        f"{request.place}: block {damaged[0]} does not have the checksum in {blocks_name(request.path)}, in "
        f"{MAX_TRANSFERS} downloads; the shard in the store is damaged; restore it"
    )


class PartialShard:
    """A shard or mask that is not in the cache yet; a slice of it is bytes of its tokens, or of their classes.

    Several threads may use it.

    Args:
        process: the counters of this process.
        request: the shard or mask.
        path: the path that the complete file will have.
        wait: waits for the complete file, and returns whether the cache has it; None if nobody downloads it.

    Raises as `read_blocks`.
    """

    def __init__(
        self, process: CacheProcess, request: ShardRequest, path: Path, wait: Callable[[], bool] | None
    ) -> None:
        self.process, self._request, self._wait = process, request, wait
        self.kind = f"{request.store.root}/{request.path.rpartition('.')[2]}"
        self.checksums = read_blocks(request)
        self._kept: dict[int, bytes] = {}
        self._num_single = 0  # blocks that were downloaded for this process alone
        self._file: int | None = None  # descriptor of the complete file
        self.place, self.path = request.place, path
        with process.lock:
            process.partial.add(self)
        self._first = self.shard_header().tokens_start if self.checksums.header else 0  # the byte where slices begin

    def shard_header(self) -> ShardHeader:
        """Return the header of a shard; a mask has none."""
        place = self._request.store.place(blocks_name(self._request.path))
        return unpack_header(memoryview(self.checksums.header), place)

    def is_complete(self) -> bool:
        """Return whether the cache holds the complete file."""
        return self.process.holds(self._request)

    def missing(self, start: int, end: int) -> list[int]:
        """Return the blocks of the token bytes [start, end) that this process can't read yet."""
        if start >= end or self._file is not None:
            return []
        blocks = self.checksums.covering(self._first + start, self._first + end)
        return [block for block in blocks if block not in self._kept]

    def __getitem__(self, part: slice[int, int, None]) -> bytes:
        """Return bytes of tokens or classes; download what is missing. Errors as `fetch_blocks`."""
        if blocks := self.missing(part.start, part.stop):
            fetch_blocks({self: blocks})
        return self._read(self._first + part.start, self._first + part.stop)

    def offsets_bytes(self) -> bytes:
        """Return the bytes of a shard's document offsets, which follow the tokens; never waits for all of the shard."""
        header = self.shard_header()
        return self._read(header.offsets_start, header.file_bytes)

    def _read(self, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        if self._file is not None:
            data = os.pread(self._file, end - start, start)
            if len(data) != end - start:
                raise FormatError(f"{self.path}: the file was cut short while it was read; remove it")
            return data
        blocks = self.checksums.covering(start, end)
        for run in runs_of((block for block in blocks if block not in self._kept), self.checksums):
            self.download(run)
        data = b"".join([self._kept.get(block) or self.download(range(block, block + 1)) for block in blocks])
        begin = start - self.checksums.bounds(blocks.start, blocks.stop)[0]
        return data[begin : begin + end - start]

    def download(self, run: range) -> bytes:
        """Return the bytes of a run of blocks, and keep them; errors as `download_run`."""
        data = download_run(self._request, self.checksums, run, self.process.count)
        length = self.checksums.block_bytes
        for number, block in enumerate(run):
            self._kept[block] = data[number * length : (number + 1) * length]
        return data

    def takes_singly(self, blocks: Collection[int], *, is_first: bool) -> bool:
        """Return whether to download these blocks for this process alone; if not, it can read the complete file now.

        Waits for the complete file if too much of the shard was downloaded singly and this is not the first batch.
        """
        num_single = self._num_single + len(blocks)
        is_much = num_single > _SINGLE_SHARE * self.checksums.num_blocks
        if self._file is None and self._wait and is_much and not is_first and self._wait():
            self._open_complete()
        if self._file is not None:
            return False
        self._num_single = num_single
        return True

    @property
    def kept_bytes(self) -> int:
        """The bytes of its blocks in memory, about."""
        return len(self._kept) * self.checksums.block_bytes

    def forget(self) -> None:
        """Forget the blocks in memory; those that are needed again are downloaded again."""
        self._kept = {}

    def _open_complete(self) -> None:
        if (file := hold(self.path)) is not None:
            weakref.finalize(self, os.close, file)
            self._file, self._kept = file, {}


def fetch_blocks(wanted: Mapping[PartialShard, Collection[int]]) -> None:
    """Return once this process can read these ascending blocks of shards; download what is missing, in parallel.

    Raises:
        FormatError: a block repeatedly has another checksum.
        StoreError: the store can't be read, or the cache can't be written.
    """
    needed = {shard: blocks for shard, blocks in wanted.items() if blocks}
    for process in {shard.process for shard in needed}:
        process.bound_memory()
    is_first = any(shard.kind not in shard.process.begun for shard in needed)
    singly = {shard: blocks for shard, blocks in needed.items() if shard.takes_singly(blocks, is_first=is_first)}
    runs = [(shard, run) for shard, blocks in singly.items() for run in runs_of(blocks, shard.checksums)]
    if runs:
        with ThreadPoolExecutor(min(_NUM_REQUESTS, len(runs)), "tokenloom-blocks") as threads:
            list(threads.map(lambda item: item[0].download(item[1]), runs))
    for shard in needed:
        shard.process.begun.add(shard.kind)
        shard.process.has_first_batch.set()
