"""OLMo-core's token files, which tasks/sources/tokens/olmo.py describes.

A part never cuts a document. Lines of the .csv.gz are "start,end" in tokens of its part. `label_mask_paths` wants one
mask for each token file, in the same order.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from tokenloom.tasks.exporting.formats.base import ExportFormat, ExportUnit, VersionFacts, learned_bytes
from tokenloom.tasks.exporting.hashed_file import HashedFile
from tokenloom.tasks.sources.tokens.olmo import IDS, LINES, MASKS


class Olmo(ExportFormat):
    """SPLIT/token_ids_part_0000.npy, .csv.gz and, with masks, SPLIT/labels_mask_part_0000.npy."""

    name = "olmo"
    part_bytes = 2**30  # OLMo-core drops the tail of each file, so files are few

    def losses(self, facts: VersionFacts) -> list[str]:
        """Return what its reader needs to keep document boundaries."""
        return [
            f"on a local path OLMo-core finds documents by the end-of-text id {facts.tokenizer.eot_id:,}, not by the "
            ".csv.gz, unless use_array_if_local=False; a fixed sequence length drops the tail of each file"
        ]

    def files(self, facts: VersionFacts, split: str, index: int, count: int) -> tuple[str, ...]:
        """See ExportFormat.files."""
        names = [f"{IDS}_part_{index:04}.npy", f"{IDS}_part_{index:04}{LINES}"]
        names += [f"{MASKS}_part_{index:04}.npy"] * facts.has_masks
        return tuple(f"{split}/{name}" for name in names)

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Sequence[HashedFile]) -> None:
        """Write ids, lines and masks in one pass."""
        data, lines = files[:2]
        at = 0
        with gzip.GzipFile("", "wb", 1, lines, mtime=0) as compressed:  # type: ignore[call-overload]  # it only writes
            for piece in unit.documents.pieces():
                data.write(piece.ids)
                ends = at + np.cumsum(piece.lengths, dtype=np.int64)
                compressed.write(_csv(ends - piece.lengths, ends))
                at += len(piece.ids)
                if facts.has_masks:
                    files[2].write(learned_bytes(piece, facts))


def _csv(*columns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> memoryview:
    """Return lines with an item of each column."""
    sink = pa.BufferOutputStream()
    table = pa.table({str(i): pa.array(column) for i, column in enumerate(columns)})
    pacsv.write_csv(table, sink, pacsv.WriteOptions(include_header=False))
    return memoryview(sink.getvalue())
