"""LitData's chunks: a folder a split with index.json and chunks of about 64 MiB.

Without masks they are for its TokensLoader, as LitGPT has it: ids end to end, of which each chunk is cut into blocks.
With masks, rows are dictionaries of `input_ids` and `labels`, which its loader of PyTrees returns one by one: u32 bytes
of each array, then the arrays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from tokenloom.storage.formats.records import JsonObject
from tokenloom.tasks.exporting.formats import row_files, rows
from tokenloom.tasks.exporting.formats.base import ExportUnit, VersionFacts
from tokenloom.tasks.exporting.hashed_file import FileRecord, HashedFile

_CODES = {"uint16": 5, "int32": 2}  # of LitData's table of types
_LEAF: JsonObject = {"type": None, "context": None, "children_spec": []}


class LitData(rows.TableFormat):
    """SPLIT/chunk-0-0.bin and so on, and SPLIT/index.json."""

    name = "litdata"
    part_bytes = row_files.PART_BYTES

    def losses(self, facts: VersionFacts) -> list[str]:
        """Return what samples lose, or blocks of tokens."""
        lost = (
            "LitData's TokensLoader drops the tail of each chunk that fills no block, and crosses documents; --unit "
            "sample --seq-len BLOCK fills chunks with whole blocks"
        )
        return super().losses(facts) or [lost] * (not facts.has_masks)

    def files(self, facts: VersionFacts, split: str, index: int, count: int) -> tuple[str, ...]:
        """See ExportFormat.files."""
        return (f"{split}/chunk-0-{index}.bin",)

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Sequence[HashedFile]) -> None:
        """Write the header, then the rows."""
        (file,) = files
        columns = rows.columns(facts)
        row_bytes = row_files.row_lengths(unit.documents, facts) * sum(dtype.itemsize for dtype in columns.values())
        if facts.has_masks:
            row_bytes += 4 * len(columns)
        file.write(row_files.header(row_bytes, self.name))
        for piece in rows.row_pieces(unit.documents, facts):
            parts = rows.values(piece, facts)
            if facts.has_masks:
                parts.insert(0, np.stack([piece.lengths * part.itemsize for part in parts], 1).astype("<u4"))
            file.write(row_files.joined(piece.lengths, parts))

    def finish(
        self, facts: VersionFacts, units: Sequence[ExportUnit], records: Mapping[str, FileRecord]
    ) -> dict[str, bytes]:
        """Return the index of each split; LitData keeps a cache of what has the same updated_at."""
        return {
            f"{split}/index.json": json.dumps(
                {
                    "chunks": [_chunk(unit, facts, records) for unit in units if unit.split == split],
                    "config": _config(facts),
                    "updated_at": documents.version,
                },
                sort_keys=True,
            ).encode()
            for split, documents in facts.splits.items()
        }


def _config(facts: VersionFacts) -> JsonObject:
    """Return what the chunks have in common."""
    columns = rows.columns(facts)
    tree = {"type": "builtins.dict", "context": json.dumps(list(columns)), "children_spec": [_LEAF] * len(columns)}
    return {
        "chunk_bytes": row_files.PART_BYTES,
        "chunk_size": None,
        "compression": None,
        "compression_level": None,
        "data_format": [f"no_header_numpy:{_CODES[dtype.name]}" for dtype in columns.values()],
        "data_spec": json.dumps([1, tree if facts.has_masks else _LEAF]),
        "encryption": None,
        "item_loader": "PyTreeLoader" if facts.has_masks else "TokensLoader",
    }


def _chunk(unit: ExportUnit, facts: VersionFacts, records: Mapping[str, FileRecord]) -> JsonObject:
    """Return the entry of a chunk in the index; `dim` is its tokens."""
    num_rows, length = rows.num_rows(unit.documents, facts), facts.options.seq_len
    return {
        "chunk_bytes": records[unit.files[0]].bytes,
        "chunk_size": num_rows,
        "dim": None if facts.has_masks else num_rows * length if length else unit.documents.num_tokens,
        "filename": unit.files[0].rpartition("/")[2],
    }
