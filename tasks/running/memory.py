"""Limit the memory that a worker process uses while it reads an input: even a file of 4 KB can claim any amount.

Linux counts the memory that a process allocates against RLIMIT_DATA and refuses more; then Arrow, Python and NumPy
raise MemoryError. Files mapped into memory do not count. The limit is set only while a reader works, because some
libraries do not survive it, and only in our own child processes.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tokenloom.errors import InputError

Item = TypeVar("Item")

_BASE_BYTES = 1_000_000_000
_MIN_BYTES = 500_000_000  # the least that a reader gets
_is_bounded = False


def bound_this_process() -> None:
    """Make `bounded` set a limit in this process from now on."""
    global _is_bounded
    _is_bounded = True


@contextmanager
def bounded(max_bytes: int, place: str, next_step: str = "raise documents.max_bytes") -> Iterator[None]:
    """Limit this process to 1 GB and 4 x `max_bytes` in the block; raise InputError if that is not enough.

    The limit is higher if a tokenizer or a transform already uses more than half of the 1 GB.

    Args:
        max_bytes: the size of the largest document, documents.max_bytes.
        place: the file and range to read, for the message.
        next_step: what else helps, for the message.
    """
    if not _is_bounded:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = max(_BASE_BYTES, _data_bytes() + _MIN_BYTES) + 4 * max_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
    try:
        yield
    except MemoryError as error:
        if 0 <= resource.getrlimit(resource.RLIMIT_AS)[0] < limit:  # a limit from outside: not the file's fault
            raise
        raise InputError(f"{place}: {no_memory(max_bytes, next_step)}") from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def each_bounded(items: Iterator[Item], max_bytes: int, place: str) -> Iterator[Item]:
    """Yield items, each produced within `bounded`."""
    while True:
        with bounded(max_bytes, place):
            item = next(items, None)
        if item is None:
            return
        yield item
        del item  # it may be large: free it before the next one is produced


def no_memory(max_bytes: int, next_step: str = "raise documents.max_bytes") -> str:
    """Return the reason and the next step for the message of a MemoryError."""
    if not _is_bounded:
        return "not enough memory to read it; build again with fewer --workers"
    return (
        f"reading it needs more than {_BASE_BYTES + 4 * max_bytes:,} bytes of memory: a page, batch or line is too "
        f"large, or claims to hold more than it does; repair the file or leave it out, or {next_step}"
    )


def _data_bytes() -> int:
    """Return the bytes that this process has allocated; 0 where the system does not report them."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    except OSError:
        return 0
