"""datatrove's tokenized files, which nanotron reads; tasks/sources/tokens/datatrove.py describes them.

The third line of .ds.metadata has the tokens in words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenloom.storage.formats.arrays import TOKEN_DTYPES
from tokenloom.tasks.exporting.formats.base import ExportFormat, ExportUnit, VersionFacts, learned_bytes, numbered_parts
from tokenloom.tasks.exporting.hashed_file import HashedFile
from tokenloom.tasks.sources.tokens.base import INDEX, MASK
from tokenloom.tasks.sources.tokens.datatrove import BESIDE, END, METADATA

_PART_BYTES = 2**30


class Datatrove(ExportFormat):
    """SPLIT/00000.ds and the files beside it."""

    name = "datatrove"

    def plan(self, facts: VersionFacts) -> list[ExportUnit]:
        """Return a unit for each part of about 1 GiB."""
        suffixes = ("", BESIDE[INDEX], BESIDE[METADATA], *[BESIDE[MASK]] * facts.has_masks)
        return [
            ExportUnit(split, tuple(f"{split}/{i:05}.ds{suffix}" for suffix in suffixes), part)
            for split, documents in facts.splits.items()
            for i, part in enumerate(numbered_parts(documents, facts.token_bytes, _PART_BYTES))
        ]

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Sequence[HashedFile]) -> None:
        """Write all files in one pass."""
        data, index, metadata = files[:3]
        dtype = TOKEN_DTYPES[max(2, facts.token_bytes)]
        count = 0
        for piece in unit.documents.pieces():
            data.write(piece.ids.astype(dtype, copy=False))
            index.write(count + np.cumsum(piece.lengths, dtype=END))
            count += len(piece.ids)
            if facts.has_masks:
                files[3].write(learned_bytes(piece, facts))
        metadata.write(f"{facts.tokenizer.name}|{dtype.itemsize}\n{count}\n{count:,} T".encode())
