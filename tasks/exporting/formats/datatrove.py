"""datatrove's tokenized files, which nanotron reads; tasks/sources/tokens/datatrove.py describes them.

The third line of .ds.metadata has the tokens in words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenloom.storage.formats.arrays import TOKEN_DTYPES
from tokenloom.tasks.exporting.formats.base import ExportFormat, ExportUnit, VersionFacts, learned_bytes
from tokenloom.tasks.exporting.hashed_file import HashedFile
from tokenloom.tasks.sources.base import INDEX, MASK
from tokenloom.tasks.sources.tokens.datatrove import BESIDE, END, METADATA


class Datatrove(ExportFormat):
    """SPLIT/00000.ds and the files beside it."""

    name = "datatrove"
    part_bytes = 2**30

    def files(self, facts: VersionFacts, split: str, index: int, count: int) -> tuple[str, ...]:
        """See ExportFormat.files."""
        suffixes = ("", BESIDE[INDEX], BESIDE[METADATA], *[BESIDE[MASK]] * facts.has_masks)
        return tuple(f"{split}/{index:05}.ds{suffix}" for suffix in suffixes)

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
