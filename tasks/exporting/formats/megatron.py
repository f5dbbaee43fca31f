"""Megatron's indexed dataset: a .bin with the ids and an .idx with the lengths, one pair a split.

megatron-core, NeMo, Megatron-Bridge and GPT-NeoX read it; tasks/sources/tokens/megatron.py describes the .idx. A
document is one sequence; its end-of-text id is part of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenloom.errors import SpecError
from tokenloom.tasks.exporting.documents import Documents
from tokenloom.tasks.exporting.formats.base import ExportFormat, ExportUnit, VersionFacts, check_ids, no_masks
from tokenloom.tasks.exporting.hashed_file import HashedFile
from tokenloom.tasks.sources.tokens.megatron import HEAD, LENGTH, MAGIC, OFFSET, VERSION

_CODES = {1: 1, 2: 8, 4: 4}  # bytes of an id -> uint8, uint16, int32: there is no uint32
_MAX_LENGTH = 2**31 - 1
_NUM_AT_ONCE = 2**19


class Megatron(ExportFormat):
    """SPLIT.bin and SPLIT.idx."""

    name = "megatron"

    def refuse(self, facts: VersionFacts) -> None:
        """Raise SpecError if ids need 32 bits without a sign."""
        check_ids(facts, 2**31, self.name, "olmo")

    def losses(self, facts: VersionFacts) -> list[str]:
        """Return what is lost: masks."""
        return no_masks(facts, self.name)

    def files(self, facts: VersionFacts, split: str, index: int, count: int) -> tuple[str, ...]:
        """See ExportFormat.files."""
        return f"{split}.bin", f"{split}.idx"

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Sequence[HashedFile]) -> None:
        """Write the ids, then the index."""
        data, index = files
        for piece in unit.documents.pieces():
            data.write(piece.ids)
        _write_index(index, unit.documents, facts.token_bytes)


def _write_index(index: HashedFile, documents: Documents, token_bytes: int) -> None:
    """Write the .idx, with the offsets of one shard in memory."""
    count = documents.num_documents
    index.write(HEAD.pack(MAGIC, VERSION, _CODES[token_bytes], count, count + 1))
    for lengths in documents.lengths():
        if lengths.max() > _MAX_LENGTH:
            raise SpecError(f"megatron holds documents of up to {_MAX_LENGTH:,} tokens; use olmo")
        index.write(lengths.astype(LENGTH))
    at = 0
    for lengths in documents.lengths():
        ends = at + np.cumsum(lengths, dtype=OFFSET) * token_bytes
        index.write(ends - lengths.astype(OFFSET) * token_bytes)
        at = int(ends[-1])
    for start in range(0, count + 1, _NUM_AT_ONCE):
        index.write(np.arange(start, min(start + _NUM_AT_ONCE, count + 1), dtype=OFFSET))
