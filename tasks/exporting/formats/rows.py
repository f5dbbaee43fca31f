"""Formats that keep a table: rows are documents, or samples of T tokens, with their ids and labels.

Samples are the runs of T tokens of a file's documents, end to end, as packing `concat` has them; the rest of the file,
shorter than T, is left out. Labels are the ids, with -100 where a token is not learned. They are not shifted: models of
transformers shift them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tokenloom.errors import SpecError
from tokenloom.storage.formats.arrays import AnyArray, AnyDtype
from tokenloom.tasks.exporting.documents import Documents, Piece
from tokenloom.tasks.exporting.formats.base import ExportFormat, ExportUnit, VersionFacts, check_ids, learned_bytes
from tokenloom.tasks.sources.tokens.id_columns import IDS, IGNORED, LABELS
from tokenloom.wording import counted

PART_BYTES = 2**29


class TableFormat(ExportFormat):
    """A format of rows; what all of them refuse and lose."""

    takes_samples = True

    def refuse(self, facts: VersionFacts) -> None:
        """Raise SpecError if ids need 32 bits without a sign, or a split has no sample."""
        check_ids(facts, 2**31, self.name, "olmo")
        for split, documents in facts.splits.items():
            if not num_rows(documents, facts):
                raise SpecError(
                    f"--seq-len {facts.options.seq_len:,}: {split} has only {counted(documents.num_tokens, 'token')}; "
                    "use shorter samples, or leave it out with --split"
                )

    def parts(self, documents: Documents, facts: VersionFacts) -> list[Documents]:
        """See ExportFormat.parts; without those that are shorter than a sample."""
        return [part for part in super().parts(documents, facts) if num_rows(part, facts)]

    def losses(self, facts: VersionFacts) -> list[str]:
        """Return what samples lose: the end of each file."""
        length = facts.options.seq_len
        if length is None:
            return []
        lost = f"up to {length - 1:,} tokens at the end of each file are lost"
        return [f"samples of {length:,} tokens cross documents; {lost}"]


def num_rows(documents: Documents, facts: VersionFacts) -> int:
    """Return how many rows the documents of a file are."""
    length = facts.options.seq_len
    return documents.num_documents if length is None else documents.num_tokens // length


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


def columns(facts: VersionFacts) -> dict[str, AnyDtype]:
    """Return the types of items of the columns: `input_ids`, and of a version with masks `labels`.

    Ids of 8 bits are widened to uint16, because torch's formatter of datasets would leave them uint8; those of 32 bits
    are int32, which every trainer takes.
    """
    ids = np.dtype("<i4" if facts.token_bytes == 4 else "<u2")
    return {IDS: ids, LABELS: np.dtype("<i4")} if facts.has_masks else {IDS: ids}


def values(piece: Piece, facts: VersionFacts) -> list[AnyArray]:
    """Return the items of each column, those of all rows of a piece end to end."""
    found = [piece.ids.astype(columns(facts)[IDS], copy=False)]
    if facts.has_masks:
        found.append(np.where(learned_bytes(piece, facts), piece.ids.astype("<i4"), np.int32(IGNORED)))
    return found


def schema(facts: VersionFacts) -> pa.Schema:
    """Return the columns as Arrow has them."""
    return pa.schema([(name, pa.list_(pa.from_numpy_dtype(dtype))) for name, dtype in columns(facts).items()])


def record_batches(unit: ExportUnit, facts: VersionFacts) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a unit."""
    for piece in row_pieces(unit.documents, facts):
        offsets = pa.array(np.append(0, np.cumsum(piece.lengths, dtype=np.int64))).cast(pa.int32())  # checks the range
        arrays = [pa.ListArray.from_arrays(offsets, pa.array(items)) for items in values(piece, facts)]
        yield pa.record_batch(arrays, schema=schema(facts))
