"""Rows of an input read a second time, to see whether they still give what was stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from tokenloom.tasks.inputs import InputFile
from tokenloom.tasks.rules import Place, transformed
from tokenloom.tasks.sources import make_reader


def read_rows(
    file: InputFile, wanted: Sequence[int], transform: str | None
) -> Iterator[tuple[pa.Array, list[int], Place]]:
    """Yield (texts, their rows, what names a row in a message) until all wanted rows are found, or the file ends.

    Args:
        file: the input.
        wanted: rows, sorted.
        transform: applied to each text, as the build did.
    """
    reader = make_reader(file.options)
    place = partial(reader.place, file.url)
    numbers, found = np.array(wanted, np.uint64), 0
    for start, end in reader.locate(file.url, wanted):
        for batch in reader.read(file.url, start, end):
            here = np.flatnonzero(np.isin(batch.rows, numbers))
            if len(here):
                rows = batch.rows[here]
                yield transformed(batch.texts.take(pa.array(here)), rows, transform, place), rows.tolist(), place
            found += len(here)
            if found == len(wanted):
                return  # a file that is one partition need not be read to its end
