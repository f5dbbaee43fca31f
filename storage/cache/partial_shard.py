"""Shards that are downloaded by blocks: first those that the next rows need, then the rest.

Each block is verified by its own checksum before it can be read, and the whole shard by its SHA-256 before it gets its
name in the cache. All processes of a machine share the blocks, so each is downloaded once.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.cache.cache_files import CacheFiles, is_full, translate_cache_errors
from tokenloom.storage.cache.partial_file import COMPLETE, DAMAGED, PartialFile
from tokenloom.storage.cache.requests import Requests
from tokenloom.storage.cache.shard_request import ShardRequest
from tokenloom.storage.cache.wait_log import WaitLog, name_process
from tokenloom.storage.formats.blocks import ShardBlocks, blocks_name, decode_blocks
from tokenloom.storage.formats.shard import OFFSETS_START
from tokenloom.storage.stores.local_files import open_regular

_REQUEST_BYTES = 4 * 2**20  # at most
_NUM_REQUESTS = 32  # at a time
_MAX_DOWNLOADS = 3  # of a block that arrives damaged
_POLL_SECONDS = 0.005  # between looks whether another process has downloaded a block
_PATIENCE_SECONDS = 60.0  # then a process that downloads a block is taken to be stopped


def read_blocks(request: ShardRequest) -> ShardBlocks:
    """Return the `.blocks` file of a shard.

    Raises:
        FileNotFoundError: there is none.
        FormatError: it is damaged, or belongs to another shard.
        StoreError: it can't be read.
    """
    name = blocks_name(request.path)
    place = request.store.place(name)
    blocks = decode_blocks(request.store.read(name), place)
    if (blocks.sha256, blocks.num_bytes) != (request.sha256, request.num_bytes):
        raise FormatError(f"{place}: it does not belong to the shard that the manifest lists")
    return blocks


class PartialShard:
    """A shard of which this machine has some blocks; several threads may use it.

    Args:
        files: the files of the cache.
        count: adds to a counter of this process.
        request: the shard.
        file: its blocks on this machine.
    """

    def __init__(
        self, files: CacheFiles, count: Callable[[str, int], None], request: ShardRequest, file: PartialFile
    ) -> None:
        self._files, self._count, self._request, self._file = files, count, request, file
        self.path, self._blocks = file.path, file.blocks

    @property
    def place(self) -> str:
        """The URL of the shard, for messages."""
        return self._request.place

    @property
    def only_blocks(self) -> bool:
        """Whether nobody downloads the rest of it."""
        return self._request.only_blocks

    @property
    def num_bytes(self) -> int:
        """Its length, which its file reserves."""
        return self._blocks.num_bytes

    @property
    def complete_path(self) -> Path:
        """Where the file is once it is complete."""
        return self._files.path(self._blocks.sha256)

    @property
    def is_open(self) -> bool:
        """Whether it still waits for blocks, and nobody has removed its file."""
        return self._file.is_open

    @property
    def is_complete(self) -> bool:
        """Whether all bytes are here and the SHA-256 is that of the manifest."""
        return self._file.status == COMPLETE

    @property
    def is_damaged(self) -> bool:
        """Whether all bytes are here and the SHA-256 is another one."""
        return self._file.status == DAMAGED

    def missing(self, start: int, end: int) -> list[int]:
        """Return the blocks of the bytes [start, end) that can't be read yet."""
        return self._file.missing(self._blocks.covering(start, end)) if start < end else []

    def still_missing(self, blocks: Iterable[int]) -> list[int]:
        """Return which of these blocks can't be read yet."""
        return self._file.missing(blocks)

    def claim(self, blocks: Iterable[int]) -> list[range]:
        """Return runs of blocks that the caller must download, then `release`; others download the rest."""
        return self.runs(self._file.claim(blocks))

    def runs(self, blocks: list[int]) -> list[range]:
        """Return ascending blocks as runs, each for one request."""
        return list(_runs(blocks, max(1, _REQUEST_BYTES // self._blocks.block_bytes)))

    def owner(self, block: int) -> int | None:
        """Return the process that downloads a block, None if it is unknown."""
        return self._file.owner(block)

    def release(self, run: range) -> None:
        """Give up the claim to a run of blocks."""
        self._file.release(run)

    def download(self, run: range) -> None:
        """Download those of a run of claimed blocks that an earlier process has not left; errors as `fetch_blocks`."""
        wrong = [block for block in run if not self._file.is_proven(block)]
        for _ in range(_MAX_DOWNLOADS):
            if not wrong:
                return
            wrong = self._download(range(wrong[0], wrong[-1] + 1))
            self._count("failed_checks", int(bool(wrong)))
        if wrong:
            raise FormatError(
                f"{self.place}: block {wrong[0]} does not have the checksum in {blocks_name(self._request.path)}, in "
                f"{_MAX_DOWNLOADS} downloads; one of the files is damaged: `tokenloom verify` finds out which"
            )

    def _download(self, run: range) -> list[int]:
        """Download blocks in one request; return those that arrived damaged."""
        start, end = self._blocks.bounds(run.start, run.stop)
        try:
            data = memoryview(self._request.store.read_range(self._request.path, start, end))
        except FileNotFoundError as error:
            raise StoreError(f"{self.place}: missing from a published version; restore it") from error
        self._count("bytes_downloaded", len(data))
        length = self._blocks.block_bytes
        return [block for i, block in enumerate(run) if not self._put(block, data[i * length : (i + 1) * length])]

    def _put(self, block: int, data: memoryview) -> bool:
        try:
            return self._file.put(block, data)
        except OSError as error:
            if not is_full(error):
                raise
            self._files.remove_all()
            with translate_cache_errors(self._files.folder):
                return self._file.put(block, data)

    def fetch_offsets(self) -> None:
        """Download the document offsets; errors as fetch_blocks."""
        num_bytes = self._blocks.num_bytes
        start = int.from_bytes(self._blocks.header[OFFSETS_START : OFFSETS_START + 8], "little")
        fetch_blocks([(self, self._blocks.covering(min(start, num_bytes - 1), num_bytes))])

    def complete(self, check_running: Callable[[], None]) -> None:
        """Download all missing blocks, and give the file its name; the caller holds the shard's lock.

        Raises FormatError if the SHA-256 of the shard is not the one listed.
        """
        per_request = max(1, _REQUEST_BYTES // self._blocks.block_bytes)
        everything = range(self._blocks.num_blocks)
        for first in range(0, len(everything), per_request):
            check_running()
            fetch_blocks([(self, everything[first : first + per_request])])
        with open_regular(self.path) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self._files.end_partial(self._file, sha256 == self._request.sha256)
        if self.is_damaged:
            raise FormatError(self.why_damaged)
        self._count("downloads", 1)

    @property
    def why_damaged(self) -> str:
        """What is wrong, and what to do."""
        return (
            f"{self.place}: its SHA-256 is not the one listed, although its blocks have the checksums in "
            f"{blocks_name(self._request.path)}; restore both files"
        )


def fetch_blocks(wanted: Iterable[tuple[PartialShard, Iterable[int]]]) -> None:
    """Return once these blocks of shards can be read; download those that nobody downloads, several at a time.

    Also those that another process claims and does not bring within a minute: it may be stopped. Their bytes are
    verified, so it does not matter who writes them, or whether both do.

    Raises:
        FormatError: a block repeatedly has another checksum.
        StoreError: the store can't be read.
    """
    waiting, wait, num_missing = list(wanted), WaitLog(), -1
    while waiting := [(shard, left) for shard, blocks in waiting if (left := shard.still_missing(blocks))]:
        runs: list[tuple[PartialShard, range]] = []
        if num_missing != (num_missing := sum(len(left) for _, left in waiting)):
            wait = WaitLog()  # somebody makes progress
        try:
            for shard, blocks in waiting:
                runs += [(shard, run) for run in shard.claim(blocks)]
            if runs:
                _download_all(runs)
            elif wait.seconds < _PATIENCE_SECONDS:
                _wait_for_others(waiting, wait)
            else:
                _download_all([(shard, run) for shard, blocks in waiting for run in shard.runs(blocks)])
        finally:
            for shard, run in runs:
                shard.release(run)


def _wait_for_others(waiting: list[tuple[PartialShard, list[int]]], wait: WaitLog) -> None:
    if wait.is_due:
        shard, blocks = waiting[0]
        wait.write(shard.place, f"{name_process(shard.owner(blocks[0]))} to download block {blocks[0]}")
    time.sleep(_POLL_SECONDS)


def _download_all(runs: list[tuple[PartialShard, range]]) -> None:
    if len(runs) == 1:
        runs[0][0].download(runs[0][1])
    else:
        Requests([partial(shard.download, run) for shard, run in runs], _NUM_REQUESTS).wait()


def _runs(blocks: list[int], most: int) -> Iterator[range]:
    """Yield ascending blocks as runs of neighbours, each of at most `most`: [1, 2, 3, 7], 2 -> [1, 2], [3], [7]."""
    first = 0
    for i in range(1, len(blocks) + 1):
        if i == len(blocks) or blocks[i] != blocks[i - 1] + 1 or i - first == most:
            yield range(blocks[first], blocks[i - 1] + 1)
            first = i
