"""The sizes of what read.py reads and measures."""

from __future__ import annotations

from dataclasses import dataclass

SEQ_LEN, BATCH = 2048, 8


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    num_shards: int = 4
    shard_tokens: int = 33_000_000  # over 256 MB in total
    batches: int = 4096  # per measurement of a rate
    cold_batches: int = 2000
    waits: int = 1000
    documents: int = 1_000_000
    long_batches: int = 1_000_000


TINY = Sizes(3, 1_000_000, 16, 60, 30, 5_000, 3000)
