"""Rows of an input read a second time, to see whether they still give what was stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import pyarrow as pa

from tokenloom.storage.stores.store_file import sharing_files
from tokenloom.tasks.inputs import InputFile
from tokenloom.tasks.rows.rules import Place, transformed
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import Rows, SourceReader, make_reader

_CLOSE_BLOCK_BYTES, _APART_BLOCK_BYTES = 16 * 2**20, 2**20


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
    for batch in each_bounded(_located(reader, file.url, wanted), file.options["max_bytes"], file.url):
        here = np.flatnonzero(np.isin(batch.rows, numbers))
        if len(here):
            rows = batch.rows[here]
            yield transformed(batch.texts.take(pa.array(here)), rows, transform, place), rows.tolist(), place
        found += len(here)
        if found == len(wanted):
            return  # a file that is one partition need not be read to its end


def sharing_blocks(file: InputFile, num_rows: int) -> AbstractContextManager[None]:
    """Return a block in which `read_rows` of so many rows asks for no part of a remote file twice."""
    return sharing_files(_block_bytes(file.num_bytes, num_rows))


def _located(reader: SourceReader, url: str, rows: Sequence[int]) -> Iterator[Rows]:
    """Yield the parts of a file that hold these rows."""
    for part in reader.locate(url, rows):
        yield from reader.read(url, part)


def _block_bytes(num_bytes: int, num_rows: int) -> int:
    """Return how much of a remote file to read at once for some of its rows: much where they lie close together."""
    return _CLOSE_BLOCK_BYTES if num_bytes < num_rows * _APART_BLOCK_BYTES else _APART_BLOCK_BYTES
