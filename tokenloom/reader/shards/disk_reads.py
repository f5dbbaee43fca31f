"""How much to read around a row of a cold file, and which blocks of it are in the system's cache.

A disk reads 128 KiB in little more time than 4 KiB, and the rest of the block is soon needed, because an order uses its
active shards whole. Blocks have the size that the system reads around a fault in a map, so that a row costs at most
what it costs a loop over maps, and several are read at a time.
"""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from pathlib import Path

PAGE = 4096
_MIN_BLOCK, _MAX_BLOCK = 2**17, 2**19  # larger ones delay the first batches: docs/project/decisions-running.md
_WARM_READS = 4  # in a row: then the whole file is taken to be in the system's cache
_WARM_SECONDS = 1e-3  # at most; the system does not count what a network file system reads
_MAX_MEMORY_SHARE = 1 / 2  # the rest is for the processes
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # v2, v1


def block_bytes(path: Path, active_bytes: int) -> int:
    """Return the size of the blocks in which files on a disk are read, a power of two.

    It is a page, so that only the rows are read, if the active shards take more than half of the memory: then most of a
    block would be evicted before it is used.

    Args:
        path: of a file or folder on the disk.
        active_bytes: size of the files that an order uses at the same time.
    """
    if active_bytes > _MAX_MEMORY_SHARE * memory_bytes():
        return PAGE
    window = min(_MAX_BLOCK, max(_MIN_BLOCK, _read_around(path)))
    return 1 << (window.bit_length() - 1)


def memory_bytes() -> int:
    """Return the memory of this machine, or the limit of this container if that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # another version of cgroups; or "max": no limit
            memory = min(memory, int(limit.read_text(encoding="ascii")))
    return memory


def _read_around(path: Path) -> int:
    """Return how many bytes the system reads around a fault in a map; 0 where it does not say."""
    try:
        device = path.stat().st_dev
        kernel = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
        return 1024 * int(kernel.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


class CachedBlocks:
    """The blocks of a file that this process has read into the system's cache, or found there."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()
        self._warm_reads = 0  # the last reads, which did not wait for the disk

    def claim(self, block: int) -> bool:
        """Return whether a block is yet to be read; the caller reads it."""
        if self._warm_reads >= _WARM_READS or block in self._blocks:
            return False
        self._blocks.add(block)
        return True

    def forget(self) -> None:
        """Forget them all, because the system has evicted some."""
        self._blocks, self._warm_reads = set(), 0

    def read(self, file: int, start: int, length: int) -> int:
        """Read bytes of the open file; return how many, 0 if they were in the system's cache. Raises OSError."""
        before, begin = disk_waits(), time.perf_counter()
        num_bytes = len(os.pread(file, length, start))
        if disk_waits() == before and time.perf_counter() - begin < _WARM_SECONDS:
            self._warm_reads += 1
            return 0
        self._warm_reads = 0
        return num_bytes


def disk_waits() -> tuple[int, int]:
    """Return how often this thread has waited for a page of a map, and how many blocks of 512 bytes it has read."""
    usage = resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF))  # macOS: of the process
    return usage.ru_majflt, usage.ru_inblock
