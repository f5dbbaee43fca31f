"""A size-limited cache of remote shards on a local disk, shared by all processes and jobs of a machine.

Files are named by their SHA-256, so datasets and stores share them. A file appears under its name once it is complete
and its SHA-256 is correct; before that, single blocks of it can be read (partial_shard.py). Afterwards its length is
checked on each use; its reader checks the shard's own checksums and calls `discard` if they are wrong. cache_files.py
describes the folder.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tokenloom.storage.cache.cache_files import mark_used, translate_cache_errors
from tokenloom.storage.cache.cache_process import CacheProcess, ShardRequest, polls
from tokenloom.storage.cache.cache_settings import default_cache_folder, default_limit
from tokenloom.storage.cache.partial_shard import PartialShard, read_blocks

_STATISTICS = ("hits", "downloads", "bytes_downloaded", "failed_checks")
_SPACE_POLL_SECONDS = 0.05  # between attempts to find space


class ShardCache:
    """Local copies of remote shards. Pickles small, is safe in several threads, and works after a fork.

    Args:
        folder: the cache's folder; other files in it are never touched.
        limit_bytes: the limit of complete and partial shards together, at least one shard; None for no limit. Each of
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
        """Return the local path of a shard; download all of it first if it is not in the cache.

        Open it at once: another process may remove it to free space. A memory map of it stays valid after that.

        Raises:
            StoreError: the store cannot be read, the cache cannot be written, or the shard exceeds the limit.
            FormatError: the store's shard differs from the one listed.
        """
        process = self._process()
        path = process.files.path(request.sha256)
        if not process.holds(request):
            process.files.prepare()
            with translate_cache_errors(self.folder), process.locked(request.sha256):
                if not process.holds(request):
                    if process.files.remove(request.sha256):  # its length is wrong
                        process.count("failed_checks")
                    self._open_partial(process, request).complete()
                    return path
        mark_used(path)
        process.count("hits")
        return path

    def open(self, request: ShardRequest, *, completes: bool = True) -> tuple[Path, PartialShard | None]:
        """Return the local path of a shard, and if it is not complete, its blocks, which are downloaded when read.

        Args:
            request: the shard.
            completes: whether to begin to download the rest of it.

        Raises as `fetch`; a FormatError also if an earlier download found the shard damaged.
        """
        process = self._process()
        if not process.holds(request):
            process.raise_damage(request.sha256)
            with translate_cache_errors(self.folder), suppress(FileExistsError):
                blocks = self._open_partial(process, request)
                if completes:
                    self.ahead([request], first=True)
                return blocks.path, blocks
        return self.fetch(request), None

    def ahead(self, requests: Iterable[ShardRequest], *, first: bool = False) -> None:
        """Start to download shards in the given order on `io_threads` threads; return at once.

        Failures are logged; a later `fetch` retries and raises. `first` puts them before those that are queued. The
        program's end does not wait for them.
        """
        process = self._process()
        with process.lock:
            new = {request.sha256: request for request in requests if request.sha256 not in process.running}
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

    def discard(self, sha256: str) -> None:
        """Remove a file that its reader found damaged; the next use downloads it again."""
        process = self._process()
        process.files.path(sha256)
        process.files.prepare()
        with translate_cache_errors(self.folder), process.locked(sha256):
            if process.files.remove(sha256):
                process.count("failed_checks")

    def _process(self) -> CacheProcess:
        pid = os.getpid()
        if pid not in self._processes:
            process = CacheProcess(self.folder, self.limit_bytes)
            process.files.check_format()
            self._processes.setdefault(pid, process)
        return self._processes[pid]

    def _open_partial(self, process: CacheProcess, request: ShardRequest) -> PartialShard:
        """Return a shard that is downloaded by blocks; errors as `open`, FileExistsError if it is complete by now."""
        process.files.prepare()
        blocks = read_blocks(request)
        what = f"waiting for {request.num_bytes:,} bytes of space, which other downloads take up"
        waits = polls(_SPACE_POLL_SECONDS, f"{self.folder}: {what}; raise the cache's limit: TOKENLOOM_CACHE_LIMIT")
        while (descriptors := process.files.open_partial(request.sha256, request.num_bytes)) is None:
            next(waits)
        return PartialShard(process, request, blocks, descriptors)

    def _work(self, process: CacheProcess) -> None:
        """Download the queued shards, then end."""
        while (request := process.next_request()) is not None:
            try:
                self.fetch(request)
            except Exception as error:  # noqa: BLE001  (it is raised where the shard is needed)
                process.add_failed(request, error)
            finally:
                process.running.discard(request.sha256)
