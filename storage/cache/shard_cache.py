"""A size-limited cache of remote shards on a local disk, shared by all processes and jobs of a machine.

Files are named by their SHA-256, so datasets and stores share them. A file appears under its name once it is complete
and its SHA-256 is correct. Afterwards its length is checked on each use; its reader checks the shard's own checksums
and calls `discard` if they are wrong. cache_files.py describes the folder.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from tokenloom.storage.cache.cache_files import mark_used, translate_cache_errors
from tokenloom.storage.cache.cache_settings import default_cache_folder, default_limit
from tokenloom.storage.cache.download import CacheProcess, Download
from tokenloom.storage.cache.shard_request import ShardRequest
from tokenloom.storage.stores.time_limit import is_ending

_STATISTICS = ("hits", "downloads", "bytes_downloaded", "evictions", "failed_checks")
_logger = logging.getLogger("tokenloom")


class _ProgramEnding(Exception):
    """The program ends, so a download ahead of use is abandoned."""


class ShardCache:
    """Local copies of remote shards. Pickles small, is safe in several threads, and works after a fork.

    Args:
        folder: the cache's folder; other files in it are never touched.
        limit_bytes: the limit of shards and running downloads together, at least one shard; None for no limit. Each of
            several jobs with different limits keeps to its own when it downloads.
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

    def fetch(self, request: ShardRequest) -> Path:
        """Return the local path of a file of a store; download it first if it is not in the cache.

        Open it at once: another process may remove it to free space. A memory map of it stays valid after that.

        Raises:
            StoreError: the store cannot be read, the cache cannot be written, or the file exceeds the limit.
            FormatError: the store's file differs from the one listed.
        """
        return self._fetch(request, lambda: None)

    def ahead(self, requests: Iterable[ShardRequest]) -> None:
        """Start to download files in the given order on `io_threads` threads; return at once.

        Failures are logged; a later `fetch` retries and raises. Queued downloads are dropped when the program ends.
        """
        process = self._process()
        with process.lock:
            process.queue |= {request.sha256: request for request in requests}
            num_new = max(0, min(self.io_threads - process.num_threads, len(process.queue)))
            process.num_threads += num_new
        for _ in range(num_new):
            try:
                threading.Thread(target=self._work, args=(process,), name="tokenloom-cache").start()
            except RuntimeError:  # the program ends, or has reached its limit of threads: fetch() downloads
                with process.lock:
                    process.num_threads -= 1

    def holds(self, request: ShardRequest) -> bool:
        """Return whether the cache holds a complete file of that name and length now."""
        return self._process().holds(request)

    def discard(self, sha256: str) -> None:
        """Remove a file that its reader found damaged; the next fetch() downloads it again."""
        process = self._process()
        process.files.path(sha256)
        with translate_cache_errors(self.folder):
            process.files.prepare()
            with process.locked(sha256, lambda: None):
                if process.files.remove(sha256):
                    process.count("failed_checks")

    def _process(self) -> CacheProcess:
        pid = os.getpid()
        if pid not in self._processes:
            process = CacheProcess(self.folder, self.limit_bytes)
            process.files.check_format()
            self._processes.setdefault(pid, process)
        return self._processes[pid]

    def _fetch(self, request: ShardRequest, check_running: Callable[[], None]) -> Path:
        process = self._process()
        path = process.files.path(request.sha256)
        if not process.holds(request):
            with translate_cache_errors(self.folder):
                process.files.prepare()
                with process.locked(request.sha256, check_running):
                    if not process.holds(request):
                        Download(process, request, check_running).run()
                        return path
        mark_used(path)
        process.count("hits")
        return path

    def _work(self, process: CacheProcess) -> None:
        """Download the queued files, then end: an idle thread would delay the program's exit."""
        while True:
            with process.lock:
                if not process.queue or is_ending():
                    process.num_threads -= 1
                    return
                request = process.queue.pop(next(iter(process.queue)))
            try:
                if not process.holds(request):
                    self._fetch(request, _unless_ending)
            except Exception as error:  # noqa: BLE001  (fetch() raises it where the file is needed)
                if not is_ending():
                    _logger.warning("ahead of use: %s; the download is retried on first use", error)


def _unless_ending() -> None:
    if is_ending():
        raise _ProgramEnding
