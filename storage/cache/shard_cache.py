"""A size-limited cache of remote shards on a local disk, shared by all processes and jobs of a machine.

Files are named by their SHA-256, so datasets and stores share them. A file appears under its name once it is complete
and its SHA-256 is correct; before that, single blocks of it can be read (partial_shard.py). Afterwards its length is
checked on each use; its reader checks the shard's own checksums and calls `discard` if they are wrong. cache_files.py
describes the folder.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.cache.cache_files import mark_used, translate_cache_errors
from tokenloom.storage.cache.cache_settings import default_cache_folder, default_limit
from tokenloom.storage.cache.download import CacheProcess, Caller, Download, NoRoom, RoomWait
from tokenloom.storage.cache.partial_file import Holder, add_holder, max_partial_files
from tokenloom.storage.cache.partial_shard import PartialShard, read_blocks
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
        return self._fetch(request, _FOREGROUND)

    def begin(self, request: ShardRequest, *, waits: bool = True) -> PartialShard | None:
        """Return a shard whose blocks can be read before all of it is here, and begin to download the rest,
        unless the request wants only blocks.

        None if the cache holds all of it, or it can only be downloaded as a whole, or if the cache is full now and the
        caller does not want to wait. Errors as `fetch`.
        """
        process = self._process()
        if not request.by_blocks or process.holds(request) or request.sha256 in process.whole:
            return None
        if waits:
            self.ahead(process.take_failed())
        with translate_cache_errors(self.folder):
            process.files.prepare()
            try:
                partial = self._partial(process, request, _FOREGROUND if waits else _NOT_WAITING, is_locked=False)
            except NoRoom:
                return None
        if partial is not None and not request.only_blocks:
            self.ahead([request])
        elif waits:
            process.partials.pop(request.sha256, None)  # the caller keeps it open, as long as it likes
        return partial

    def has_begun(self, request: ShardRequest) -> bool:
        """Return whether this process can read single blocks of a shard."""
        return request.sha256 in self._process().partials

    def max_partial(self, num_bytes: int) -> int:
        """Return how many shards of `num_bytes` a reader may use whose rest is never downloaded, at least 1.

        Only closing them frees their space, so they take at most a quarter of the limit.
        """
        room = 2**63 if self.limit_bytes is None else self.limit_bytes // 4
        return max(1, min(max_partial_files(), room // max(1, num_bytes)))

    def add_holder(self, holder: Holder) -> None:
        """Close what a reader of single blocks holds open whenever this process needs the space for another shard."""
        add_holder(holder)

    def close_blocks(self) -> None:
        """Close the shards whose rest is never downloaded and that no reader keeps open: others may use the space."""
        self._process().close_all()
        self._process().files.close_unused()

    def _partial(
        self, process: CacheProcess, request: ShardRequest, caller: Caller, *, is_locked: bool
    ) -> PartialShard | None:
        """Return a shard that is downloaded by blocks; None if it is complete, or can only be downloaded as a whole."""
        if (found := process.partial(request.sha256)) is not None:
            return found
        if not request.by_blocks or request.sha256 in process.whole:
            return None
        if not request.only_blocks and len(process.partials) >= max_partial_files():
            return None
        try:
            blocks = read_blocks(request)
        except (FileNotFoundError, FormatError, StoreError) as error:
            process.read_whole(request, error)
            return None
        room = RoomWait(process, caller)
        while (file := process.files.partial(blocks, is_locked=is_locked)) is None:
            if process.holds(request):
                return None
            room.wait(request.num_bytes)
        partial = process.partials.setdefault(request.sha256, PartialShard(process.files, process.count, request, file))
        if request.only_blocks:
            process.forget_oldest(max_partial_files())
        return partial

    def ahead(self, requests: Iterable[ShardRequest]) -> None:
        """Start to download files in the given order on `io_threads` threads; return at once.

        Failures are logged; a later `fetch` retries and raises. Queued downloads are dropped when the program ends.
        """
        process = self._process()
        with process.lock:
            new = {request.sha256: request for request in requests if request.sha256 not in process.running}
            process.queue |= new
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

    def _fetch(self, request: ShardRequest, caller: Caller) -> Path:
        process = self._process()
        path = process.files.path(request.sha256)
        if not process.holds(request):
            if caller.needs_it_now:
                self.ahead(process.take_failed())
            with translate_cache_errors(self.folder):
                process.files.prepare()
                with process.locked(request.sha256, caller.check_running):
                    if not process.holds(request):
                        self._download(process, request, caller)
                        return path
        mark_used(path)
        process.count("hits")
        return path

    def _download(self, process: CacheProcess, request: ShardRequest, caller: Caller) -> None:
        """Put a shard into the cache; the caller holds its lock."""
        partial = self._partial(process, request, caller, is_locked=True)
        if partial is not None:
            partial.complete(caller.check_running)
            process.partials.pop(request.sha256, None)
        elif not process.holds(request):
            Download(process, request, caller).run()

    def _work(self, process: CacheProcess) -> None:
        """Download the queued files, then end: an idle thread would delay the program's exit."""
        while (request := process.next_request()) is not None:
            try:
                if process.holds(request):
                    mark_used(process.files.path(request.sha256))  # it will be
                else:
                    self._fetch(request, _AHEAD)
            except NoRoom:
                continue
            except Exception as error:  # noqa: BLE001  (fetch() raises it where the file is needed)
                with process.lock:
                    process.failed[request.sha256] = request, error
                if not is_ending():
                    _logger.warning("ahead of use: %s; the download is retried on first use", error)
            finally:
                process.running.discard(request.sha256)


def _unless_ending() -> None:
    if is_ending():
        raise _ProgramEnding


def _refuse_to_wait() -> None:
    raise NoRoom


_NOT_WAITING = Caller(_refuse_to_wait, needs_it_now=False)
_FOREGROUND = Caller(lambda: None, needs_it_now=True)
_AHEAD = Caller(_unless_ending, needs_it_now=False)
