"""nanoGPT's files: train.bin, val.bin, raw uint16 ids in which an end-of-text id ends each document.

meta.pkl says the size of the vocabulary, unless it is GPT-2's, which nanoGPT assumes. Its few bytes are written by
hand: tokenloom imports no pickle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenloom.tasks.exporting.formats.base import ExportFormat, ExportUnit, VersionFacts, check_ids, no_masks
from tokenloom.tasks.exporting.hashed_file import FileRecord, HashedFile

_GPT2_IDS = 50_257


class NanoGpt(ExportFormat):
    """train.bin, val.bin, and a file for each other split."""

    name = "nanogpt"

    def refuse(self, facts: VersionFacts) -> None:
        """Raise SpecError if the ids are not below 2**16."""
        check_ids(facts, 2**16, self.name, "llmc, olmo or megatron")

    def losses(self, facts: VersionFacts) -> list[str]:
        """Return what is lost: its batches cross documents, and masks."""
        eot = f"nanogpt has no document boundaries but the end-of-text id {facts.tokenizer.eot_id:,}"
        return [eot, *no_masks(facts, self.name)]

    def files(self, facts: VersionFacts, split: str, index: int, count: int) -> tuple[str, ...]:
        """See ExportFormat.files."""
        return (f"{'val' if split == 'validation' else split}.bin",)

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Sequence[HashedFile]) -> None:
        """Write the ids."""
        for piece in unit.documents.pieces():
            files[0].write(piece.ids.astype("<u2", copy=False))

    def finish(
        self, facts: VersionFacts, units: Sequence[ExportUnit], records: Mapping[str, FileRecord]
    ) -> dict[str, bytes]:
        """Return meta.pkl: the pickle of {"vocab_size": N}."""
        size = facts.tokenizer.vocab_size
        return {} if size == _GPT2_IDS else {"meta.pkl": b"(Vvocab_size\nI%d\nd." % size}
