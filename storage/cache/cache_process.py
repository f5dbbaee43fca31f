"""What one process knows of a cache: its counters, its downloads ahead of use, and the shards it reads by blocks."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import Timeout

from tokenloom.errors import StoreError
from tokenloom.storage.cache.cache_files import POLL_SECONDS, CacheFiles
from tokenloom.storage.cache.partial_file import add_holder
from tokenloom.storage.cache.partial_shard import PartialShard
from tokenloom.storage.cache.shard_request import ShardRequest
from tokenloom.storage.cache.wait_log import WaitLog, name_process
from tokenloom.storage.formats.blocks import UPDATE
from tokenloom.storage.stores.time_limit import is_ending

_LOG_SECONDS = 60.0  # between messages that downloads ahead fail
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
        self._failure_logged_at = -_LOG_SECONDS
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

    def add_failed(self, request: ShardRequest, error: Exception) -> None:
        """Note that a download ahead failed, and say so in the log at most once a minute: one cause may stop many."""
        with self.lock:
            self.failed[request.sha256] = request, error
            now = time.monotonic()
            if is_ending() or now - self._failure_logged_at < _LOG_SECONDS:
                return
            self._failure_logged_at = now
        _logger.warning("ahead of use: %s; the download is retried on first use, as others that fail meanwhile", error)

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
            advice = "" if reason.endswith(UPDATE) else "; `tokenloom verify --write-blocks` writes the files"
            _logger.warning("%s: %s; its shards are read whole%s", folder, reason, advice)

    def holds(self, request: ShardRequest) -> bool:
        """Return whether the cache holds a complete file of that name and length now."""
        return self.files.num_bytes(request.sha256) == request.num_bytes

    @contextmanager
    def locked(self, sha256: str, check_running: Callable[[], None]) -> Iterator[None]:
        """Hold the lock of a shard; callers that wait for it find the file that the holder downloaded."""
        lock, wait = self.files.shard_lock(sha256), WaitLog()
        while True:
            check_running()
            try:
                lock.acquire(timeout=1, poll_interval=POLL_SECONDS)
                break
            except Timeout:
                if wait.is_due:
                    who = name_process(self.files.downloader(sha256))
                    wait.write(lock.lock_file, f"{who} to download this shard")
        try:
            yield
        finally:
            lock.release()
