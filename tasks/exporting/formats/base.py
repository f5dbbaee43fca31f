"""The interface of a format, and what a format is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import SpecError
from tokenloom.storage.formats.classes import learned_classes, parse_policy
from tokenloom.storage.formats.manifest import TokenizerEntry
from tokenloom.tasks.exporting.documents import Documents, Piece
from tokenloom.tasks.exporting.hashed_file import FileRecord, HashedFile
from tokenloom.wording import counted


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What a user chooses; recorded in tokenloom-export.json.

    `learn` is a policy of masks, see parse_policy; None is that of the reader. `seq_len` is the length of samples; None
    for documents.
    """

    splits: list[str]
    learn: str | None = None
    seq_len: int | None = None


@dataclass(frozen=True)
class VersionFacts:
    """What a format needs to know of a version; `splits` are those to export, none of them empty."""

    dataset: str
    tokenizer: TokenizerEntry
    token_bytes: int
    has_masks: bool
    splits: dict[str, Documents]
    options: ExportOptions


@dataclass(frozen=True)
class ExportUnit:
    """Files of the destination and the documents that go into them: what one worker writes, and resuming repeats."""

    split: str
    files: tuple[str, ...]
    documents: Documents


class ExportFormat(ABC):
    """How the documents of a version become files of another trainer. Has no state."""

    name: ClassVar[str]
    takes_samples: ClassVar[bool] = False  # its rows may be samples
    part_bytes: ClassVar[int] = 0  # of ids in a unit; 0 for a whole split

    def refuse(self, facts: VersionFacts) -> None:  # noqa: B027  (most take every version)
        """Raise SpecError, which names the format to use instead, if the version does not fit into the format."""

    def losses(self, facts: VersionFacts) -> list[str]:
        """Return what the format does not keep, or what its reader needs, one line each."""
        return []

    @abstractmethod
    def files(self, facts: VersionFacts, split: str, index: int, count: int) -> tuple[str, ...]:
        """Return the names of the files of a unit: part `index` of `count` of a split."""

    def parts(self, documents: Documents, facts: VersionFacts) -> list[Documents]:
        """Return the documents of a split in parts of at most about `part_bytes` of ids, all of about one size."""
        num_bytes = documents.num_tokens * facts.token_bytes
        return documents.cut(max(1, -(-num_bytes // self.part_bytes))) if self.part_bytes else [documents]

    def plan(self, facts: VersionFacts) -> list[ExportUnit]:
        """Return the units; the same ones for the same version and options."""
        parts = {split: self.parts(documents, facts) for split, documents in facts.splits.items()}
        return [
            ExportUnit(split, self.files(facts, split, i, len(found)), part)
            for split, found in parts.items()
            for i, part in enumerate(found)
        ]

    @abstractmethod
    def write(self, unit: ExportUnit, facts: VersionFacts, files: Sequence[HashedFile]) -> None:
        """Write the files of a unit, which are open in their order."""

    def finish(
        self, facts: VersionFacts, units: Sequence[ExportUnit], records: Mapping[str, FileRecord]
    ) -> dict[str, bytes]:
        """Return the small files that are written when all units are, by name; `records` are of all others."""
        return {}


def no_masks(facts: VersionFacts, name: str) -> list[str]:
    """Return the loss of a format without loss masks, if the version has masks."""
    line = f"{name} has no loss masks, so every token is learned; use olmo, datatrove, mds, litdata or huggingface"
    return [line] if facts.has_masks else []


def check_ids(facts: VersionFacts, num_ids: int, name: str, instead: str) -> None:
    """Raise SpecError if the ids of a version do not fit into a type that has `num_ids` values."""
    if facts.tokenizer.vocab_size > num_ids:
        raise SpecError(
            f"{name} holds ids below {num_ids:,}, and the tokenizer {facts.tokenizer.name} has "
            f"{counted(facts.tokenizer.vocab_size, 'id')}; use {instead}"
        )


def learned_bytes(piece: Piece, facts: VersionFacts) -> NDArray[np.bool_]:
    """Return whether each token of a piece is a target, (num_tokens,); of a version with masks."""
    assert piece.classes is not None  # whoever calls has asked has_masks
    return learned_classes(parse_policy(facts.options.learn or "assistant"))[piece.classes]
