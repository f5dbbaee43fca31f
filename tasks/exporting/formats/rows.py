"""Rows of formats that keep a table: a document each, or a sample of T tokens; their ids and labels.

Samples are the runs of T tokens of a file's documents, end to end, as packing `concat` has them; the rest of the file,
shorter than T, is left out. Labels are the ids, with -100 where a token is not learned. They are not shifted: models of
transformers shift them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tokenloom.tasks.exporting.documents import Documents, Piece
from tokenloom.tasks.exporting.formats.base import ExportUnit, VersionFacts, learned_bytes
from tokenloom.tasks.exporting.hashed_file import report_tokens

_IGNORED = -100
PART_BYTES = 2**29


def row_pieces(documents: Documents, facts: VersionFacts) -> Iterator[Piece]:
    """Yield pieces of whole rows; `lengths` are the tokens of each."""
    length = facts.options.seq_len
    if length is None:
        yield from documents.pieces()
        return
    rest: Piece | None = None
    for piece in documents.pieces():
        joined = _joined(rest, piece)
        count = len(joined.ids) // length
        end = count * length
        classes = joined.classes
        lengths = np.full(count, length, np.uint32)
        if count:
            yield Piece(joined.ids[:end], lengths, None if classes is None else classes[:end])
        rest = Piece(joined.ids[end:], lengths[:0], None if classes is None else classes[end:])


def _joined(rest: Piece | None, piece: Piece) -> Piece:
    if rest is None:
        return piece
    classes = None
    if rest.classes is not None and piece.classes is not None:
        classes = np.concatenate([rest.classes, piece.classes])
    return Piece(np.concatenate([rest.ids, piece.ids]), piece.lengths, classes)


def sample_losses(facts: VersionFacts) -> list[str]:
    """Return the loss of samples: the end of each file."""
    length = facts.options.seq_len
    if length is None:
        return []
    return [
        f"samples of {length:,} tokens cross documents; up to {length - 1:,} tokens at the end of each file are lost"
    ]


def schema(facts: VersionFacts) -> pa.Schema:
    """Return the columns: `input_ids`, and of a version with masks `labels`.

    Ids of 8 bits are widened to uint16, because torch's formatter of datasets would leave them uint8; those of 32 bits
    are int32, which every trainer takes.
    """
    ids = pa.int32() if facts.token_bytes == 4 else pa.uint16()
    fields = [pa.field("input_ids", pa.list_(ids))] + [pa.field("labels", pa.list_(pa.int32()))] * facts.has_masks
    return pa.schema(fields)


def record_batches(unit: ExportUnit, facts: VersionFacts) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a unit."""
    columns = schema(facts)
    for piece in row_pieces(unit.documents, facts):
        offsets = pa.array(np.append(0, np.cumsum(piece.lengths, dtype=np.int64))).cast(pa.int32())  # checks the range
        ids = piece.ids.astype(columns.field("input_ids").type.value_type.to_pandas_dtype(), copy=False)
        arrays = [pa.ListArray.from_arrays(offsets, pa.array(ids))]
        if facts.has_masks:
            labels = np.where(learned_bytes(piece, facts), piece.ids.astype(np.int32), np.int32(_IGNORED))
            arrays.append(pa.ListArray.from_arrays(offsets, pa.array(labels)))
        yield pa.record_batch(arrays, schema=columns)
        report_tokens(len(piece.ids), len(piece.lengths))
