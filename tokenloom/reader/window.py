"""From rows to tokens: a window of consecutive rows, whose tokens are copied in their stored type and then widened.

A copy joins memoryviews. For a few kilobytes each, that is faster than an array operation, which would also release
Python's lock, and wait 5 ms to get it back if another thread computes in Python.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tokenloom.reader.batch import BatchFormat
from tokenloom.reader.samples import RowPieces, SampleTable, SplitSamples
from tokenloom.reader.selection import DocumentSources
from tokenloom.reader.shard_data import TokenBytes
from tokenloom.reader.shards import AnyFiles
from tokenloom.storage.formats.arrays import AnyArray, Int32s, Int64s, Tokens, offsets_of, ranges
from tokenloom.storage.formats.classes import TEXT_CLASS

if TYPE_CHECKING:
    from tokenloom.storage.cache.partial_shard import PartialShard

_TOKENS_AT_A_TIME = 2**17  # the system reclaims the memory of larger temporary arrays, and each new one faults again


#: what holds the bytes of pieces: open shards or masks, or padding
PieceSource: TypeAlias = "AnyFiles | _InMemory"
#: (source, shard, start, end): the bytes [start, end) of a shard's tokens, or of their classes
Piece: TypeAlias = "tuple[PieceSource, int, int, int]"
#: the bytes of a source, by shard
_Contents: TypeAlias = Mapping[int, TokenBytes] | DocumentSources
_HolderOf: TypeAlias = Callable[[SplitSamples], PieceSource]
_Filler: TypeAlias = np.int32 | np.uint8 | np.uint16 | np.uint32


class _Pieces(NamedTuple):
    """The pieces of all rows, in order; those of row r are [row_starts[r], row_starts[r + 1])."""

    sources: list[PieceSource]
    contents: list[_Contents]  # `bytes` of the sources, looked up once for the window
    shards: list[int]
    starts: list[int]  # in bytes, as `ends`
    ends: list[int]
    row_starts: Int64s  # (num_rows + 1,)


class TokenWindow:
    """Consecutive rows of a stream; those after the last one that has pieces are padding.

    Args:
        splits: of the stream.
        table: their shards.
        rows: the pieces of the rows, with the numbers of shards in the table.
        num_rows: how many rows the window has, with padding.
        form: what a batch holds.
        epochs: (num_splits,) of the first row of each split, in its own stream.
    """

    def __init__(
        self,
        splits: Sequence[SplitSamples],
        table: SampleTable,
        rows: RowPieces,
        num_rows: int,
        form: BatchFormat,
        epochs: Int64s,
    ) -> None:
        self.splits, self.table, self.rows = splits, table, rows
        self.num_rows, self.form, self.epochs = num_rows, form, epochs
        #: (num_rows,) tokens in each row; padding follows them
        self.lengths = np.zeros(num_rows, dtype=np.int64)
        self.lengths[: len(rows.row_offsets) - 1] = np.add.reduceat(rows.lengths, rows.row_offsets[:-1])
        used = np.flatnonzero(np.bincount(rows.shards + 1)[1:])
        columns = used, table.splits[used], table.shards[used]
        #: (number in the table, split, number in the split) of each shard that the rows need
        self.used_shards = [*zip(*(column.tolist() for column in columns), strict=True)]
        self.has_padding = bool((self.lengths < form.row_tokens).any())
        # Not cached_property: before Python 3.12 it holds a lock, which a fork may leave locked in the child.
        self._known_pieces: dict[str, _Pieces] = {}  # by what they are of
        self._known_boundaries: Boundaries | None = None

    def members(self, first: int, end: int) -> Int64s:
        """Number the datasets of rows [first, end), (end - first,); -1 for padding."""
        members = np.full(end - first, -1)
        begins = self.rows.row_offsets[:-1][first:end]
        members[: len(begins)] = self.table.splits[self.rows.shards[begins]]
        return members

    def _pieces(self, holder_of: _HolderOf, padding: PieceSource, width: int) -> _Pieces:
        """List where the items of all rows are, of `width` bytes each."""
        rows = self.rows
        row_starts, shards, starts, lengths = rows.row_offsets, rows.shards, rows.starts, rows.lengths
        if self.has_padding:
            short = np.flatnonzero(self.lengths < self.form.row_tokens)
            row_starts = np.append(row_starts, np.full(self.num_rows + 1 - len(row_starts), len(shards)))
            at = row_starts[short + 1]  # padding follows the tokens of its row
            shards, starts = np.insert(shards, at, -1), np.insert(starts, at, 0)
            lengths = np.insert(lengths, at, self.form.row_tokens - self.lengths[short])
            row_starts = row_starts + np.searchsorted(short, np.arange(self.num_rows + 1))
        splits, starts = self.table.splits[shards], starts * width
        holders, contents = (np.full(len(self.splits) + 1, each, dtype=object) for each in (padding, padding.bytes))
        for number in np.flatnonzero(np.bincount(splits + 1)[1:]).tolist():
            holders[number] = holder = holder_of(self.splits[number])
            contents[number] = holder.bytes
        indices, ends = self.table.shards[shards], starts + lengths * width
        columns = indices.tolist(), starts.tolist(), ends.tolist()
        return _Pieces(holders[splits].tolist(), contents[splits].tolist(), *columns, row_starts)

    def tokens(self, first: int, end: int) -> Tokens:
        """Copy rows [first, end), (end - first, T + 1) of the stored type; padding is end-of-text."""
        return self._copy("tokens", lambda split: split.files[0], first, end, self.form.dtype.type(self.form.eot_id))

    def classes(self, first: int, end: int) -> NDArray[np.uint8]:
        """Copy the classes of the tokens of rows [first, end), (end - first, T + 1).

        Padding has the class 0. Tokens of a version without masks are plain text.
        """
        text = _InMemory(defaultdict(_TextClasses))
        return self._copy("classes", lambda split: [*split.files, text][1], first, end, np.uint8(0))

    def sources(self, first: int, end: int) -> Int32s:
        """Find the sources of the tokens of rows [first, end), (end - first, T + 1); -1 for padding."""
        return self._copy("sources", lambda split: _InMemory(split.selection.sources), first, end, np.int32(-1))

    def _copy(self, items: str, holder_of: _HolderOf, first: int, end: int, filler: _Filler) -> AnyArray:
        """Join the items of rows [first, end); each split has a holder, and those of padding are `filler`."""
        if items not in self._known_pieces:
            padding = _InMemory({-1: filler.tobytes() * self.form.row_tokens})
            self._known_pieces[items] = self._pieces(holder_of, padding, filler.itemsize)
        pieces = self._known_pieces[items]
        part = slice(int(pieces.row_starts[first]), int(pieces.row_starts[end]))
        columns = pieces.shards[part], pieces.starts[part], pieces.ends[part]
        found: Sequence[memoryview | bytes]
        try:
            found = [
                bytes_of[shard][a:b] for bytes_of, shard, a, b in zip(pieces.contents[part], *columns, strict=True)
            ]
        except KeyError:  # a file is not open, or still being downloaded
            found = _read_by_shard([*zip(pieces.sources[part], *columns, strict=True)])
        return np.frombuffer(b"".join(found), filler.dtype).reshape(end - first, self.form.row_tokens)

    @property
    def boundaries(self) -> Boundaries:
        """Where documents and padding begin in the rows."""
        if self._known_boundaries is None:
            places = marks = np.zeros(0, dtype=np.int64)
            if self.rows.marks is not None and self.rows.mark_offsets is not None:
                counts, marks = np.diff(self.rows.mark_offsets), self.rows.marks
                places = np.repeat(np.arange(len(counts)), counts)
            self._known_boundaries = Boundaries(self.form, self.lengths, places, marks)
        return self._known_boundaries


def _fetch(pieces: Sequence[Piece]) -> None:
    """Download what is missing of the bytes of pieces, of all members at once."""
    wanted: dict[PartialShard, set[int]] = {}
    by_source: dict[PieceSource, list[tuple[int, int, int]]] = {}
    for source, shard, start, end in pieces:
        by_source.setdefault(source, []).append((shard, start, end))
    for source, its_pieces in by_source.items():
        wanted |= source.missing(its_pieces)
    if wanted:
        from tokenloom.storage.cache.partial_shard import fetch_blocks  # for remote stores only

        fetch_blocks({partial: sorted(blocks) for partial, blocks in wanted.items()})


def _read_by_shard(pieces: Sequence[Piece]) -> list[bytes]:
    """Copy the bytes of pieces, shard by shard: perhaps only one can be open at a time."""
    by_source: dict[PieceSource, dict[int, list[int]]] = {}
    for place, (source, shard, _, _) in enumerate(pieces):
        by_source.setdefault(source, {}).setdefault(shard, []).append(place)
    found = [b""] * len(pieces)
    _fetch(pieces)
    for source, by_shard in by_source.items():
        for shard, places in by_shard.items():
            _fetch([pieces[place] for place in places])  # if all of them were too many
            data = source.bytes_of(shard)
            for place in places:
                found[place] = bytes(data[pieces[place][2] : pieces[place][3]])
            del data  # opening the next shard may mean closing this one
    return found


@dataclass(eq=False)
class _InMemory:
    """A source of pieces in memory: padding, the only shard of which is -1; classes of plain text; or sources."""

    bytes: _Contents

    def bytes_of(self, shard: int) -> TokenBytes:
        """Look up the bytes of padding, or of a shard."""
        return self.bytes[shard]

    def missing(self, pieces: Sequence[tuple[int, int, int]]) -> dict[PartialShard, set[int]]:
        """Find nothing: it is in memory."""
        return {}


class _TextClasses:
    """The classes of a shard of plain text."""

    def __getitem__(self, part: slice[int, int, None]) -> bytes:
        return bytes([TEXT_CLASS]) * (part.stop - part.start)


class Boundaries:
    """Where documents and padding begin in n rows; gives the fields and the ignored labels of any range of rows.

    A run is the part of a row that belongs to one document, with the padding that makes it a multiple of
    `pad_documents`; or it is the padding at the end of the row.

    Args:
        form: what a batch holds.
        lengths: (n,) tokens in each row; padding follows them.
        rows, marks: (m,) for each document or padding that begins inside a row: the row, and the token in [1, T] that
            begins it; sorted by row, then mark.
    """

    def __init__(self, form: BatchFormat, lengths: Int64s, rows: Int64s, marks: Int64s) -> None:
        self._form = form
        self._ignored = self._ignored_labels(lengths, rows, marks)
        if form.pad_documents > 1:
            begins_run = marks % form.pad_documents == 0
            rows, marks = rows[begins_run], marks[begins_run]
        inside = marks < form.seq_len
        counts = np.bincount(rows[inside], minlength=len(lengths)) + 1
        row_of_run = np.repeat(np.arange(len(lengths)), counts)
        firsts = np.zeros(len(row_of_run), dtype=np.int64)
        # Each row has a run at token 0 before its marks, so mark k of row r begins run k + r + 1.
        firsts[np.arange(int(inside.sum())) + rows[inside] + 1] = marks[inside]
        #: (num_rows + 1,) the number of runs before each row
        self._row_runs = offsets_of(counts)
        self._runs = row_of_run * form.seq_len + firsts
        self._shifts = -firsts.astype(np.int32)  # added to a position in a row: the position in the document
        self._run_lengths = np.diff(self._runs, append=len(lengths) * form.seq_len)
        self._added = {"document_ids": np.zeros(1, np.int32), "position_ids": np.arange(form.seq_len, dtype=np.int32)}
        ids = np.arange(len(row_of_run)) - self._row_runs[row_of_run]
        self._ids = np.where(firsts >= lengths[row_of_run], -1, ids).astype(np.int32)

    def _ignored_labels(self, lengths: Int64s, rows: Int64s, marks: Int64s) -> Int64s:
        """List the positions, in the flattened rows, of the labels that losses must ignore, ascending."""
        seq_len, shift = self._form.seq_len, self._form.shift
        first = np.clip(lengths - shift, 0, seq_len)  # the first label that has no token
        padding = ranges(np.arange(len(lengths)) * seq_len + first, seq_len - first)
        if self._form.pad_documents > 1:
            missing = -marks % self._form.pad_documents
            padding = np.sort(np.concatenate([padding, ranges(rows * seq_len + marks - shift, missing)]))
        if self._form.learn is not None:
            padding = padding[:0]  # its class keeps it out
        if not self._form.mask_documents:
            return padding
        labels = marks - shift
        begins: Int64s = (rows * seq_len + labels)[labels < seq_len]
        if not len(padding):
            return begins
        # Both ascend. np.union1d would take half a minute for 30 M positions: newer releases of numpy hash them.
        at = np.searchsorted(padding, begins)
        is_new = padding[np.minimum(at, len(padding) - 1)] != begins
        return np.insert(padding, at[is_new], begins[is_new])

    def write(self, field: str, first: int, end: int, out: Int32s) -> None:
        """Write a field of rows [first, end) to `out`, (end - first, T).

        "document_ids" number the documents of a row from 0, with -1 for padding; "position_ids" count a token's
        position from the first token of its document in the row.
        """
        num_rows = max(1, _TOKENS_AT_A_TIME // self._form.seq_len)
        for row in range(first, end, num_rows):
            self._write(field, row, min(row + num_rows, end), out[row - first :][:num_rows])

    def _write(self, field: str, first: int, end: int, out: Int32s) -> None:
        runs = slice(self._row_runs[first], self._row_runs[end])
        of_runs = self._ids if field == "document_ids" else self._shifts
        spread = np.repeat(of_runs[runs], self._run_lengths[runs]).reshape(out.shape)
        np.add(spread, self._added[field], out=out)

    def ignored_labels(self, first: int, end: int) -> Int64s:
        """List the positions, in rows [first, end) flattened, of the labels that losses must ignore."""
        begin, stop = first * self._form.seq_len, end * self._form.seq_len
        a, b = np.searchsorted(self._ignored, (begin, stop))
        return self._ignored[a:b] - begin

    def sequences(self, first: int, end: int) -> tuple[Int32s, int]:
        """Compute cu_seqlens and max_seqlen of rows [first, end) flattened: the (num_runs + 1,) offsets of the runs.

        With a fixed length, empty runs at the end follow; raises ValueError if the runs are too many for it.
        """
        begin, stop = first * self._form.seq_len, end * self._form.seq_len
        runs = self._runs[self._row_runs[first] : self._row_runs[end]]
        offsets = np.append(runs - begin, stop - begin).astype(np.int32)
        fixed = self._form.cu_seqlens_length or len(offsets)
        if len(offsets) > fixed:
            raise ValueError(
                f"cu_seqlens_length={fixed:,} is the most numbers of a batch, one more than its documents and "
                f"paddings; this one has {len(offsets):,}: pass at least so many"
            )
        return np.pad(offsets, (0, fixed - len(offsets)), "edge"), int(np.diff(offsets).max())
