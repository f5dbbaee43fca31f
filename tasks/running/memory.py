"""The memory that a worker process may take while it reads an input: a file of 4 KB may claim, or hold, any amount.

Linux counts what a process allocates against RLIMIT_DATA, and refuses more; Arrow, Python and NumPy raise MemoryError
then. Files that are mapped into memory do not count. The limit is set only while a reader works, since not all
libraries survive it, and only in our own child processes.
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
_LEAST_BYTES = 500_000_000  # of it to read with
_is_bounded = False


def bound_this_process() -> None:
    """From now on `bounded` sets a limit in this process."""
    global _is_bounded
    _is_bounded = True


@contextmanager
def bounded(max_bytes: int, place: str) -> Iterator[None]:
    """In the block this process may hold 1 GB and 4 x `max_bytes`; raises InputError where that is not enough.

    More only where a tokenizer or a transform took more than half of the 1 GB before.

    Args:
        max_bytes: of the largest document, documents.max_bytes.
        place: file and range that is read, for the message.
    """
    if not _is_bounded:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = max(_BASE_BYTES, _data_bytes() + _LEAST_BYTES) + 4 * max_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
    try:
        yield
    except MemoryError as error:
        if 0 <= resource.getrlimit(resource.RLIMIT_AS)[0] < most:  # somebody else's limit: no fault of the file
            raise
        raise InputError(f"{place}: {no_memory(max_bytes)}") from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def each_bounded(items: Iterator[Item], max_bytes: int, place: str) -> Iterator[Item]:
    """Yield items, each made within `bounded`."""
    while True:
        with bounded(max_bytes, place):
            item = next(items, None)
        if item is None:
            return
        yield item
        del item  # it may be large: not while the next one is made


def no_memory(max_bytes: int) -> str:
    """Return what a message says of a MemoryError, and the next step."""
    if not _is_bounded:
        return "no memory to read it; build again with fewer --workers"
    return (
        f"reading it takes more memory than {_BASE_BYTES + 4 * max_bytes:,} bytes: a page, batch or line of it is too "
        "large, or claims what it does not hold; repair the file or leave it out, or raise documents.max_bytes"
    )


def _data_bytes() -> int:
    """Return what this process has allocated; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    except OSError:
        return 0
