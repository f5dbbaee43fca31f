"""The interface of a format, its arguments, and the files of an export, hashed while they are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import IO, ClassVar, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenloom.errors import SpecError, message_of
from tokenloom.storage.formats.arrays import AnyBuffer
from tokenloom.storage.formats.classes import learned_classes, parse_policy
from tokenloom.storage.formats.manifest import TokenizerEntry
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.store import Store
from tokenloom.tasks.exporting.documents import Documents, Piece
from tokenloom.wording import counted

_SYNC_BYTES = 32 * 2**20  # written between two calls of the function that starts to sync them


@dataclass(frozen=True, slots=True)
class FileRecord:
    """The length and the xxh3_128 of a file, in hexadecimal."""

    bytes: int
    xxh3_128: str


def hashed(store: Store, path: str) -> FileRecord:
    """Return the record of the bytes of a file; of a remote file the whole is downloaded."""
    hasher = xxhash.xxh3_128()
    num_bytes = 0
    for block in store.blocks(path):
        hasher.update(block)
        num_bytes += len(block)
    return FileRecord(num_bytes, hasher.hexdigest())


class HashedFile:
    """A file open for writing in order; writes to the device begin while it is written.

    Args:
        file: a new file.
        start_sync: starts to bring what was written to the device.
    """

    def __init__(self, file: IO[bytes], start_sync: Callable[[], None] | None = None) -> None:
        self._file = file
        self._start_sync = start_sync
        self._hasher, self._num_bytes, self._num_synced = xxhash.xxh3_128(), 0, 0
        self.closed = False  # pyarrow asks

    def write(self, data: AnyBuffer) -> int:
        """Add bytes, or the contiguous items of an array; return how many bytes."""
        view = memoryview(data).cast("B")
        self._hasher.update(view)
        local_files.write_all(self._file, view)
        self._num_bytes += len(view)
        if self._start_sync and self._num_bytes - self._num_synced >= _SYNC_BYTES:
            self._num_synced = self._num_bytes
            self._file.flush()
            self._start_sync()
        return len(view)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._num_bytes

    @property
    def record(self) -> FileRecord:
        """The bytes that were written so far."""
        return FileRecord(self._num_bytes, self._hasher.hexdigest())


@contextmanager
def writing_hashed(store: Store, path: str) -> Iterator[HashedFile]:
    """Open a file of an export, which appears at `path` when the block ends without an error."""
    with store.writing(path) as file:
        syncing = local_files.syncing(file) if store.is_local else nullcontext()
        with syncing as start_sync:
            yield HashedFile(file, start_sync)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The choices of a user; recorded in tokenloom-export.json.

    `learn` is a policy of masks, see parse_policy; None is that of the reader. `seq_len` is the length of samples; None
    for documents.
    """

    splits: list[str]
    learn: str | None = None
    seq_len: int | None = None


@dataclass(frozen=True)
class VersionFacts:
    """The version as a format sees it; `splits` are those to export, none of them empty."""

    dataset: str
    tokenizer: TokenizerEntry
    token_bytes: int
    has_masks: bool
    splits: dict[str, Documents]
    options: ExportOptions


@dataclass(frozen=True)
class ExportUnit:
    """Files of the destination and the documents in them: one worker writes them, and resuming repeats them."""

    split: str
    files: tuple[str, ...]
    documents: Documents


Files: TypeAlias = Sequence[HashedFile]
Units: TypeAlias = Sequence[ExportUnit]
Records: TypeAlias = Mapping[str, FileRecord]


class ExportFormat(ABC):
    """How the documents of a version become files of another trainer. Has no state."""

    name: ClassVar[str]
    # Names of the files of a unit: part `index` of `count` of a split; `short` is "val" for validation.
    file_names: ClassVar[tuple[str, ...]]
    mask_names: ClassVar[tuple[str, ...]] = ()  # further files if the version has masks
    takes_samples: ClassVar[bool] = False  # its rows may be samples
    keeps_masks: ClassVar[bool] = False
    part_bytes: ClassVar[int] = 0  # maximum bytes of ids in a unit; 0 for a whole split
    num_ids: ClassVar[int] = 2**32  # number of ids that its type can hold
    instead: ClassVar[str] = ""  # formats to use for more ids
    needs: ClassVar[str] = ""  # of its reader, and its losses, in one line; {eot_id} is the end-of-text id

    def refuse(self, facts: VersionFacts) -> None:
        """Raise SpecError if the version does not fit into the format, or an option has no meaning for the two."""
        if facts.tokenizer.vocab_size > self.num_ids:
            raise SpecError(
                f"{self.name} holds ids below {self.num_ids:,}, and the tokenizer {facts.tokenizer.name} has "
                f"{counted(facts.tokenizer.vocab_size, 'id')}; use {self.instead}"
            )
        if facts.options.seq_len is not None and not self.takes_samples:
            others = "mds, litdata, huggingface, parquet"
            raise SpecError(f"--unit sample: {self.name} is a stream of tokens, which its trainer cuts; use {others}")
        if facts.options.learn is None:
            return
        if not facts.has_masks:
            raise SpecError("--learn: the version has no conversations, so every token is learned; leave it out")
        try:
            learned_classes(parse_policy(facts.options.learn))
        except ValueError as error:
            raise SpecError(f"--{message_of(error)}") from error

    def losses(self, facts: VersionFacts) -> list[str]:
        """Return the losses of the format, and the needs of its reader, one line each."""
        lines = [self.needs.format(eot_id=f"{facts.tokenizer.eot_id:,}")] if self.needs else []
        if facts.has_masks and not self.keeps_masks:
            others = "olmo, datatrove, mds, litdata or huggingface"
            lines.append(f"{self.name} has no loss masks, so every token is learned; use {others}")
        return lines

    def parts(self, documents: Documents, facts: VersionFacts) -> list[Documents]:
        """Return the documents of a split in parts of at most about `part_bytes` of ids, all of about one size."""
        num_bytes = documents.num_tokens * facts.token_bytes
        return documents.cut(max(1, -(-num_bytes // self.part_bytes))) if self.part_bytes else [documents]

    def plan(self, facts: VersionFacts) -> list[ExportUnit]:
        """Return the units; the same ones for the same version and options."""
        units = []
        for split, documents in facts.splits.items():
            parts = self.parts(documents, facts)
            known = {"dataset": facts.dataset, "split": split, "short": "val" if split == "validation" else split}
            for index, part in enumerate(parts):
                names = self.file_names + self.mask_names * facts.has_masks
                files = tuple(name.format(index=index, count=len(parts), **known) for name in names)
                units.append(ExportUnit(split, files, part))
        return units

    @abstractmethod
    def write(self, unit: ExportUnit, facts: VersionFacts, files: Files) -> None:
        """Write the files of a unit, which are open in their order."""

    def finish(self, facts: VersionFacts, units: Units, records: Records) -> dict[str, bytes]:
        """Return the small files that are written when all units are, by name; `records` are of all others."""
        return {}


def learned_bytes(piece: Piece, facts: VersionFacts) -> NDArray[np.bool_]:
    """Return whether each token of a piece is a target, (num_tokens,); of a version with masks."""
    assert piece.classes is not None  # callers ask has_masks
    return learned_classes(parse_policy(facts.options.learn or "assistant"))[piece.classes]
