"""Read documents from their source again, and encode them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tokenloom.storage.formats.keys import content_digits, hash_of_ids
from tokenloom.tasks.encoding.documents import DocumentEncoder
from tokenloom.tasks.planning.inputs import InputFile
from tokenloom.tasks.rows.forms import form_of
from tokenloom.tasks.rows.rules import PlaceOf, transformed
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.memory import each_bounded
from tokenloom.tasks.sources import Rows, SourceReader, make_reader
from tokenloom.tasks.sources.files.shared_files import sharing_files
from tokenloom.tasks.sources.rows.conversations import WANTED

_CLOSE_BLOCK_BYTES, _APART_BLOCK_BYTES = 16 * 2**20, 2**20


@dataclass(frozen=True)
class EncodedAgain:
    """A document that was read and encoded again; `place` names its row in a message.

    `content` is its content hash as 32 hexadecimal digits, "" if the transform leaves the row out now; `ids_hash` is
    that of its ids and classes, see hash_of_ids.
    """

    row: int
    place: str
    content: str
    ids_hash: int


def encode_again(
    file: InputFile, rows: Sequence[int], transform: str | None, encoder: DocumentEncoder, near_bytes: int
) -> Iterator[EncodedAgain]:
    """Yield the documents of rows of a file, encoded again; leaves out those that are gone.

    Args:
        file: the input.
        rows: sorted.
        transform: applied to each text, as the build did.
        encoder: the build's, of the form of the file.
        near_bytes: the bytes of the file over which the rows are spread, about.

    Raises InputError if the input can't be read, or the transform or a template fails.
    """
    progress.report(progress.Working(f"reading documents of {file.url} again"))
    with sharing_files(_block_bytes(near_bytes, len(rows))):
        for found, place_of in read_rows(file, rows, transform):
            yield from _encode(encoder, found, place_of)


def _encode(encoder: DocumentEncoder, found: Rows, place_of: PlaceOf) -> Iterator[EncodedAgain]:
    is_there = found.texts.is_valid().to_numpy(zero_copy_only=False)
    for row in found.rows[~is_there].tolist():  # the transform leaves it out now
        yield EncodedAgain(row, place_of(row), "", 0)
    again = found.take(np.flatnonzero(is_there))
    if not len(again.rows):
        return
    for part in encoder.prepared(iter([again]), "fail", "keep", place_of):
        encoded = encoder.encode(part)
        starts = np.cumsum(encoded.num_tokens, dtype=np.int64)[:-1]
        ids = np.split(encoded.tokens, starts)
        classes = [None] * len(ids) if encoded.classes is None else np.split(encoded.classes, starts)
        contents = encoder.form.contents(part.texts)
        for row, content, new_ids, new_classes in zip(part.rows.tolist(), contents, ids, classes, strict=True):
            yield EncodedAgain(row, place_of(row), content_digits(content), hash_of_ids(new_ids, new_classes))


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


def _block_bytes(num_bytes: int, num_rows: int) -> int:
    """Return how much of a remote file to read at once for some of its rows: more if they are close together."""
    return _CLOSE_BLOCK_BYTES if num_bytes < num_rows * _APART_BLOCK_BYTES else _APART_BLOCK_BYTES
