"""What one process knows of a cache: its counters, its downloads ahead of use, and those that ended with damage."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from filelock import Timeout

from tokenloom.errors import FormatError
from tokenloom.storage.cache.cache_files import CacheFiles
from tokenloom.storage.stores.remote_errors import is_ending
from tokenloom.storage.stores.store import Store

_LOCK_POLL_SECONDS = 0.02  # between attempts to take the lock of a shard
_FIRST_LOG_SECONDS = 10.0  # until the log says what a thread waits for
_LOG_SECONDS = 60.0  # between messages about one wait, or about failed downloads ahead
_logger = logging.getLogger("tokenloom")


class ShardRequest(NamedTuple):
    """A shard of a remote store with its SHA-256 in hexadecimal and its length, as a manifest lists it.

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
        self.queue: dict[str, ShardRequest] = {}  # by SHA-256
        self.running: set[str] = set()  # those that a thread has taken from the queue
        self.num_threads = 0
        self.damaged: dict[str, FormatError] = {}  # by SHA-256, until the error is raised
        self._failure_logged_at = -_LOG_SECONDS

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter."""
        with self.lock:
            self.counters[name] += number

    def holds(self, request: ShardRequest) -> bool:
        """Return whether the cache holds a complete file of that name and length now."""
        return self.files.num_bytes(request.sha256) == request.num_bytes

    def next_request(self) -> ShardRequest | None:
        """Take the next shard from the queue; None if a thread must end."""
        with self.lock:
            if not self.queue or is_ending():
                self.num_threads -= 1
                return None
            request = self.queue.pop(next(iter(self.queue)))
            self.running.add(request.sha256)
            return request

    def add_failed(self, request: ShardRequest, error: Exception) -> None:
        """Say in the log that a download ahead failed, at most once a minute: one cause may stop many."""
        with self.lock:
            if isinstance(error, FormatError):
                self.damaged[request.sha256] = error
            now = time.monotonic()
            if is_ending() or now - self._failure_logged_at < _LOG_SECONDS:
                return
            self._failure_logged_at = now
        _logger.warning("ahead of use: %s; the download is retried on first use, as others that fail meanwhile", error)

    def raise_damage(self, sha256: str) -> None:
        """Raise the FormatError that the last download ahead of a shard ended with, once."""
        if error := self.damaged.pop(sha256, None):
            raise error

    @contextmanager
    def locked(self, sha256: str) -> Iterator[None]:
        """Hold the lock of a shard; callers that wait for it find the file that the holder downloaded."""
        lock = self.files.shard_lock(sha256)
        waits = polls(_LOCK_POLL_SECONDS, f"{lock.lock_file}: waiting for another process to download this shard")
        while not lock.is_locked:
            next(waits)
            with suppress(Timeout):
                lock.acquire(timeout=0)
        try:
            yield
        finally:
            lock.release()


def polls(seconds: float, what: str) -> Iterator[None]:
    """Yield every `seconds` without an end; write `what` to the log after ten seconds, then every minute."""
    began = time.monotonic()
    log_at = began + _FIRST_LOG_SECONDS
    while True:
        yield
        if time.monotonic() >= log_at:
            log_at += _LOG_SECONDS
            _logger.warning("%s, %.0f s so far", what, time.monotonic() - began)
        time.sleep(seconds)
