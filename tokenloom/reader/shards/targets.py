"""Which labels of a batch losses ignore, and how many are left: its targets.

Without masks, these follow from where documents and padding begin, and are few: they are positions. With masks, they
follow from the class of each token, and are many: they are a flag for each label.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tokenloom.reader.shards.batch_format import BatchFormat
from tokenloom.reader.shards.window import TokenWindow
from tokenloom.storage.formats.arrays import AnyArray
from tokenloom.storage.formats.classes import learned_classes

Ignored: TypeAlias = AnyArray
_NONE = np.zeros(0, np.int64)


def ignored_labels(window: TokenWindow, first: int, end: int, classes: NDArray[np.uint8] | None) -> Ignored:
    """Return which labels of rows [first, end) losses ignore.

    Args:
        window: the rows.
        first, end: at most 2**17 tokens at a time are fastest.
        classes: of the labels' tokens, (end - first, T), if the version has masks.

    Returns:
        Their positions in the flattened rows, (n,), ascending; with masks, a flag for each label, (end - first, T).
    """
    form = window.form
    if form.learn is None or classes is None:
        has_any = form.needs_marks or window.has_padding
        return window.boundaries.ignored_labels(first, end) if has_any else _NONE
    flags = _not_learned(classes, form.learn)
    if form.mask_documents:
        flags.reshape(-1)[window.boundaries.ignored_labels(first, end)] = True
    return flags


def _not_learned(classes: NDArray[np.uint8], learn: str | tuple[str, ...]) -> NDArray[np.bool_]:
    """Return whether tokens are no targets, by their classes.

    A few comparisons of whole arrays take a third of the time of looking up each class in a table.
    """
    bits, (value, *values) = _learned_values(learn)
    kept = classes & bits
    flags: NDArray[np.bool_] = kept != value
    for value in values:
        flags &= kept != value
    return flags


@cache
def _learned_values(learn: str | tuple[str, ...]) -> tuple[np.uint8, list[np.uint8]]:
    """Return the bits of a class that decide whether it is learned, and the values of these bits that are."""
    learned = learned_classes(learn)
    numbers = np.arange(256, dtype=np.uint8)
    bits = np.uint8(sum(1 << bit for bit in range(8) if (learned != learned[numbers ^ np.uint8(1 << bit)]).any()))
    return bits, list(np.unique(numbers[learned] & bits))


def num_targets(form: BatchFormat, ignored: Ignored, num_rows: int, num_batches: int) -> list[int]:
    """Return the number of targets in each batch of `num_rows` rows.

    These are the labels that losses do not ignore. With labels="same", models shift the labels, so the first label of a
    row is no target.

    Args:
        form: what a batch holds.
        ignored: of the rows of all batches, see ignored_labels.
        num_rows: B.
        num_batches: how many batches.
    """
    width, has_first = form.seq_len, form.labels == "shifted"
    num_labels = num_rows * (width - (not has_first))
    if ignored.dtype == np.bool_:
        flags = ignored.reshape(num_batches, num_rows, width)
        return [num_labels - int(np.count_nonzero(each if has_first else each[:, 1:])) for each in flags]
    positions = ignored if has_first else ignored[ignored % width > 0]
    ends = np.searchsorted(positions, np.arange(num_batches + 1) * (num_rows * width))
    counts: list[int] = (num_labels - np.diff(ends)).tolist()
    return counts
