"""A shard of which this machine has some blocks: those that the next rows need are downloaded first, then the rest.

All processes of a machine share the file of a shard, and none trusts it: before a process first reads a block, it
compares the bytes with the checksum in `.blocks`, downloads them if they differ, and remembers that it did. So it does
not matter who wrote a block, whether two processes write it at once, or what a killed one left behind.

To save traffic, a thread that begins to download a block claims it: it writes the time to the shard's file of claims, 8
bytes a block, and others wait. Nothing is wrong if a claim is lost, or if two threads make one at once: they download
the same bytes. A claim ends with its process; after half a minute if that was killed; and once no process has the file
of claims open.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from random import Random

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.cache.cache_files import is_full, translate_cache_errors
from tokenloom.storage.cache.cache_process import CacheProcess, ShardRequest
from tokenloom.storage.formats.blocks import ShardBlocks, blocks_name, decode_blocks
from tokenloom.storage.formats.records import sha256_of_bytes
from tokenloom.storage.formats.shard import ShardHeader, unpack_header
from tokenloom.storage.formats.shard_entries import MASK
from tokenloom.storage.stores.local_files import file_sha256
from tokenloom.storage.stores.store import MAX_TRANSFERS, Store, join_ranges

_REQUEST_BYTES = 4 * 2**20  # at most
_NUM_REQUESTS = 32  # at a time
_CLAIM_NS = 30 * 10**9  # how long a claim holds; a request takes seconds over a slow line
_POLL_SECONDS = 0.01  # between looks whether another thread has downloaded a block
_MAX_KNOWN = 512  # `.blocks` files that a process keeps in memory
_logger = logging.getLogger("tokenloom")


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


class PartialShard:
    """A shard or mask of which some blocks may be missing; several threads may use it.

    A slice of it is bytes of its tokens, or of their classes.

    Args:
        process: the files and counters of this process.
        request: the shard or mask.
        blocks: the checksums of its blocks.
        descriptors: of its file in the cache and of its claims; closed with this object.
    """

    def __init__(
        self, process: CacheProcess, request: ShardRequest, blocks: ShardBlocks, descriptors: tuple[int, int]
    ) -> None:
        self._process, self._request, self._blocks = process, request, blocks
        self._file, self._claims = descriptors
        for descriptor in descriptors:
            weakref.finalize(self, os.close, descriptor)
        with suppress(BlockingIOError):
            fcntl.flock(self._claims, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._claims, 0)  # nobody else has it open: its claims are those of ended processes
        fcntl.flock(self._claims, fcntl.LOCK_SH)
        self._claimed: set[range] = set()  # the claims of this process
        # A program's exit stops its threads in the middle of a download, and others would wait for them.
        weakref.finalize(self, _release, self._claims, self._claimed, os.getpid())
        self._verified: set[int] = set()  # the blocks that this process may read
        #: the URL of the shard, for messages; the path of its file, and that of the complete one
        self.place, self.path = request.place, process.files.partial_path(request.sha256)
        self.complete_path = process.files.path(request.sha256)
        self._first = self.shard_header().tokens_start if blocks.header else 0  # the byte where slices begin

    def shard_header(self) -> ShardHeader:
        """Return the header of a shard; a mask has none."""
        place = self._request.store.place(blocks_name(self._request.path))
        return unpack_header(memoryview(self._blocks.header), place)

    def is_complete(self) -> bool:
        """Return whether the cache holds all of the shard; raises the FormatError that its download ended with."""
        self._process.raise_damage(self._request.sha256)
        return self._process.holds(self._request)

    def missing(self, start: int, end: int) -> list[int]:
        """Return the blocks of the token bytes [start, end) that this process can't read yet."""
        first = self._first
        blocks = self._blocks.covering(first + start, first + end) if start < end else ()
        return [block for block in blocks if block not in self._verified]

    def __getitem__(self, part: slice[int, int, None]) -> bytes:
        """Return bytes of tokens or classes; download what is missing. Errors as `fetch_blocks`."""
        if blocks := self.missing(part.start, part.stop):
            fetch_blocks({self: blocks})
        data = os.pread(self._file, part.stop - part.start, self._first + part.start)
        if len(data) != part.stop - part.start:
            raise FormatError(f"{self.path}: the file was cut short while it was read; remove it")
        return data

    def offsets_bytes(self) -> bytes:
        """Return the bytes of a shard's document offsets, which follow the tokens; errors as `fetch_blocks`."""
        header = self.shard_header()
        return self[header.offsets_start - self._first : header.file_bytes - self._first]

    def runs(self, blocks: Iterable[int]) -> list[range]:
        """Return ascending blocks as runs of neighbours, each for one request: [1, 2, 3, 7] -> [1, 2, 3], [7]."""
        longest = max(1, _REQUEST_BYTES // self._blocks.block_bytes)
        return [range(*run) for run in join_ranges(((block, block + 1) for block in blocks), 0, longest)]

    def fetch(self, run: range) -> None:
        """Return once this process can read a run of blocks; errors as `fetch_blocks`."""
        while missing := [block for block in run if block not in self._verified]:
            if claimed := self._claim(missing):
                try:
                    self._fill(claimed)
                finally:
                    self._claimed.discard(claimed)
                    _write_claims(self._claims, claimed, 0)
            else:
                time.sleep(_POLL_SECONDS)

    def _claim(self, blocks: Iterable[int]) -> range | None:
        """Return a run of ascending blocks that nobody downloads, and claim it; None if there is none."""
        with self._process.lock:
            now = time.time_ns()
            free = (block for block in blocks if abs(now - self._claimed_at(block)) > _CLAIM_NS)
            claimed = next(iter(self.runs(free)), None)
            if claimed:
                self._claimed.add(claimed)
                _write_claims(self._claims, claimed, now)
            return claimed

    def _claimed_at(self, block: int) -> int:
        return int.from_bytes(os.pread(self._claims, 8, 8 * block), "little")

    def _fill(self, run: range) -> None:
        """Verify blocks, and download those that are not here, again if some arrive damaged."""
        missing = [block for block in run if not self._is_here(block)]
        for _ in range(MAX_TRANSFERS):
            if not missing:
                return
            missing = [block for part in self.runs(missing) for block in self._download(part)]
            self._process.count("failed_checks", int(bool(missing)))
        if missing:
            raise FormatError(
                f"{self.place}: block {missing[0]} does not have the checksum in {blocks_name(self._request.path)}, in "
                f"{MAX_TRANSFERS} downloads; the shard in the store is damaged; restore it"
            )

    def _is_here(self, block: int) -> bool:
        """Return whether the file holds a block, which this process may read then."""
        start, end = self._blocks.bounds(block, block + 1)
        if is_here := self._blocks.matches(block, os.pread(self._file, end - start, start)):
            self._verified.add(block)
        return is_here

    def _download(self, run: range) -> list[int]:
        """Download blocks in one request; return those that arrived damaged."""
        start, end = self._blocks.bounds(run.start, run.stop)
        try:
            data = memoryview(self._request.store.read_range(self._request.path, start, end))
        except FileNotFoundError as error:
            raise _missing(self.place) from error
        self._process.count("bytes_downloaded", len(data))
        length, damaged = self._blocks.block_bytes, []
        for place, block in enumerate(run):
            part = data[place * length : (place + 1) * length]
            if self._blocks.matches(block, part):
                self._write(part, start + place * length)
                self._verified.add(block)
            else:
                damaged.append(block)
        return damaged

    def _write(self, data: memoryview, position: int) -> None:
        files = self._process.files
        with translate_cache_errors(files.folder):
            try:
                write_at(self._file, data, position)
            except OSError as error:
                if not is_full(error):
                    raise
                _logger.warning("%s: the disk is full; removing all cached shards", files.folder)
                files.remove_all()
                write_at(self._file, data, position)

    def complete(self) -> None:
        """Download all missing blocks, and give the file its name; the caller holds the shard's lock.

        Raises FormatError if the SHA-256 of the shard is not the one listed.
        """
        runs = self.runs(range(self._blocks.num_blocks))
        for run in Random().sample(runs, len(runs)):
            fetch_blocks({self: [block for block in run if not self._is_here(block)]})
        with os.fdopen(os.dup(self._file), "rb") as file:
            sha256 = file_sha256(file)
        if sha256 != self._request.sha256:
            self._process.files.remove_partial(self._request.sha256)
            raise FormatError(
                f"{self.place}: its SHA-256 is not the one listed, although its blocks have the checksums in "
                f"{blocks_name(self._request.path)}: the program that wrote the version has a bug"
            )
        self._process.files.complete(self._request.sha256, self._file)
        self._process.count("downloads")


def _write_claims(descriptor: int, run: range, time_ns: int) -> None:
    with suppress(OSError):  # the disk is full, say
        os.pwrite(descriptor, time_ns.to_bytes(8, "little") * len(run), 8 * run.start)


def _release(descriptor: int, claimed: set[range], pid: int) -> None:
    """End the claims of a process; a forked child, which has a copy of them, ends none."""
    for run in list(claimed) if os.getpid() == pid else ():
        _write_claims(descriptor, run, 0)


def _missing(place: str) -> StoreError:
    return StoreError(f"{place}: missing from a published version; restore it")


def write_at(descriptor: int, data: memoryview, position: int) -> None:
    """Write all of `data` to a file; raises OSError."""
    while len(data):
        num_written = os.pwrite(descriptor, data, position)
        data, position = data[num_written:], position + num_written


def fetch_blocks(wanted: Mapping[PartialShard, Collection[int]]) -> None:
    """Return once this process can read these ascending blocks of shards; download what is missing, in parallel.

    The requests are made in random order, so that processes that need the same blocks begin with different ones.

    Raises:
        FormatError: a block repeatedly has another checksum.
        StoreError: the store can't be read, or the cache can't be written.
    """
    calls = [partial(shard.fetch, run) for shard, blocks in wanted.items() for run in shard.runs(blocks)]
    if len(calls) == 1:
        calls[0]()
    else:
        start_calls(Random().sample(calls, len(calls)), _NUM_REQUESTS)()


def start_calls(calls: Iterable[Callable[[], object]], num_threads: int) -> Callable[[], None]:
    """Make calls in threads that a program's exit does not wait for; return a function that waits for all of them.

    It raises the first error, after which no further call begins. (The threads of an executor would be joined at exit
    before anything can tell them that the program ends.)
    """
    calls, errors = list(calls), []
    left = iter(calls)  # the next of a list's iterator is one step of the interpreter

    def work() -> None:
        for call in left:
            try:
                call()
            except BaseException as error:  # noqa: BLE001  (`wait` raises it)
                errors.append(error)
            if errors:
                return

    def wait() -> None:
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    count = min(num_threads, len(calls))
    threads = [threading.Thread(target=work, daemon=True, name="tokenloom-blocks") for _ in range(count)]
    for thread in threads:
        thread.start()
    return wait
