"""Read some rows of a source again, as the build read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tokenloom.tasks.planning.inputs import InputFile
from tokenloom.tasks.rows.forms import form_of
from tokenloom.tasks.rows.rules import PlaceOf, transformed
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import Rows, SourceReader, make_reader
from tokenloom.tasks.sources.rows.conversations import WANTED


def read_rows(file: InputFile, wanted: Sequence[int], transform: str | None) -> Iterator[tuple[Rows, PlaceOf]]:
    """Yield (rows, how a message names one) until all wanted rows are found or the file ends.

    Args:
        file: the input.
        wanted: rows, sorted.
        transform: applied to each text, as the build did.
    """
    reader = make_reader({**file.options, WANTED: frozenset(wanted)})
    place_of = partial(reader.place, file.url)
    numbers, num_found = np.array(wanted, np.uint64), 0
    for batch in each_bounded(located(reader, file.url, wanted), file.options["max_bytes"], file.url):
        here = np.flatnonzero(np.isin(batch.rows, numbers))
        if len(here):
            found = batch.take(here)
            texts = transformed(found.texts, found.rows, transform, place_of, form_of(file.options))
            yield replace(found, texts=texts), place_of
        num_found += len(here)
        if num_found == len(wanted):
            return  # a file that is one partition need not be read to its end


def located(reader: SourceReader, url: str, rows: Sequence[int]) -> Iterator[Rows]:
    """Yield the rows of the parts of a file that hold these rows, which are sorted."""
    for part in reader.locate(url, rows):
        yield from reader.read(url, part)
