"""Which tokens of rows a model learns: the targets of a batch; the labels of all others are IGNORED.

Without masks, all are learned but a few, which follow from where documents and padding begin: a list of positions.
With masks, the class of each token decides: a number for each token.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tokenloom.reader.shards.batch_format import IGNORED
from tokenloom.reader.shards.window import TokenWindow, widen
from tokenloom.storage.formats.arrays import AnyArray, Int32s, Int64s, Tokens
from tokenloom.storage.formats.classes import learned_classes

_NONE = np.zeros(0, np.int64)


class Targets:
    """The targets of n batches, which are rows [first, end) of a window.

    Args:
        window: the rows.
        first, end: which of them.
        batch_size: B, the rows of a batch.
        classes: of their tokens, (n * B, T + 1); None if the batch format needs none.
    """

    def __init__(
        self, window: TokenWindow, first: int, end: int, batch_size: int, classes: NDArray[np.uint8] | None
    ) -> None:
        self._form = form = window.form
        self._batch_size, self._num_batches = batch_size, (end - first) // batch_size
        #: 0 for tokens that are learned, else IGNORED, (n * B, T + 1); None without masks
        self._ignored: NDArray[np.int8] | None = None
        if form.learn is not None and classes is not None:
            self._ignored = _ignored(classes, form.learn)
            self._ignored[:, 0 if form.shift else -1] = IGNORED  # the token of a row that has no label
        #: of the labels that losses ignore, without masks: the batch, and the position in the flattened batch
        self.batches = self.positions = _NONE
        if form.mask_documents or (window.has_padding and self._ignored is None):  # a class keeps padding out
            flat = window.boundaries.ignored_labels(first, end)
            if self._ignored is None:
                self.batches, self.positions = np.divmod(flat, batch_size * form.seq_len)
            else:
                self._ignored.reshape(-1)[flat + flat // form.seq_len + form.shift] = IGNORED

    def counts(self) -> list[int]:
        """Return the number of targets in each batch: the labels that losses do not ignore.

        With labels="same", models shift the labels, so that the first one of a row is never a target.
        """
        seq_len, shift = self._form.seq_len, self._form.shift
        if self._ignored is not None:
            ignored = self._ignored.reshape(self._num_batches, -1)
            counts = [ignored.shape[1] - int(np.count_nonzero(batch)) for batch in ignored]
            return counts if shift else np.subtract(counts, (ignored[:, :: seq_len + 1] == 0).sum(1)).tolist()
        num_labels = self._batch_size * (seq_len + shift - 1)
        batches = self.batches if shift else self.batches[self.positions % seq_len > 0]
        ends = np.searchsorted(batches, np.arange(self._num_batches + 1)).tolist()  # they ascend
        return [num_labels - (end - first) for first, end in pairwise(ends)]

    def write(self, tokens: Tokens, out: Int64s) -> None:
        """Write the inputs and labels of the batches to `out`, (n, 2, B, T), from their tokens, (n * B, T + 1)."""
        if self._ignored is not None:
            widen(self._form, tokens, out, _label_ids(tokens, self._ignored))
            return
        widen(self._form, tokens, out)
        out.reshape(len(out), 2, -1)[self.batches, 1, self.positions] = IGNORED

    def ignored(self) -> NDArray[np.bool_] | None:
        """Return whether losses ignore each label, (n * B, T); None without masks."""
        return None if self._ignored is None else self._form.of_labels(self._ignored) != 0


def _ignored(classes: NDArray[np.uint8], learn: str | tuple[str, ...]) -> NDArray[np.int8]:
    """Return 0 for tokens that are learned, else IGNORED, by their classes.

    A few operations on whole arrays take a fifth of the time of looking up each class in a table.
    """
    bits, runs = _learned_values(learn)
    values = classes & bits
    ignored: NDArray[np.int8] | np.int8 = np.int8(IGNORED)
    for step, last in runs:
        values -= step  # below the first of a run, the difference wraps around
        outside = (values > last).view(np.int8)  # numpy's `<` would take twice as long
        ignored = np.multiply(outside, ignored, out=outside)
    return outside


@cache
def _learned_values(learn: str | tuple[str, ...]) -> tuple[np.uint8, list[tuple[np.uint8, np.uint8]]]:
    """Return the bits of a class that decide whether it is learned, and the values of these bits that are.

    The values are runs of neighbours: how far the first one is from that of the run before, and from the last one.
    """
    learned = learned_classes(learn)
    numbers = np.arange(256)
    bits = sum(1 << bit for bit in range(8) if (learned != learned[numbers ^ 1 << bit]).any())
    values = np.unique(numbers[learned] & bits)
    runs = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1)
    steps = np.diff([run[0] for run in runs], prepend=0)
    return np.uint8(bits), [(np.uint8(step), np.uint8(run[-1] - run[0])) for step, run in zip(steps, runs, strict=True)]


def _label_ids(tokens: Tokens, ignored: NDArray[np.int8]) -> Int32s:
    """Return the ids of tokens that are learned, and IGNORED for the others, in the shape of both.

    As an unsigned number, IGNORED is larger than every id. Writing it where a flag says so would take twice as long.
    """
    ids: AnyArray = ignored.astype(np.int32).view(np.uint32)
    return np.maximum(tokens, ids, out=ids).view(np.int32)
