"""A cache of remote shards on a local disk, within a limit, shared by all processes and jobs of a machine.

Files are named by their SHA-256, so they are the same for every dataset and store. A file appears under its name when
it is complete and its SHA-256 is right; from then on its length is checked when it is used, and the shard's own
checksums by its reader, which calls `discard` if they are wrong. cache_files.py says what lies where.
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
from typing import Any, NamedTuple

from filelock import Timeout

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.cache.cache_files import POLL_SECONDS, CacheFiles, is_full, told, used_now
from tokenloom.storage.cache.cache_folder import default_cache_folder
from tokenloom.storage.cache.cache_limit import default_limit
from tokenloom.storage.formats.shard import file_sha256
from tokenloom.storage.stores.local_files import write_all
from tokenloom.storage.stores.store import Store
from tokenloom.storage.stores.time_limit import is_ending

_MAX_DOWNLOADS = 3  # of one file that arrives wrong
_WAIT_SECONDS = 0.05  # between looks for room
_TELL_SECONDS = 60.0  # between messages of a wait
_STATISTICS = ("hits", "downloads", "bytes_downloaded", "evictions", "failed_checks")
_logger = logging.getLogger("tokenloom")


class ShardRequest(NamedTuple):
    """A file of a remote store, with its SHA-256 in hexadecimal and its length, as a manifest lists them."""

    store: Store
    path: str
    sha256: str
    num_bytes: int


class _Ending(Exception):
    """The program ends, so a download that nobody waits for is left."""


class _Process:
    """What belongs to one process: counters, and the downloads ahead; a forked child begins with none."""

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
    """Local copies of remote shards; pickles small, may be used by several threads, and on after a fork.

    Args:
        folder: of the cache; it may hold other files, which are never touched.
        limit_bytes: what its shards and running downloads may take together, at least one shard; None for no limit.
            Of several jobs with different limits, each keeps its own when it downloads.
        io_threads: downloads ahead of use at once, at least 1.
    """

    def __init__(self, folder: Path, limit_bytes: int | None = None, *, io_threads: int = 4) -> None:
        for name, value in (("limit_bytes", limit_bytes), ("io_threads", io_threads)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.folder, self.limit_bytes, self.io_threads = Path(folder), limit_bytes, io_threads
        self._processes: dict[int, _Process] = {}

    @classmethod
    def default(cls) -> ShardCache:
        """Return the cache in TOKENLOOM_CACHE, limited to TOKENLOOM_CACHE_LIMIT bytes ("50 GB" and "50GiB" are read).

        The limit defaults to 100 GB, or 80 % of what its file system has free beside the cache if that is less.
        """
        folder = default_cache_folder()
        return cls(folder, default_limit(folder))

    def __repr__(self) -> str:
        limit = "no limit" if self.limit_bytes is None else f"{self.limit_bytes:,} bytes"
        return f"ShardCache({str(self.folder)!r}): {limit}"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_processes": {}}

    def stats(self) -> dict[str, int]:
        """Return what this process did: hits, downloads, bytes_downloaded, evictions, failed_checks."""
        process = self._process()
        return {name: process.counters[name] for name in _STATISTICS} | {"evictions": process.files.num_evicted}

    def fetch(self, store: Store, path: str, sha256: str, num_bytes: int, *, verify: bool = False) -> Path:
        """Return the local path of a file of the store, which is downloaded if it is not here yet.

        Open it at once: another process that needs the room may remove it, after which a map of it stays valid.

        Args:
            store: where the file lies.
            path: of the file in the store.
            sha256: of the file, in hexadecimal.
            num_bytes: its length.
            verify: compare the SHA-256 of a file that is here already, too.

        Raises:
            StoreError: the store can't be read, or the cache not be written; the file is over the limit.
            FormatError: the store's file is not the one that was listed.
        """
        return self._fetch(ShardRequest(store, path, sha256, num_bytes), verify, lambda: None)

    def ahead(self, requests: Iterable[tuple[Store, str, str, int]]) -> None:
        """Begin to download files in the order given, on `io_threads` threads; returns at once.

        What fails is logged; a later `fetch` tries again and raises. At the program's end what is left is dropped.
        """
        process = self._process()
        with process.lock:
            process.queue |= {request.sha256: request for request in map(ShardRequest._make, requests)}
            num_new = max(0, min(self.io_threads - process.num_threads, len(process.queue)))
            process.num_threads += num_new
        for _ in range(num_new):
            try:
                threading.Thread(target=self._work, args=(process,), name="tokenloom-cache").start()
            except RuntimeError:  # the program ends, or may have no more threads: fetch() downloads by itself
                with process.lock:
                    process.num_threads -= 1

    def holds(self, sha256: str, num_bytes: int) -> bool:
        """Return whether a complete file of that name and length is here now."""
        return self._process().files.num_bytes(sha256) == num_bytes

    def discard(self, sha256: str) -> None:
        """Remove a file that its reader found damaged, so that the next fetch() downloads it."""
        process = self._process()
        process.files.path(sha256)
        with told(self.folder):
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

    def _fetch(self, request: ShardRequest, verify: bool, go_on: Callable[[], None]) -> Path:
        process = self._process()
        path = process.files.path(request.sha256)
        if not self._is_good(process, request, verify):
            with told(self.folder):
                process.files.prepare()
                with self._locked(process, request.sha256, go_on):
                    if not self._is_good(process, request, verify):
                        self._download(process, request, go_on)
                        return path
        used_now(path)
        process.count("hits")
        return path

    def _is_good(self, process: _Process, request: ShardRequest, verify: bool) -> bool:
        found = process.files.num_bytes(request.sha256)
        if found != request.num_bytes or not verify:
            return found == request.num_bytes
        try:
            with process.files.path(request.sha256).open("rb") as file:
                return file_sha256(file) == request.sha256
        except FileNotFoundError:  # another process has just taken its room
            return False

    @contextmanager
    def _locked(self, process: _Process, sha256: str, go_on: Callable[[], None]) -> Iterator[None]:
        """Hold the lock of a shard: whoever waits for it finds the file that the holder downloaded."""
        lock, told_at = process.files.shard_lock(sha256), time.monotonic()
        while True:
            go_on()
            try:
                lock.acquire(timeout=1, poll_interval=POLL_SECONDS)
                break
            except Timeout:
                if time.monotonic() - told_at > _TELL_SECONDS:
                    told_at = time.monotonic()
                    _logger.warning("%s: waiting for the process that downloads it", lock.lock_file)
        try:
            yield
        finally:
            lock.release()

    def _download(self, process: _Process, request: ShardRequest, go_on: Callable[[], None]) -> None:
        """Put a file into the cache; its lock is held."""
        if process.files.remove(request.sha256):
            process.count("failed_checks")
        try:
            self._download_right(process, request, go_on)
        except OSError as error:
            if not is_full(error):
                raise
            _logger.warning("%s: the disk is full; all shards in it are removed to go on", self.folder)
            process.files.remove_all()
            self._download_right(process, request, go_on)

    def _download_right(self, process: _Process, request: ShardRequest, go_on: Callable[[], None]) -> None:
        place = request.store.place(request.path)
        for _ in range(_MAX_DOWNLOADS):
            partial = self._reserved(process, request, go_on)
            try:
                wrong = self._fill(process, partial, request, go_on)
                if not wrong:
                    partial.replace(process.files.path(request.sha256))
                    process.count("downloads")
                    return
            finally:
                partial.unlink(missing_ok=True)
            process.count("failed_checks")
            _logger.warning("%s: %s; it is downloaded again", place, wrong)
        raise FormatError(
            f"{place}: {wrong}, in {_MAX_DOWNLOADS} downloads; the file in the store is damaged; restore it"
        )

    def _reserved(self, process: _Process, request: ShardRequest, go_on: Callable[[], None]) -> Path:
        """Return a new file to download into, once there is room for it."""
        told_at = time.monotonic()
        while (partial := process.files.reserve(request.sha256, request.num_bytes)) is None:
            go_on()
            if time.monotonic() - told_at > _TELL_SECONDS:
                told_at = time.monotonic()
                _logger.warning("%s: waiting for room: other downloads take all of the limit", self.folder)
            time.sleep(_WAIT_SECONDS)
        return partial

    def _fill(self, process: _Process, partial: Path, request: ShardRequest, go_on: Callable[[], None]) -> str:
        """Download into `partial`; return what is wrong with what came, "" if nothing is."""
        digest, num_bytes = hashlib.sha256(), 0
        with partial.open("r+b") as file:
            try:
                for block in _blocks(request):
                    go_on()
                    num_bytes += len(block)
                    if num_bytes > request.num_bytes:
                        return f"it is longer than the {request.num_bytes:,} bytes listed"
                    write_all(file, block)
                    digest.update(block)
                    process.count("bytes_downloaded", len(block))
            except FormatError as error:  # it was replaced by a shorter one meanwhile
                return str(error)
        if num_bytes != request.num_bytes:
            return f"{num_bytes:,} bytes, {request.num_bytes:,} are listed"
        return "" if digest.hexdigest() == request.sha256 else "its SHA-256 is not the one listed"

    def _work(self, process: _Process) -> None:
        """Download what is queued, then end: no thread is left waiting that the program's end would wait for."""
        while True:
            with process.lock:
                if not process.queue or is_ending():
                    process.num_threads -= 1
                    return
                request = process.queue.pop(next(iter(process.queue)))
            try:
                self._fetch_ahead(process, request)
            except Exception as error:  # noqa: BLE001  (fetch raises it again where it is needed)
                if not is_ending():
                    _logger.warning("ahead of use: %s; it is tried again when it is used", error)

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
        raise _Ending
