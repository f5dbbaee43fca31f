"""Downloads of whole shards into the cache: each is checked, and repeated if it arrives damaged."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.cache.cache_files import is_full
from tokenloom.storage.cache.cache_process import CacheProcess
from tokenloom.storage.cache.partial_file import close_holders
from tokenloom.storage.cache.shard_request import ShardRequest
from tokenloom.storage.cache.wait_log import WaitLog
from tokenloom.storage.stores import local_files

_MAX_DOWNLOADS = 3  # of one file that arrives damaged
_WAIT_SECONDS = 0.05  # between attempts to reserve space
_logger = logging.getLogger("tokenloom")


class NoRoom(Exception):
    """A download ahead of use finds no space."""


class Caller(NamedTuple):
    """Who asks for a download: `check_running` is called again and again, and what it raises ends the download.

    `needs_it_now` is False for a thread that downloads ahead of use.
    """

    check_running: Callable[[], None]
    needs_it_now: bool


class RoomWait:
    """Waits for space in a cache, and says so in the log if that takes long."""

    def __init__(self, process: CacheProcess, caller: Caller) -> None:
        self._process, self._caller = process, caller
        self._log = WaitLog()

    def wait(self, num_bytes: int) -> None:
        """Wait a moment, after an attempt that found no space for `num_bytes`.

        Raises NoRoom ahead of use if this process has partial shards: its threads must complete them to free space.
        Raises StoreError if none of them will.
        """
        self._caller.check_running()
        if self._process.partials and not self._caller.needs_it_now:
            raise NoRoom
        if close_holders():
            return
        self._process.check_room(num_bytes)
        if self._log.is_due:
            what = f"{num_bytes:,} bytes of space, which other readers of this cache take up"
            self._log.write(self._process.files.folder, what, "raise its limit: TOKENLOOM_CACHE_LIMIT")
        time.sleep(_WAIT_SECONDS)


class Download:
    """One download of a file into the cache; the caller holds the file's lock.

    Args:
        process: the files and counters of this process.
        request: the file to download.
        caller: who asks for it.
    """

    def __init__(self, process: CacheProcess, request: ShardRequest, caller: Caller) -> None:
        self._process, self._files = process, process.files
        self._request, self._check_running = request, caller.check_running
        self._room = RoomWait(process, caller)

    def run(self) -> None:
        """Put the file into the cache."""
        if self._files.remove(self._request.sha256):
            self._process.count("failed_checks")
        try:
            self._download_verified()
        except OSError as error:
            if not is_full(error):
                raise
            _logger.warning("%s: the disk is full; removing all cached shards", self._files.folder)
            self._files.remove_all()
            self._download_verified()

    def _download_verified(self) -> None:
        place = self._request.place
        for _ in range(_MAX_DOWNLOADS):
            partial = self._reserved()
            try:
                problem = self._fill(partial)
                if not problem:
                    partial.replace(self._files.path(self._request.sha256))
                    self._process.count("downloads")
                    return
            finally:
                partial.unlink(missing_ok=True)
            self._process.count("failed_checks")
            _logger.warning("%s: %s; downloading it again", place, problem)
        raise FormatError(
            f"{place}: {problem}, in {_MAX_DOWNLOADS} downloads; the file in the store is damaged; restore it"
        )

    def _reserved(self) -> Path:
        """Wait for space; return a new file to download into."""
        while (partial := self._files.reserve(self._request.sha256, self._request.num_bytes)) is None:
            self._room.wait(self._request.num_bytes)
        return partial

    def _fill(self, partial: Path) -> str:
        """Download into `partial`; return the problem of the received bytes, "" if they are correct."""
        listed = self._request.num_bytes
        digest, num_bytes = hashlib.sha256(), 0
        with partial.open("r+b") as file:
            try:
                for block in self._blocks():
                    self._check_running()
                    num_bytes += len(block)
                    if num_bytes > listed:
                        return f"it is longer than the {listed:,} bytes listed"
                    local_files.write_all(file, block)
                    digest.update(block)
                    self._process.count("bytes_downloaded", len(block))
            except FormatError as error:  # a shorter file has replaced it
                return str(error)
        if num_bytes != listed:
            return f"{num_bytes:,} bytes, {listed:,} are listed"
        return "" if digest.hexdigest() == self._request.sha256 else "its SHA-256 is not the one listed"

    def _blocks(self) -> Iterator[memoryview]:
        try:
            yield from self._request.store.blocks(self._request.path)
        except FileNotFoundError as error:
            raise StoreError(f"{self._request.place}: missing from a published version; restore it") from error
