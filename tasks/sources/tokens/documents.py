"""From the documents of a file to a batch of rows: ids without those around them, as bytes, checked and counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import BadRow
from tokenloom.storage.formats.arrays import AnyArray, Int64s
from tokenloom.tasks.sources.base import Rows
from tokenloom.tasks.sources.tokens.base import ID_BYTES, Piece, TokenFormat


@dataclass(frozen=True)
class _Around:
    """Where the documents of a piece are without the ids around them, all (n,): [start, end) and what was there."""

    start: Int64s
    end: Int64s
    has_bos: NDArray[np.bool_]
    has_eot: NDArray[np.bool_]


def rows_of(piece: Piece, url: str, form: TokenFormat) -> Rows:
    """Return the documents of a piece as rows, with those that have ids outside of the vocabulary as bad ones.

    Args:
        piece: of a file.
        url: of the file.
        form: its format.
    """
    ids = _unsigned(piece.ids)
    bad = list(piece.bad)
    limit = min(form.vocab_size, np.iinfo(piece.ids.dtype).max + 1)  # a negative id is above it
    if ids.max(initial=0) >= limit:
        found, is_kept = _outside(piece, np.flatnonzero(ids >= limit), url, form)
        bad = sorted([*bad, *found], key=lambda row: row.row)
        piece = _only(piece, is_kept)
        ids = _unsigned(piece.ids)
    around = _around(piece, ids, form)
    starts = np.cumsum(piece.lengths) - piece.lengths
    is_inside = np.ones(len(ids), bool)
    is_inside[starts[around.has_bos]] = False
    is_inside[around.end[around.has_eot]] = False
    offsets = np.concatenate([[0], np.cumsum(around.end - around.start)])
    texts = _binary(ids[is_inside].astype("<u4"), offsets * ID_BYTES)
    masks = None
    if piece.learned is not None:
        masks = _masks(piece.learned, is_inside, starts, around, offsets, form.bos_id is not None)
    return Rows(texts, piece.rows, bad=tuple(bad), masks=masks)


def _unsigned(ids: AnyArray) -> AnyArray:
    """Return ids as unsigned values of the same width."""
    return ids if ids.dtype.kind == "u" else ids.view(f"{ids.dtype.byteorder}u{ids.dtype.itemsize}".replace("|", ""))


def _outside(piece: Piece, at: Int64s, url: str, form: TokenFormat) -> tuple[list[BadRow], NDArray[np.bool_]]:
    """Return the documents with an id outside of the vocabulary, which is at some places, and whether each has none."""
    ends = np.cumsum(piece.lengths)
    documents, first = np.unique(np.searchsorted(ends, at, side="right"), return_index=True)
    bad = []
    for document, position in zip(documents.tolist(), at[first].tolist(), strict=True):
        row = int(piece.rows[document])
        token = position - int(ends[document] - piece.lengths[document])
        message = (
            f"{form.place(url, row)}: its token {token:,} is {piece.ids[position]}, outside of the vocabulary "
            f"[0, {form.vocab_size:,}); check tokenizer.vocab_size and the type of the ids, or repair the file"
        )
        bad.append(BadRow(message, row, "unknown_id"))
    is_kept = np.ones(len(piece.lengths), bool)
    is_kept[documents] = False
    return bad, is_kept


def _only(piece: Piece, is_kept: NDArray[np.bool_]) -> Piece:
    """Return a piece with only some documents."""
    of_tokens = np.repeat(is_kept, piece.lengths)
    learned = None if piece.learned is None else piece.learned[of_tokens]
    return Piece(piece.ids[of_tokens], piece.lengths[is_kept], piece.rows[is_kept], learned, piece.bad)


def _around(piece: Piece, ids: AnyArray, form: TokenFormat) -> _Around:
    """Return where each document is without one leading and one end-of-text id."""
    end = np.cumsum(piece.lengths)
    start = end - piece.lengths
    has_bos = np.zeros(len(start), bool)
    if form.bos_id is not None:
        there = np.flatnonzero(start < end)
        has_bos[there] = ids[start[there]] == form.bos_id
    start = start + has_bos
    has_eot = np.zeros(len(start), bool)
    there = np.flatnonzero(start < end)
    has_eot[there] = ids[end[there] - 1] == form.eot_id
    return _Around(start, end - has_eot, has_bos, has_eot)


def _masks(
    learned: NDArray[np.bool_],
    is_inside: NDArray[np.bool_],
    starts: Int64s,
    around: _Around,
    offsets: Int64s,
    with_bos: bool,
) -> pa.Array:
    """Return (n,) bytes, 0 or 1 for each token of a document as it will be encoded: with the ids around it.

    Those that the file does not have are no targets.
    """
    bounds = offsets + (1 + with_bos) * np.arange(len(offsets))
    begins, ends = bounds[:-1], bounds[1:]
    mask = np.zeros(int(bounds[-1]), np.uint8)
    is_document = np.ones(len(mask), bool)
    is_document[ends - 1] = False
    if with_bos:
        is_document[begins] = False
    mask[is_document] = learned[is_inside]
    mask[(ends - 1)[around.has_eot]] = learned[around.end[around.has_eot]]
    mask[begins[around.has_bos]] = learned[starts[around.has_bos]]
    return _binary(mask, bounds)


def _binary(values: AnyArray, offsets: Int64s) -> pa.Array:
    """Return (n,) large_binary over values without a copy, from (n + 1,) offsets in bytes."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
