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
        #: 1 for tokens that are learned, else 0, (n * B, T + 1); None without masks
        self._learned: NDArray[np.uint8] | None = None
        #: of the labels that losses ignore, whatever their classes: the batch, and the position in the flattened batch
        self.batches = self.positions = _NONE
        if form.needs_marks or window.has_padding:
            flat = window.boundaries.ignored_labels(first, end)
            self.batches, self.positions = np.divmod(flat, batch_size * form.seq_len)
        if form.learn is not None and classes is not None:
            self._learned = _learned(classes, form.learn)
            self._learned[:, 0 if form.shift else -1] = 0  # the token of a row that no label stands for
            rows, labels = np.divmod(self.positions, form.seq_len)
            self._learned[self.batches * batch_size + rows, labels + form.shift] = 0

    def counts(self) -> list[int]:
        """Return the number of targets in each batch: the labels that losses do not ignore.

        With labels="same", models shift the labels, so that the first one of a row is never a target.
        """
        seq_len, shift = self._form.seq_len, self._form.shift
        if self._learned is not None:
            learned = self._learned.view(np.bool_).reshape(self._num_batches, self._batch_size, seq_len + 1)
            counts: list[int] = [int(np.count_nonzero(batch)) for batch in learned]
            return counts if shift else np.subtract(counts, learned[:, :, 0].sum(1)).tolist()
        num_labels = self._batch_size * (seq_len + shift - 1)
        batches = self.batches if shift else self.batches[self.positions % seq_len > 0]
        ends = np.searchsorted(batches, np.arange(self._num_batches + 1)).tolist()  # they ascend
        return [num_labels - (end - first) for first, end in pairwise(ends)]

    def write(self, tokens: Tokens, out: Int64s) -> None:
        """Write the inputs and labels of the batches to `out`, (n, 2, B, T), from their tokens, (n * B, T + 1)."""
        if self._learned is not None:
            widen(self._form, tokens, out, _label_ids(tokens, self._learned))
            return
        widen(self._form, tokens, out)
        out.reshape(len(out), 2, -1)[self.batches, 1, self.positions] = IGNORED

    def ignored(self) -> NDArray[np.bool_] | None:
        """Return whether losses ignore each label, (n * B, T); None without masks."""
        return None if self._learned is None else self._form.of_labels(self._learned) == 0


def _learned(classes: NDArray[np.uint8], learn: str | tuple[str, ...]) -> NDArray[np.uint8]:
    """Return 1 for tokens that are learned, else 0, by their classes.

    A few operations on whole arrays take a quarter of the time of looking up each class in a table.
    """
    bits, runs = _learned_values(learn)
    kept = classes & bits
    # Below the first of a run, the difference wraps around.
    (learned, *others) = [(kept - first < length).view(np.uint8) for first, length in runs]
    for other in others:
        learned |= other
    return learned


@cache
def _learned_values(learn: str | tuple[str, ...]) -> tuple[np.uint8, list[tuple[np.uint8, np.uint8]]]:
    """Return the bits of a class that decide whether it is learned, and the values of these bits that are.

    The values are runs of neighbours: the first one, and how many.
    """
    learned = learned_classes(learn)
    numbers = np.arange(256)
    bits = sum(1 << bit for bit in range(8) if (learned != learned[numbers ^ 1 << bit]).any())
    values = np.unique(numbers[learned] & bits)
    runs = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1)
    return np.uint8(bits), [(np.uint8(run[0]), np.uint8(len(run))) for run in runs]


def _label_ids(tokens: Tokens, learned: NDArray[np.uint8]) -> Int32s:
    """Return the ids of tokens that are learned, and IGNORED for the others, in the shape of both.

    As an unsigned number, IGNORED is larger than every id. Writing it where a flag says so would take twice as long.
    """
    ids: AnyArray = ((learned.view(np.int8) - np.int8(1)) & np.int8(IGNORED)).astype(np.int32).view(np.uint32)
    return np.maximum(tokens, ids, out=ids).view(np.int32)
