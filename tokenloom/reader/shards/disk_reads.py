"""How much to read around a row of a cold file.

A disk reads 128 KiB in little more time than 4 KiB, and the rest of the block is soon needed, because an order uses its
active shards whole. Blocks have the size that the system reads around a fault in a map, so that a row costs at most
what it costs a loop over maps, and several are read at a time.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PAGE = 4096
_MIN_BLOCK, _MAX_BLOCK = 2**17, 2**19  # larger ones delay the first batches: docs/project/decisions-running.md
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
