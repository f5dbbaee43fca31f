"""The token bytes of a shard that is still being downloaded: blocks that are missing are downloaded before a copy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from tokenloom.storage.formats.arrays import Int64s
from tokenloom.wording import counted

if TYPE_CHECKING:
    from tokenloom.storage.cache.partial_shard import PartialShard


_MAX_LISTED = 100


class TokenBytes(Protocol):
    """The bytes of a shard's tokens."""

    def __getitem__(self, part: slice[int, int, None]) -> memoryview | bytes: ...


class PartialBytes:
    """Token bytes of which some may be missing.

    Args:
        shard: the blocks of the shard.
        tokens_start: where the tokens start in the file.
        whole: the token bytes, wrong where a block is missing.
    """

    def __init__(self, shard: PartialShard, tokens_start: int, whole: TokenBytes) -> None:
        self.shard, self._start, self._whole = shard, tokens_start, whole
        self.served: set[int] = set()  # the first byte of each piece that was read

    def missing(self, start: int, end: int) -> list[int]:
        """Return the blocks of the bytes [start, end) that are missing."""
        return self.shard.missing(self._start + start, self._start + end)

    def ensure(self, start: int, end: int) -> None:
        """Download what is missing of the bytes [start, end); errors as fetch_blocks."""
        if blocks := self.missing(start, end):
            fetch_all([(self, blocks)])

    def __getitem__(self, part: slice[int, int, None]) -> memoryview | bytes:
        self.ensure(part.start, part.stop)
        self.served.add(part.start)
        return self._whole[part]


def fetch_all(wanted: Iterable[tuple[PartialBytes, Iterable[int]]]) -> None:
    """Download blocks of several shards, several at a time; errors as fetch_blocks."""
    from tokenloom.storage.cache.partial_shard import fetch_blocks  # for remote stores only

    blocks: dict[PartialShard, set[int]] = {}
    for partial, numbers in wanted:
        blocks.setdefault(partial.shard, set()).update(numbers)
    fetch_blocks([(shard, sorted(numbers)) for shard, numbers in blocks.items()])


def describe_damage(shard: PartialShard, samples: Int64s) -> str:
    """Return that a complete shard is damaged, and which samples, (n,) indices of the split, were read from it."""
    listed = ", ".join(map(str, samples[:_MAX_LISTED].tolist()))
    more = f" and {len(samples) - _MAX_LISTED:,} more" if len(samples) > _MAX_LISTED else ""
    read = f"{counted(len(samples), 'sample')} of the split read from it before may be wrong: {listed}{more}"
    return f"{shard.why_damaged}; {read if len(samples) else 'none of its samples was read before'}"
