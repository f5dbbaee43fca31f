"""From rows to tokens: a window of consecutive rows, whose tokens are copied in their stored type and then widened.

A copy joins memoryviews. For a few kilobytes each, that is faster than an array operation, which would also release
Python's lock, and wait 5 ms to get it back if another thread computes in Python.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tokenloom.reader.shards.batch_format import BatchFormat
from tokenloom.reader.shards.one_shard import OpenMask, OpenShard, TokenBytes
from tokenloom.reader.shards.open_shards import OpenShards
from tokenloom.reader.shards.rows import Boundaries, RowPieces, offsets_of
from tokenloom.storage.formats.arrays import Int32s, Int64s, Tokens
from tokenloom.storage.formats.classes import TEXT_CLASS


class PieceSource(Protocol):
    """What holds the bytes of pieces: the open shards or masks of a split, or padding."""

    @property
    def bytes(self) -> Mapping[int, TokenBytes]:
        """The bytes of the files that are open."""

    def bytes_of(self, shard: int) -> TokenBytes:
        """Return the bytes of a file, which is opened if necessary."""

    def fetch(self, pieces: Iterable[tuple[int, int, int]]) -> None:
        """Download what is missing of pieces, (shard, start, end), if their files are still being downloaded."""


#: the open shards of a split, or their masks
OpenFiles: TypeAlias = OpenShards[OpenShard] | OpenShards[OpenMask]
#: (source, shard, start, end): the bytes [start, end) of a shard's tokens, or of their classes
Piece: TypeAlias = tuple[PieceSource, int, int, int]


class WindowPart(NamedTuple):
    """The rows of one split in a window: row r of `rows` is row `places[r]` of the window."""

    files: list[OpenFiles]  # the open shards of the split, and the open masks if the version has any
    places: Int64s  # (n,) ascending
    rows: RowPieces
    member: int = 0  # the number of the dataset in its mixture


class _Pieces(NamedTuple):
    """The pieces of all rows, in order; those of row r are [row_starts[r], row_starts[r + 1])."""

    sources: list[PieceSource]
    shards: list[int]
    starts: list[int]  # in bytes, as `ends`
    ends: list[int]
    row_starts: Int64s  # (num_rows + 1,)


class TokenWindow:
    """Consecutive rows of a stream, from one or several splits; rows in no part are padding.

    Args:
        parts: the rows; each is in at most one part.
        num_rows: how many rows the window has, with padding.
        form: what a batch holds.
    """

    def __init__(self, parts: Sequence[WindowPart], num_rows: int, form: BatchFormat) -> None:
        self.parts, self.num_rows, self.form = parts, num_rows, form
        #: (num_rows,) tokens in each row; padding follows them
        self.lengths = np.zeros(num_rows, dtype=np.int64)
        for part in parts:
            self.lengths[part.places] = np.diff(offsets_of(part.rows.lengths)[part.rows.row_offsets])
        self.has_padding = bool((self.lengths < form.row_tokens).any())
        # Not cached_property: before Python 3.12 it holds a lock, which a fork may leave locked in the child.
        self._token_pieces: _Pieces | None = None
        self._class_pieces: _Pieces | None = None
        self._known_boundaries: Boundaries | None = None

    def touch(self, may_open: bool) -> None:
        """Mark the shards of the rows as used, so that other shards are closed before them; or open them."""
        for part in self.parts:
            indices = np.flatnonzero(np.bincount(part.rows.shards + 1)[1:]).tolist()
            for files in part.files:
                files.touch(indices, may_open)

    def members(self, first: int, end: int) -> Int64s:
        """Return the number of the dataset of rows [first, end), (end - first,); -1 for padding."""
        members = np.full(self.num_rows, -1)
        for part in self.parts:
            members[part.places] = part.member
        return members[first:end]

    def _pieces(self, sources_of_parts: Sequence[PieceSource], padding: PieceSource, width: int) -> _Pieces:
        """Return where the items of all rows are, of `width` bytes each."""
        columns = []
        for index, part in enumerate(self.parts):
            rows = part.rows
            place, start = np.repeat(part.places, np.diff(rows.row_offsets)), rows.starts * width
            source = np.where(rows.shards < 0, -1, index)  # -1 is padding
            columns.append([place, source, rows.shards, start, start + rows.lengths * width])
        if self.has_padding:
            columns.append(self._padding(width))  # the sort is stable, so padding follows the tokens of its row
        place, source, *bounds = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(place, kind="stable") if len(columns) > 1 else slice(None)
        # np.array would treat an OpenShards as a sequence.
        sources = np.fromiter([*sources_of_parts, padding], dtype=object)
        shards, starts, ends = (column[order].tolist() for column in bounds)
        row_starts = offsets_of(np.bincount(place, minlength=self.num_rows))
        return _Pieces(sources[source[order]].tolist(), shards, starts, ends, row_starts)

    def _padding(self, width: int) -> list[Int64s]:
        short = np.flatnonzero(self.lengths < self.form.row_tokens)
        zero = np.zeros(len(short), dtype=np.int64)
        missing = (self.form.row_tokens - self.lengths[short]) * width
        return [short, zero - 1, zero - 1, zero, missing]

    def tokens(self, first: int, end: int) -> Tokens:
        """Return rows [first, end), (end - first, T + 1) of the stored type; padding is end-of-text."""
        form = self.form
        if self._token_pieces is None:
            padding = _Padding(np.full(form.row_tokens, form.eot_id, form.dtype).tobytes())
            self._token_pieces = self._pieces([part.files[0] for part in self.parts], padding, form.dtype.itemsize)
        data = _joined(self._token_pieces, first, end)
        return np.frombuffer(data, form.dtype).reshape(end - first, form.row_tokens)

    def classes(self, first: int, end: int) -> NDArray[np.uint8] | None:
        """Return the classes of the tokens of rows [first, end), (end - first, T + 1), if the batch format needs them.

        Padding has the class 0. Tokens of a version without masks are plain text.
        """
        if not self.form.needs_classes:
            return None
        if self._class_pieces is None:
            text = _PlainText()
            masks = [part.files[1] if len(part.files) > 1 else text for part in self.parts]
            self._class_pieces = self._pieces(masks, _Padding(bytes(self.form.row_tokens)), 1)
        data = _joined(self._class_pieces, first, end)
        return np.frombuffer(data, np.uint8).reshape(end - first, self.form.row_tokens)

    @property
    def boundaries(self) -> Boundaries:
        """Where documents and padding begin in the rows."""
        self._known_boundaries = self._known_boundaries or self._boundaries()
        return self._known_boundaries

    def _boundaries(self) -> Boundaries:
        places, marks = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for part in self.parts:
            if part.rows.marks is not None and part.rows.mark_offsets is not None:
                places.append(np.repeat(part.places, np.diff(part.rows.mark_offsets)))
                marks.append(part.rows.marks)
        place, mark = np.concatenate(places), np.concatenate(marks)
        order = np.argsort(place, kind="stable") if len(self.parts) > 1 else slice(None)
        return Boundaries(self.form, self.lengths, place[order], mark[order])


def _joined(pieces: _Pieces, first: int, end: int) -> bytes:
    """Return the bytes of the pieces of rows [first, end)."""
    part = slice(int(pieces.row_starts[first]), int(pieces.row_starts[end]))
    columns = pieces.sources[part], pieces.shards[part], pieces.starts[part], pieces.ends[part]
    found: Sequence[memoryview | bytes]
    try:
        found = [source.bytes[shard][a:b] for source, shard, a, b in zip(*columns, strict=True)]
    except KeyError:  # a file is not open, or still being downloaded
        found = _read_by_shard([*zip(*columns, strict=True)])
    return b"".join(found)


def _read_by_shard(pieces: Sequence[Piece]) -> list[bytes]:
    """Return the bytes of pieces, copied shard by shard: perhaps only one can be open at a time."""
    by_shard: dict[tuple[PieceSource, int], list[int]] = {}
    for place, (source, shard, _, _) in enumerate(pieces):
        by_shard.setdefault((source, shard), []).append(place)
    for each in dict.fromkeys(source for source, _ in by_shard):
        each.fetch([piece[1:] for piece in pieces if piece[0] is each])
    found = [b""] * len(pieces)
    for places in by_shard.values():
        for place, data in zip(places, _copied([pieces[place] for place in places]), strict=True):
            found[place] = data
    return found


def _copied(pieces: Sequence[Piece]) -> list[bytes]:
    """Return the bytes of pieces of one shard, and keep no reference to it: opening the next may mean closing it."""
    source, shard, _, _ = pieces[0]
    source.fetch([piece[1:] for piece in pieces])
    data = source.bytes_of(shard)
    return [bytes(data[start:end]) for _, _, start, end in pieces]


class _Padding:
    """A source of pieces that repeat one item: end-of-text, or the class of template.

    Args:
        row: the bytes of a row of it.
    """

    def __init__(self, row: bytes) -> None:
        self.bytes: dict[int, TokenBytes] = {-1: memoryview(row)}

    def bytes_of(self, shard: int) -> TokenBytes:
        """See PieceSource."""
        return self.bytes[shard]

    def fetch(self, pieces: Iterable[tuple[int, int, int]]) -> None:
        """Do nothing: it is in memory."""


class _PlainText(_Padding):
    """The classes of the tokens of a split without masks."""

    def __init__(self) -> None:
        self.bytes: dict[int, TokenBytes] = defaultdict(_TextClasses)


class _TextClasses:
    """The classes of a shard of plain text."""

    def __getitem__(self, part: slice[int, int, None]) -> bytes:
        return bytes([TEXT_CLASS]) * (part.stop - part.start)


def widen(form: BatchFormat, tokens: Tokens, out: Int64s, labels: Int32s | None = None) -> None:
    """Write the inputs and labels of n batches to `out`, (n, 2, B, T), from their rows, (n * B, T + 1).

    Args:
        form: what a batch holds.
        tokens: of the rows.
        out: what is written to.
        labels: in place of the tokens from which labels are made, (n * B, T + 1).
    """
    if labels is not None:
        for place, rows in enumerate((tokens[:, : form.seq_len], form.of_labels(labels))):
            np.copyto(out[:, place], rows.reshape(len(out), -1, form.seq_len))
        return
    row, token = tokens.strides
    strides = (out.shape[2] * row, form.shift * token, row, token)
    np.copyto(out, np.ndarray(out.shape, tokens.dtype, tokens, strides=strides))  # one call for all of them
