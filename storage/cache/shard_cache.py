"""A size-limited cache of remote shards on a local disk, shared by all processes and jobs of a machine.

Files are named by their SHA-256, so datasets and stores share them. A file appears under its name once it is complete
and its SHA-256 is correct. Afterwards its length is checked on each use; its reader checks the shard's own checksums
and calls `discard` if they are wrong. cache_files.py describes the folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from filelock import Timeout

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.cache.cache_files import POLL_SECONDS, CacheFiles, is_full, mark_used, translate_cache_errors
from tokenloom.storage.cache.cache_settings import default_cache_folder, default_limit
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.local_files import file_sha256
from tokenloom.storage.stores.store import Store
from tokenloom.storage.stores.time_limit import is_ending

_MAX_DOWNLOADS = 3  # of one file that arrives damaged
_WAIT_SECONDS = 0.05  # between attempts to reserve space
_LOG_SECONDS = 60.0  # between log messages of a wait
_STATISTICS = ("hits", "downloads", "bytes_downloaded", "evictions", "failed_checks")
_logger = logging.getLogger("tokenloom")


class ShardRequest(NamedTuple):
    """A file of a remote store with its SHA-256 in hexadecimal and its length, as a manifest lists it."""

    store: Store
    path: str
    sha256: str
    num_bytes: int


class _ProgramEnding(Exception):
    """The program ends, so a download ahead of use is abandoned."""


class _Process:
    """The counters and queued downloads of one process; a forked child starts with empty ones."""

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self.files = CacheFiles(folder, limit_bytes)
        self.lock = threading.Lock()
        self.counters: Counter[str] = Counter()
        self.queue: dict[str, ShardRequest] = {}
        self.num_threads = 0

    def count(self, name: str, number: int = 1) -> None:
        with self.lock:
            self.counters[name] += number


class ShardCache:
    """Local copies of remote shards. Pickles small, is safe in several threads, and works after a fork.

    Args:
        folder: of the cache; other files in it are never touched.
        limit_bytes: of shards and running downloads together, at least one shard; None for no limit. Each of several
            jobs with different limits keeps to its own when it downloads.
        io_threads: concurrent downloads ahead of use, at least 1.
    """

    def __init__(self, folder: Path, limit_bytes: int | None = None, *, io_threads: int = 4) -> None:
        for name, value in (("limit_bytes", limit_bytes), ("io_threads", io_threads)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.folder, self.limit_bytes, self.io_threads = Path(folder), limit_bytes, io_threads
        self._processes: dict[int, _Process] = {}

    @classmethod
    def default(cls) -> ShardCache:
        """Return the cache in TOKENLOOM_CACHE, limited to TOKENLOOM_CACHE_LIMIT bytes, such as "50 GB" or "50GiB".

        The limit defaults to 100 GB, or to 80 % of its file system's free space if that is less; the bytes in the cache
        count as free.
        """
        folder = default_cache_folder()
        return cls(folder, default_limit(folder))

    def __repr__(self) -> str:
        limit = "no limit" if self.limit_bytes is None else f"{self.limit_bytes:,} bytes"
        return f"ShardCache({str(self.folder)!r}): {limit}"

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_processes": {}}

    def stats(self) -> dict[str, int]:
        """Return counts of this process: hits, downloads, bytes_downloaded, evictions, failed_checks."""
        process = self._process()
        return {name: process.counters[name] for name in _STATISTICS} | {"evictions": process.files.num_evicted}

    def fetch(self, store: Store, path: str, sha256: str, num_bytes: int, *, verify: bool = False) -> Path:
        """Return the local path of a file of the store; download it first if it is not in the cache.

        Open it at once: another process may remove it to free space. A memory map of it stays valid after that.

        Args:
            store: of the file.
            path: of the file in the store.
            sha256: of the file, in hexadecimal.
            num_bytes: its length.
            verify: also check the SHA-256 of a file that is already in the cache.

        Raises:
            StoreError: the store cannot be read, the cache cannot be written, or the file exceeds the limit.
            FormatError: the store's file differs from the one listed.
        """
        return self._fetch(ShardRequest(store, path, sha256, num_bytes), verify, lambda: None)

    def ahead(self, requests: Iterable[tuple[Store, str, str, int]]) -> None:
        """Start to download files in the given order on `io_threads` threads; return at once.

        Failures are logged; a later `fetch` retries and raises. Queued downloads are dropped when the program ends.
        """
        process = self._process()
        with process.lock:
            process.queue |= {request.sha256: request for request in map(ShardRequest._make, requests)}
            num_new = max(0, min(self.io_threads - process.num_threads, len(process.queue)))
            process.num_threads += num_new
        for _ in range(num_new):
            try:
                threading.Thread(target=self._work, args=(process,), name="tokenloom-cache").start()
            except RuntimeError:  # the program ends, or has reached its limit of threads: fetch() downloads
                with process.lock:
                    process.num_threads -= 1

    def holds(self, sha256: str, num_bytes: int) -> bool:
        """Return whether the cache holds a complete file of that name and length now."""
        return self._process().files.num_bytes(sha256) == num_bytes

    def discard(self, sha256: str) -> None:
        """Remove a file that its reader found damaged; the next fetch() downloads it again."""
        process = self._process()
        process.files.path(sha256)
        with translate_cache_errors(self.folder):
            process.files.prepare()
            with self._locked(process, sha256, lambda: None):
                if process.files.remove(sha256):
                    process.count("failed_checks")

    def _process(self) -> _Process:
        pid = os.getpid()
        if pid not in self._processes:
            process = _Process(self.folder, self.limit_bytes)
            process.files.check_format()
            self._processes.setdefault(pid, process)
        return self._processes[pid]

    def _fetch(self, request: ShardRequest, verify: bool, check_running: Callable[[], None]) -> Path:
        process = self._process()
        path = process.files.path(request.sha256)
        if not self._is_good(process, request, verify):
            with translate_cache_errors(self.folder):
                process.files.prepare()
                with self._locked(process, request.sha256, check_running):
                    if not self._is_good(process, request, verify):
                        self._download(process, request, check_running)
                        return path
        mark_used(path)
        process.count("hits")
        return path

    def _is_good(self, process: _Process, request: ShardRequest, verify: bool) -> bool:
        found = process.files.num_bytes(request.sha256)
        if found != request.num_bytes or not verify:
            return found == request.num_bytes
        try:
            with process.files.path(request.sha256).open("rb") as file:
                return file_sha256(file) == request.sha256
        except FileNotFoundError:  # another process has just removed it
            return False

    @contextmanager
    def _locked(self, process: _Process, sha256: str, check_running: Callable[[], None]) -> Iterator[None]:
        """Hold the lock of a shard; callers that wait for it find the file that the holder downloaded."""
        lock, logged_at = process.files.shard_lock(sha256), time.monotonic()
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

    def _download(self, process: _Process, request: ShardRequest, check_running: Callable[[], None]) -> None:
        """Put a file into the cache; the caller holds its lock."""
        if process.files.remove(request.sha256):
            process.count("failed_checks")
        try:
            self._download_verified(process, request, check_running)
        except OSError as error:
            if not is_full(error):
                raise
            _logger.warning("%s: the disk is full; removing all cached shards", self.folder)
            process.files.remove_all()
            self._download_verified(process, request, check_running)

    def _download_verified(self, process: _Process, request: ShardRequest, check_running: Callable[[], None]) -> None:
        place = request.store.place(request.path)
        for _ in range(_MAX_DOWNLOADS):
            partial = self._reserved(process, request, check_running)
            try:
                problem = self._fill(process, partial, request, check_running)
                if not problem:
                    partial.replace(process.files.path(request.sha256))
                    process.count("downloads")
                    return
            finally:
                partial.unlink(missing_ok=True)
            process.count("failed_checks")
            _logger.warning("%s: %s; downloading it again", place, problem)
        raise FormatError(
            f"{place}: {problem}, in {_MAX_DOWNLOADS} downloads; the file in the store is damaged; restore it"
        )

    def _reserved(self, process: _Process, request: ShardRequest, check_running: Callable[[], None]) -> Path:
        """Wait for space; return a new file to download into."""
        logged_at = time.monotonic()
        while (partial := process.files.reserve(request.sha256, request.num_bytes)) is None:
            check_running()
            if time.monotonic() - logged_at > _LOG_SECONDS:
                logged_at = time.monotonic()
                _logger.warning("%s: waiting for space: other downloads take up the whole limit", self.folder)
            time.sleep(_WAIT_SECONDS)
        return partial

    def _fill(self, process: _Process, partial: Path, request: ShardRequest, check_running: Callable[[], None]) -> str:
        """Download into `partial`; return the problem of the received bytes, "" if they are correct."""
        digest, num_bytes = hashlib.sha256(), 0
        with partial.open("r+b") as file:
            try:
                for block in _blocks(request):
                    check_running()
                    num_bytes += len(block)
                    if num_bytes > request.num_bytes:
                        return f"it is longer than the {request.num_bytes:,} bytes listed"
                    local_files.write_all(file, block)
                    digest.update(block)
                    process.count("bytes_downloaded", len(block))
            except FormatError as error:  # a shorter file has replaced it
                return str(error)
        if num_bytes != request.num_bytes:
            return f"{num_bytes:,} bytes, {request.num_bytes:,} are listed"
        return "" if digest.hexdigest() == request.sha256 else "its SHA-256 is not the one listed"

    def _work(self, process: _Process) -> None:
        """Download the queued files, then end: an idle thread would delay the program's exit."""
        while True:
            with process.lock:
                if not process.queue or is_ending():
                    process.num_threads -= 1
                    return
                request = process.queue.pop(next(iter(process.queue)))
            try:
                self._fetch_ahead(process, request)
            except Exception as error:  # noqa: BLE001  (fetch() raises it where the file is needed)
                if not is_ending():
                    _logger.warning("ahead of use: %s; the download is retried on first use", error)

    def _fetch_ahead(self, process: _Process, request: ShardRequest) -> None:
        if not self._is_good(process, request, False):
            self._fetch(request, False, _unless_ending)


def _blocks(request: ShardRequest) -> Iterator[memoryview]:
    try:
        yield from request.store.blocks(request.path)
    except FileNotFoundError as error:
        place = request.store.place(request.path)
        raise StoreError(f"{place}: missing from a published version; restore it") from error


def _unless_ending() -> None:
    if is_ending():
        raise _ProgramEnding
