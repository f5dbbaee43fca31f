"""Formats whose index says where each document begins: rows are numbers of documents, and any can be read alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom.storage.formats.arrays import AnyDtype, Int64s, runs_of
from tokenloom.tasks.sources.base import REPAIR, FileRange, PartitionRange, cut_evenly
from tokenloom.tasks.sources.files.opening import input_bytes, open_input
from tokenloom.tasks.sources.tokens.base import (
    ID_BYTES,
    MASK,
    PIECE_TOKENS,
    Piece,
    TokenFormat,
    announce_large,
    read_values,
)
from tokenloom.wording import counted

#: Why two files contradict each other, and the next step.
MISMATCH = "one of the two was cut or changed, or they do not belong together; copy both files again"
MaskOf = Callable[[int, int], NDArray[np.bool_] | None]  # of a first token and a number of tokens
_INDEX_DOCUMENTS = 2**16  # whose bounds are in memory at a time


@dataclass(frozen=True)
class Layout:
    """What a file holds: its documents, its tokens, their type, and the byte at which they begin."""

    num_documents: int
    num_tokens: int
    dtype: AnyDtype
    first_byte: int = 0


class IndexedFormat(TokenFormat):
    """A format with an index; a format adds `layout` and `bounds`. Its documents lie end to end."""

    @abstractmethod
    def layout(self, url: str) -> Layout:
        """Return what a file holds, once file and index were compared."""

    @abstractmethod
    def bounds(self, url: str, start: int, end: int) -> Int64s:
        """Return where documents [start, end) begin, in tokens, and, last, where the last of them ends."""

    def partitions(self, url: str) -> list[PartitionRange]:
        """See TokenFormat.partitions; `start` and `end` count documents."""
        layout = self.layout(url)
        if not layout.num_documents:
            return []
        return cut_evenly(layout.num_documents, max(1, ID_BYTES * layout.num_tokens), layout.num_documents)

    def pieces(self, url: str, part: FileRange) -> Iterator[Piece]:
        """See TokenFormat.pieces."""
        layout = self.layout(url)
        if part.end > layout.num_documents:
            raise InputError(
                f"{url}: {counted(layout.num_documents, 'document')}, but {part.end:,} were planned; the file changed: "
                "build again"
            )
        with open_input(url) as file, self.open_mask(url, layout.num_tokens) as mask_of:
            for start in range(part.start, part.end, _INDEX_DOCUMENTS):
                bounds = self.bounds(url, start, min(start + _INDEX_DOCUMENTS, part.end))
                announce_large(file, *(layout.first_byte + bounds[[0, -1]] * layout.dtype.itemsize).tolist())
                for first, end in runs_of(bounds, PIECE_TOKENS):
                    run, row = bounds[first : end + 1], start + first
                    num_tokens = int(run[-1] - run[0])
                    if self.is_too_large(num_tokens) and end == first + 1:
                        yield self.only_bad(url, row, num_tokens)
                        continue
                    position = layout.first_byte + int(run[0]) * layout.dtype.itemsize
                    ids = read_values(file, url, position, num_tokens, layout.dtype)
                    rows = np.arange(row, row + len(run) - 1, dtype=np.uint64)
                    yield Piece(ids, np.diff(run), rows, mask_of(int(run[0]), num_tokens))

    @contextmanager
    def open_mask(self, url: str, num_tokens: int) -> Iterator[MaskOf]:
        """Open the mask of a file; provides what returns the mask of some tokens, None for a file without one.

        Raises InputError if it is not one byte, 0 or 1, for each token.
        """
        if not self.has_mask:
            yield lambda start, count: None
            return
        mask_url = next(side.url for side in self.sides(url) if side.role == MASK)
        if (num_bytes := input_bytes(mask_url)) != num_tokens:
            raise InputError(
                f"{mask_url}: a mask has a byte for each token, and this one has {num_bytes:,} for the {num_tokens:,} "
                f"of {url}: {MISMATCH}"
            )
        with open_input(mask_url) as file:
            yield partial(_read_mask, file, mask_url)

    def only_bad(self, url: str, row: int, num_tokens: int) -> Piece:
        """Return a piece with nothing but a document that is too large."""
        return Piece.without_documents((self.too_large(url, row, num_tokens),), has_mask=self.has_mask)

    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See TokenFormat.locate: the runs of consecutive numbers in `rows`."""
        num_documents, ranges = self.layout(url).num_documents, list[FileRange]()
        for row in rows:
            if row < num_documents:
                start = ranges.pop().start if ranges and ranges[-1].end == row else row
                ranges.append(FileRange(start, row + 1))
        return ranges


def _read_mask(file: IO[bytes], url: str, start: int, num_tokens: int) -> NDArray[np.bool_]:
    """Return whether tokens [start, start + num_tokens) are targets, from an open file of a byte a token, 0 or 1."""
    values = read_values(file, url, start, num_tokens, np.dtype(np.uint8))
    if values.max(initial=0) > 1:
        at = start + int((values > 1).argmax())
        raise InputError(f"{url}: byte {at:,} is {values[at - start]}, and a mask has only 0 and 1; {REPAIR}")
    return values.view(np.bool_)
