"""Formats in which the end-of-text id alone may say where documents end, because they have no index or it is missing.

A row is the position of a document's first token, so a part of a file can be read, and a row be found again, without
what is before it. A part has the documents that begin in it. No step here is taken once a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, ClassVar

import numpy as np

from tokenloom.errors import BadRow, InputError
from tokenloom.storage.formats.arrays import AnyArray, Int64s
from tokenloom.tasks.sources.base import FileRange, Options, PartitionRange, cut_evenly
from tokenloom.tasks.sources.files.opening import open_input
from tokenloom.tasks.sources.tokens.base import ID_BYTES, INDEX, PIECE_TOKENS, Piece, announce_large, read_values
from tokenloom.tasks.sources.tokens.indexed import IndexedFormat, Layout, MaskOf

_MIN_TOKENS = 2**13  # to read at a time


class InferringFormat(IndexedFormat):
    """A format without an index, or with one that may be missing; a format adds `layout`, and `bounds` if it has one.

    Without an index, documents end with the end-of-text id, or with the file. In a file that begins with `bos_id`, only
    an end-of-text id that it follows ends a document, as in OLMo-core.
    """

    eot_leads: ClassVar[bool] = False  # the end-of-text id is before documents, so one that begins a file ends none

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.infers = INDEX not in options.get("has", ())

    def bounds(self, url: str, start: int, end: int) -> Int64s:
        """See IndexedFormat.bounds; not called without an index."""
        raise NotImplementedError

    def notes(self, url: str) -> list[str]:
        """See TokenFormat.notes."""
        return [f"{url}: no index, so a document ends with the id {self.eot_id:,}"] if self.infers else []

    def too_large(self, url: str, row: int, num_tokens: int) -> BadRow:
        """See TokenFormat.too_large."""
        bad = super().too_large(url, row, num_tokens)
        return bad.changed(option="check tokenizer.eot_id") if self.infers else bad

    def partitions(self, url: str) -> list[PartitionRange]:
        """See TokenFormat.partitions; without an index, `start` and `end` count tokens."""
        if not self.infers:
            return super().partitions(url)
        num_tokens = self.layout(url).num_tokens
        return cut_evenly(num_tokens, ID_BYTES * num_tokens) if num_tokens else []

    def pieces(self, url: str, part: FileRange) -> Iterator[Piece]:
        """See TokenFormat.pieces."""
        if not self.infers:
            yield from super().pieces(url, part)
            return
        layout = self.layout(url)
        if part.end > layout.num_tokens:
            raise InputError(
                f"{url}: {layout.num_tokens:,} tokens, but {part.end:,} were planned; the file changed: build again"
            )
        with open_input(url) as file, self.open_mask(url, layout.num_tokens) as mask_of:
            yield from self._inferred(_Stream(file, url, layout, self), part, mask_of)

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See TokenFormat.locate."""
        if not self.infers:
            return super().locate(url, rows)
        num_tokens = self.layout(url).num_tokens
        return [FileRange(row, row + 1) for row in rows if row < num_tokens]

    def place(self, url: str, row: int) -> str:
        """See TokenFormat.place."""
        return f"{url}, document at token {row}" if self.infers else super().place(url, row)

    def _inferred(self, stream: _Stream, part: FileRange, mask_of: MaskOf) -> Iterator[Piece]:
        """Yield the documents that begin in a part."""
        stream.announce(part.start, part.end)
        position = stream.next_document(part.start - 1, part.end) if part.start else stream.first
        usual = num_read = min(PIECE_TOKENS, max(_MIN_TOKENS, part.end - part.start))  # a part may be one document
        while position < part.end:
            ids, ends = stream.read(position, position + num_read)
            if len(ends):
                begins = position + np.append(0, ends[:-1])
                ends = ends[: np.searchsorted(begins, part.end)]
                ids = ids[: int(ends[-1])]
                rows = begins[: len(ends)].astype(np.uint64)
                yield Piece(ids, np.diff(ends, prepend=0), rows, mask_of(position, len(ids)))
                position, num_read = position + len(ids), usual
            elif self.is_too_large(len(ids)):
                yield self.only_bad(stream.url, position, len(ids))
                position, num_read = stream.next_document(position + len(ids), part.end), usual
            else:
                # What was read is read again: that is rare, and simpler than joining parts.
                num_read = min(2 * num_read, self._max_tokens + 1)


class _Stream:
    """The ids of an open file of a format, and where documents end among them.

    Attributes:
        first: the token with which the first document begins.
    """

    def __init__(self, file: IO[bytes], url: str, layout: Layout, form: InferringFormat) -> None:
        self._file, self.url, self._layout, self._eot_id = file, url, layout, form.eot_id
        head = read_values(file, url, layout.first_byte, min(2, layout.num_tokens), layout.dtype).tolist()
        self.first = int(form.eot_leads and head[:1] == [form.eot_id])
        self._bos_id = form.bos_id if head[self.first :][:1] == [form.bos_id] else None

    def announce(self, start: int, end: int) -> None:
        """Announce that tokens [start, end) will be read, see opening.announce."""
        announce_large(self._file, self._byte(max(0, start - 1)), self._byte(end))

    def _byte(self, token: int) -> int:
        return self._layout.first_byte + token * self._layout.dtype.itemsize

    def read(self, start: int, end: int) -> tuple[AnyArray, Int64s]:
        """Return tokens [start, end), and after how many of them a document ends: [5, 0, 7, 0] -> [2, 4] if 0 ends one.

        The end of the file ends one too.
        """
        end = min(end, self._layout.num_tokens)
        with_next = min(end + 1, self._layout.num_tokens)
        read = read_values(self._file, self.url, self._byte(start), with_next - start, self._layout.dtype)
        ids, following = read[: end - start], read[1 : end - start + 1]
        is_end = ids == self._eot_id
        if self._bos_id is not None:
            is_end[: len(following)] &= following == self._bos_id
        if end == self._layout.num_tokens:
            is_end[-1:] = True
        return ids, np.flatnonzero(is_end) + 1

    def next_document(self, start: int, limit: int) -> int:
        """Return the first position after `start` at which a document begins; `limit` if there is none before it."""
        for position in range(start, limit, PIECE_TOKENS):
            _, ends = self.read(position, min(position + PIECE_TOKENS, limit))
            if len(ends):
                return position + int(ends[0])
        return limit
