"""The interface of a format of tokens: the files of an input, and its documents as ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import BadRow, InputError
from tokenloom.spec.leave_out import LeaveOut
from tokenloom.storage.formats.arrays import AnyArray, AnyDtype, Int64s, UInt64s
from tokenloom.storage.stores.store_file import BLOCK_BYTES
from tokenloom.tasks.sources.base import REPAIR, FileRange, Options, PartitionRange
from tokenloom.tasks.sources.files.finding import FoundFile, find_files
from tokenloom.tasks.sources.files.opening import announce
from tokenloom.wording import counted

INDEX, MASK = "index", "mask"  # what a file has beside its ids
ID_BYTES = 4  # of an id in a batch, whatever its type in the file
PIECE_TOKENS = 1_000_000  # about so many are in memory at a time


@dataclass(frozen=True)
class Side:
    """A file that belongs to an input: it is not a separate input, and its content is part of the input's fingerprint.

    `role` is INDEX or MASK. Without a required one, the input can't be read.
    """

    role: str
    url: str
    is_required: bool


@dataclass(frozen=True)
class Piece:
    """Whole documents of a file, end to end, with the ids that mark their begin and end, as the file has them.

    Attributes:
        ids: (num_tokens,) of an integer type.
        lengths: (n,) tokens of each document.
        rows: (n,) their numbers, see TokenFormat.place.
        learned: (num_tokens,) whether each token is a target, None for a file without a mask.
        bad: rows that were left out.
    """

    ids: AnyArray
    lengths: Int64s
    rows: UInt64s
    learned: NDArray[np.bool_] | None = None
    bad: tuple[BadRow, ...] = ()

    @classmethod
    def without_documents(cls, bad: tuple[BadRow, ...], *, has_mask: bool) -> Piece:
        """Return a piece with nothing but rows that were left out."""
        nothing = np.empty(0, np.uint32), np.empty(0, np.int64), np.empty(0, np.uint64)
        return cls(*nothing, np.empty(0, bool) if has_mask else None, bad)


class TokenFormat(ABC):
    """How the files of a format hold documents. Every error is an InputError that names the file, rule and next step.

    Args:
        options: those of the source; `eot_id`, `bos_id` (or None) and `vocab_size` of the tokenizer; `max_bytes` of the
            document rules; and, except where files are listed, `has`: what a file has beside its ids, INDEX or MASK.

    Attributes:
        bos_id, eot_id: ids before and after a document that are not part of it; bos_id is None if there is none.
        vocab_size: above every id.
    """

    name: ClassVar[str]
    suffix: ClassVar[str] = ""  # of the names of its files

    def __init__(self, options: Options) -> None:
        self.options = options
        self.eot_id, self.vocab_size = int(options["eot_id"]), int(options["vocab_size"])
        self.bos_id = None if options.get("bos_id") is None else int(options["bos_id"])
        self._max_tokens = int(options["max_bytes"]) // ID_BYTES + 2  # with the ids around it

    def check_name(self, url: str) -> None:
        """Raise InputError if a file is not an input by its name."""
        if not url.endswith(self.suffix):
            raise InputError(
                f"{url}: the ids of {self.name} are in {self.suffix} files; write a path such as data/*{self.suffix}"
            )

    def notes(self, url: str) -> list[str]:
        """Return what a person should know of how such a file is read, one line each."""
        return []

    def files(self, path: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
        """See SourceReader.files."""
        return find_files(path, leave_out)

    def sides(self, url: str) -> Sequence[Side]:
        """Return the files that may belong to an input, whether they exist or not."""
        return ()

    def has(self, url: str, sides: Collection[str]) -> list[str]:
        """Return what a file has beside its ids, INDEX or MASK. Without an INDEX, its documents are inferred.

        Args:
            url: of the file.
            sides: roles of the files beside it that exist.
        """
        return sorted(sides)

    @property
    def has_mask(self) -> bool:
        """Whether the file says which tokens are targets."""
        return MASK in self.options["has"]

    @abstractmethod
    def partitions(self, url: str) -> list[PartitionRange]:
        """See SourceReader.partitions; `num_bytes` counts ID_BYTES for each token."""

    @abstractmethod
    def pieces(self, url: str, part: FileRange) -> Iterator[Piece]:
        """Yield the documents of a part in order, in pieces of about PIECE_TOKENS or one document.

        Args:
            url: of the file.
            part: from `partitions` or `locate`.
        """

    @abstractmethod
    def locate(self, url: str, rows: Sequence[int]) -> list[FileRange]:
        """See SourceReader.locate."""

    def place(self, url: str, row: int) -> str:
        """Return how a message names a document."""
        return f"{url}, document {row}"

    def is_too_large(self, num_tokens: int) -> bool:
        """Return whether a document has more tokens than the document rules allow: it need not be read."""
        return num_tokens > self._max_tokens

    def too_large(self, url: str, row: int, num_tokens: int) -> BadRow:
        """Return the BadRow of a document of which is_too_large is true."""
        message = (
            f"{self.place(url, row)}: {counted(num_tokens, 'token')}, too many for documents.max_bytes, which counts "
            f"{ID_BYTES} bytes for each; raise that value"
        )
        return BadRow(message, row, "too_large")


def announce_large(file: IO[bytes], start: int, end: int) -> None:
    """Announce that bytes [start, end) of an open file will be read, unless they are fewer than one of its blocks."""
    if end - start >= BLOCK_BYTES:
        announce(file, [(start, end)])


def read_values(file: IO[bytes], url: str, position: int, count: int, dtype: AnyDtype) -> AnyArray:
    """Return (count,) values of an open file from a byte position on; raises InputError if it ends before."""
    file.seek(position)
    data = file.read(count * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        raise InputError(
            f"{url}: it ends at byte {position + len(data):,}, {counted(count * dtype.itemsize, 'byte')} after "
            f"{position:,} are needed: it was cut; {REPAIR}"
        )
    return np.frombuffer(data, dtype)
