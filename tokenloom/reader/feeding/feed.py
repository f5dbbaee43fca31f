"""What a feed is: it turns the rows of a window into batches of tensors, several at a time (a chunk)."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np

from tokenloom.reader.arrays import Int32s
from tokenloom.reader.shards.window import RowWindow

#: what only the feed that made it can finish
Made: TypeAlias = Any  # type: ignore[explicit-any]
#: a tensor, or the int max_seqlen; callers need not narrow it
BatchValue: TypeAlias = Any  # type: ignore[explicit-any]
Batch: TypeAlias = dict[str, BatchValue]


class Feed(Protocol):
    """Makes several batches at a time, in the thread, and finishes each one for the consumer."""

    def make(self, window: RowWindow, first: int, num_batches: int) -> list[Made]:
        """Return the batches of rows [first, first + num_batches * batch_size) of a window."""

    def finish(self, made: Made) -> Batch:
        """Return a finished batch; each batch is finished once. Batches on the CPU are finished when they are made."""


def sequence_lengths(window: RowWindow, first: int, batch_size: int) -> tuple[Int32s, int]:
    """Return cu_seqlens and max_seqlen of the batch at row `first` of a window."""
    cu_seqlens = window.boundaries.cu_seqlens(first, first + batch_size)
    return cu_seqlens, int(np.diff(cu_seqlens).max())
