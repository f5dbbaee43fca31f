"""A size-limited cache of remote shards on a local disk, shared by all processes and jobs of a machine.

Files are named by their SHA-256, so datasets and stores share them. One process downloads a file, under a lock,
compares each block with its checksum, and gives the file its name at the end. Until then each process reads the blocks
that it needs next from the store (partial_shard.py). The length of a file is checked on each use; its reader checks the
shard's own checksums. cache_files.py describes the folder.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from tokenloom.errors import StoreError
from tokenloom.storage.cache import default_cache_folder
from tokenloom.storage.cache.cache_files import default_limit, mark_used, translate_cache_errors
from tokenloom.storage.cache.partial_shard import (
    CacheProcess,
    PartialShard,
    ShardRequest,
    download_run,
    read_blocks,
    runs_of,
)
from tokenloom.storage.stores import local_files

_STATISTICS = ("hits", "downloads", "bytes_downloaded", "failed_checks")
PATIENCE_SECONDS = 30.0  # to wait for another process's download before blocks are read instead
_HEAD_START_SECONDS = 1.0  # for the blocks of the first batch, before whole shards take up the line
_LOCK_POLL_SECONDS = 0.02  # between attempts to take the lock of a file
_ROOM_POLL_SECONDS = 0.1  # between attempts to find room, which other downloads take up
_DEFAULTS: dict[tuple[Path, str | None], ShardCache] = {}  # by folder and limit
_logger = logging.getLogger("tokenloom")


class ShardCache:
    """Local copies of remote shards. Pickles small, is safe in several threads, and works after a fork.

    Args:
        folder: the cache's folder; other files in it are never touched.
        limit_bytes: the limit of complete and partial shards together; None for no limit. What does not fit, because
            readers need the other shards now, is read from the store again and again. Each of several jobs with
            different limits keeps to its own when it downloads.
        io_threads: concurrent downloads ahead of use, at least 1.
    """

    def __init__(self, folder: Path, limit_bytes: int | None = None, *, io_threads: int = 4) -> None:
        for name, value in (("limit_bytes", limit_bytes), ("io_threads", io_threads)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.folder, self.limit_bytes, self.io_threads = Path(folder), limit_bytes, io_threads
        self._processes: dict[int, CacheProcess] = {}

    @classmethod
    def default(cls) -> ShardCache:
        """Return the cache in TOKENLOOM_CACHE, limited to TOKENLOOM_CACHE_LIMIT bytes, such as "50 GB" or "50GiB".

        The limit defaults to 100 GB, or to 80 % of its file system's free space if that is less; the bytes in the cache
        count as free. Datasets with one folder and limit share it, and its downloads ahead.
        """
        folder = default_cache_folder()
        key = folder, os.environ.get("TOKENLOOM_CACHE_LIMIT")
        if key not in _DEFAULTS:
            _DEFAULTS.setdefault(key, cls(folder, default_limit(folder)))  # several threads may open datasets
        return _DEFAULTS[key]

    def __repr__(self) -> str:
        limit = "no limit" if self.limit_bytes is None else f"{self.limit_bytes:,} bytes"
        return f"ShardCache({str(self.folder)!r}): {limit}"

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_processes": {}}

    def stats(self) -> dict[str, int]:
        """Return counts of this process: hits, downloads, bytes_downloaded, evictions, failed_checks."""
        process = self._process()
        return {name: process.counters[name] for name in _STATISTICS} | {"evictions": process.files.num_evicted}

    def fetch(self, request: ShardRequest) -> Path:
        """Return the local path of a shard; download all of it first if it is not in the cache.

        Open it at once: another process may remove it to free space. A memory map of it stays valid after that.

        Raises:
            StoreError: the store cannot be read, the cache cannot be written, or the shard does not fit into it.
            FormatError: the store's shard differs from the one listed.
        """
        end = time.monotonic() + PATIENCE_SECONDS
        while (path := self._fetch(request, -1)) is None:
            if request.num_bytes > (self.limit_bytes or math.inf) or time.monotonic() > end:
                raise StoreError(
                    f"{self.folder}: no room for a shard of {request.num_bytes:,} bytes beside those in use; raise the "
                    f"cache's limit, or free space: TOKENLOOM_CACHE_LIMIT, or limit_bytes of the {self!r}"
                )
            time.sleep(_ROOM_POLL_SECONDS)
        return path

    def open(self, request: ShardRequest, *, completes: bool = True) -> tuple[Path, PartialShard | None]:
        """Return the local path of a shard, and if it is not complete, its blocks, which are downloaded when read.

        Args:
            request: the shard.
            completes: whether to begin to download the rest of it.

        Raises StoreError, FormatError: the `.blocks` file can't be read, or is not the one listed.
        """
        process = self._process()
        path = process.files.path(request.sha256)
        if process.holds(request):
            mark_used(path)
            process.count("hits")
            return path, None
        blocks = PartialShard(process, request, path, partial(self._wait, request) if completes else None)
        if completes:
            self.ahead([request], first=True)
        return path, blocks

    def ahead(self, requests: Iterable[ShardRequest], *, first: bool = False) -> None:
        """Start to download shards in the given order on `io_threads` threads; return at once.

        Failures are logged; a later `fetch` retries and raises. `first` puts them before those that are queued. The
        program's end does not wait for them.
        """
        process = self._process()
        with process.lock:
            new = {request.sha256: request for request in requests}
            process.queue = new | process.queue if first else process.queue | new
            num_new = max(0, min(self.io_threads - process.num_threads, len(process.queue)))
            process.num_threads += num_new
        for _ in range(num_new):
            try:
                threading.Thread(target=self._work, args=(process,), name="tokenloom-cache", daemon=True).start()
            except RuntimeError:  # the program ends, or has reached its limit of threads: fetch() downloads
                with process.lock:
                    process.num_threads -= 1

    def holds(self, request: ShardRequest) -> bool:
        """Return whether the cache holds a complete file of that name and length now."""
        return self._process().holds(request)

    def _process(self) -> CacheProcess:
        pid = os.getpid()
        if pid not in self._processes:
            self._processes.setdefault(pid, CacheProcess(self.folder, self.limit_bytes))
        return self._processes[pid]

    def _wait(self, request: ShardRequest) -> bool:
        """Return once the cache has a shard; False if it has no room, or if another process takes too long."""
        return self._fetch(request, PATIENCE_SECONDS) is not None

    def _fetch(self, request: ShardRequest, seconds: float) -> Path | None:
        """Return the path of the complete file; None if it does not fit, or another process takes so many seconds."""
        process = self._process()
        path = process.files.path(request.sha256)
        if not process.holds(request):
            process.files.prepare()
            lock = process.files.lock(request.sha256)
            with (
                translate_cache_errors(self.folder),
                suppress(TimeoutError),  # another process has it
                lock.acquire(seconds, poll_interval=_LOCK_POLL_SECONDS),
            ):
                if not process.holds(request):
                    return path if self._download(process, request) else None
            if not process.holds(request):
                return None
        mark_used(path)
        process.count("hits")
        return path

    def _download(self, process: CacheProcess, request: ShardRequest) -> bool:
        """Download a complete file; return whether there was room. The caller holds its lock."""
        checksums = read_blocks(request)
        temporary = process.files.reserve(request.sha256, request.num_bytes)
        if temporary is None:
            limit = (
                "%s: the limit of %s bytes has no room for all shards that are read now, so blocks are read again and "
            )
            limit += "again; give the cache more room: TOKENLOOM_CACHE_LIMIT"
            process.warn_once("room", limit, self.folder, self.limit_bytes)
            return False
        try:
            with temporary.open("r+b") as file:
                for run in runs_of(range(checksums.num_blocks), checksums):
                    local_files.write_all(file, download_run(request, checksums, run, process.count))
                file.flush()
                os.fsync(file.fileno())
            mark_used(temporary)  # the system's own clock for files is coarse
            temporary.replace(process.files.path(request.sha256))
        finally:
            temporary.unlink(missing_ok=True)
        process.count("downloads")
        return True

    def _work(self, process: CacheProcess) -> None:
        """Download the queued shards, except those that another process downloads, then end."""
        process.has_first_batch.wait(_HEAD_START_SECONDS)
        while (request := process.next_request()) is not None:
            try:
                self._fetch(request, 0)
            except Exception as error:  # noqa: BLE001  (it is raised where the shard is needed)
                again = "ahead of use: %s; the download is retried on first use, as others that fail meanwhile"
                process.warn_once("ahead", again, error)
