"""datatrove's tokenized files, which nanotron reads: .ds, and beside it .ds.index, .ds.metadata and .ds.loss.

The .ds has raw ids of 2 or 4 bytes, .ds.index the end of each document in tokens (u64), .ds.loss a byte a token: 1 if
it is learned. .ds.metadata has three lines: the tokenizer and the bytes of an id, the tokens, the tokens in words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenloom.tasks.exporting.formats.base import ExportFormat, ExportUnit, VersionFacts, learned_bytes, numbered_parts
from tokenloom.tasks.exporting.hashed_file import HashedFile, report_tokens

_PART_BYTES = 2**30


class Datatrove(ExportFormat):
    """SPLIT/00000.ds and the files beside it."""

    name = "datatrove"

    def plan(self, facts: VersionFacts) -> list[ExportUnit]:
        """Return a unit for each part of about 1 GiB."""
        suffixes = ("", ".index", ".metadata", *[".loss"] * facts.has_masks)
        return [
            ExportUnit(split, tuple(f"{split}/{i:05}.ds{suffix}" for suffix in suffixes), part)
            for split, documents in facts.splits.items()
            for i, part in enumerate(numbered_parts(documents, facts.token_bytes, _PART_BYTES))
        ]

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Sequence[HashedFile]) -> None:
        """Write all files in one pass."""
        data, index, metadata = files[:3]
        dtype = np.dtype("<u4" if facts.token_bytes == 4 else "<u2")
        count = 0
        for piece in unit.documents.pieces():
            data.write(piece.ids.astype(dtype, copy=False))
            index.write(count + np.cumsum(piece.lengths, dtype="<u8"))
            count += len(piece.ids)
            if facts.has_masks:
                files[3].write(learned_bytes(piece, facts))
            report_tokens(len(piece.ids), len(piece.lengths))
        metadata.write(f"{facts.tokenizer.name}|{dtype.itemsize}\n{count}\n{count:,} T".encode())
