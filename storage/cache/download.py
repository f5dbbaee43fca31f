"""Downloads of whole shards into the cache: each is checked, and repeated if it arrives damaged."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from filelock import Timeout

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.cache.cache_files import POLL_SECONDS, CacheFiles, is_full
from tokenloom.storage.cache.partial_file import add_holder, close_holders
from tokenloom.storage.cache.partial_shard import PartialShard
from tokenloom.storage.cache.shard_request import ShardRequest
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.time_limit import is_ending

_MAX_DOWNLOADS = 3  # of one file that arrives damaged
_WAIT_SECONDS = 0.05  # between attempts to reserve space
_LOG_SECONDS = 60.0  # between log messages of a wait
_logger = logging.getLogger("tokenloom")


class CacheProcess:
    """The counters and queued downloads of one process; a forked child starts with empty ones."""

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self.files = CacheFiles(folder, limit_bytes)
        self.lock = threading.Lock()
        self.counters: Counter[str] = Counter()
        self.queue: dict[str, ShardRequest] = {}
        self.running: set[str] = set()  # those that a thread has taken from the queue
        self.failed: dict[str, tuple[ShardRequest, Exception]] = {}  # downloads ahead, until they are queued again
        self.num_threads = 0
        self.partials: dict[str, PartialShard] = {}  # by SHA-256, the most recently used one last
        self.whole: set[str] = set()  # SHA-256 of shards without a usable `.blocks` file
        self.logged: set[tuple[str, str]] = set()
        add_holder(self)

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter."""
        with self.lock:
            self.counters[name] += number

    def next_request(self) -> ShardRequest | None:
        """Take the next shard from the queue, those first whose blocks are in use; None if a thread must end."""
        with self.lock:
            if not self.queue or is_ending():
                self.num_threads -= 1
                return None
            request = self.queue.pop(
                next((name for name in list(self.partials) if name in self.queue), next(iter(self.queue)))
            )
            self.running.add(request.sha256)
            return request

    def take_failed(self) -> list[ShardRequest]:
        """Return the shards whose download ahead failed, and forget that."""
        with self.lock:
            failed, self.failed = self.failed, {}
            return [request for request, _ in failed.values()]

    def check_room(self, num_bytes: int) -> None:
        """Raise StoreError if `num_bytes` more can't fit because of partial shards whose download failed."""
        limit = self.files.limit_bytes
        partials = {name: shard for name, shard in list(self.partials.items()) if shard.is_open}
        reserved = sum(shard.num_bytes for shard in partials.values())
        if limit is None or reserved + num_bytes <= limit:
            return
        with self.lock:
            if self.queue or self.running:
                return
            error = next((error for name, (_, error) in self.failed.items() if name in partials), None)
        if error is not None:
            raise StoreError(str(error)) from error

    def partial(self, sha256: str) -> PartialShard | None:
        """Return a shard that this process reads by blocks, as the most recently used one; forget those that ended."""
        with self.lock:
            for name, shard in list(self.partials.items()):
                if not shard.is_open:
                    self.partials.pop(name, None)
            if (found := self.partials.pop(sha256, None)) is not None:
                self.partials[sha256] = found
            return found

    def forget_oldest(self, num_kept: int) -> None:
        """Forget the shards that are read by blocks, but for the most recently used ones; those in use stay open."""
        for name in list(self.partials)[: max(0, len(self.partials) - num_kept)]:
            self.partials.pop(name, None)

    def close_all(self) -> bool:
        """Forget the shards that nobody completes; return whether there were any. See Holder."""
        idle = [name for name, shard in list(self.partials.items()) if shard.only_blocks]
        for name in idle:
            self.partials.pop(name, None)
        return bool(idle)

    def read_whole(self, request: ShardRequest, error: Exception) -> None:
        """Note that a shard has no usable `.blocks` file, and say so in the log once for each folder and reason."""
        self.whole.add(request.sha256)
        folder = request.place.rpartition("/")[0]
        reason = "no .blocks files" if isinstance(error, FileNotFoundError) else str(error)
        with self.lock:
            is_new = (folder, reason) not in self.logged
            self.logged.add((folder, reason))
        if is_new and not is_ending():  # then its requests fail for that reason
            _logger.warning(
                "%s: %s; its shards are read whole; `tokenloom verify --write-blocks` writes the files", folder, reason
            )

    def holds(self, request: ShardRequest) -> bool:
        """Return whether the cache holds a complete file of that name and length now."""
        return self.files.num_bytes(request.sha256) == request.num_bytes

    @contextmanager
    def locked(self, sha256: str, check_running: Callable[[], None]) -> Iterator[None]:
        """Hold the lock of a shard; callers that wait for it find the file that the holder downloaded."""
        lock, logged_at = self.files.shard_lock(sha256), time.monotonic()
        while True:
            check_running()
            try:
                lock.acquire(timeout=1, poll_interval=POLL_SECONDS)
                break
            except Timeout:
                if time.monotonic() - logged_at > _LOG_SECONDS:
                    logged_at = time.monotonic()
                    _logger.warning("%s: waiting for another process to download it", lock.lock_file)
        try:
            yield
        finally:
            lock.release()


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
        self._folder, self._logged_at = process.files.folder, time.monotonic()

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
        if time.monotonic() - self._logged_at > _LOG_SECONDS:
            self._logged_at = time.monotonic()
            _logger.warning("%s: waiting for space: other downloads take up the whole limit", self._folder)
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
