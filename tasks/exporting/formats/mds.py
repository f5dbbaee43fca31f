"""MDS, the files of MosaicML streaming: a folder a split with index.json and shards of about 64 MiB.

Columns are sorted by name: `labels` of a version with masks, and `tokens`, which llm-foundry asks for. A sample of a
fixed length is its values alone. A document has the bytes of each column (u32) before them, and before the values of
each one a byte, 1 << 2 | 2 for one dimension whose length is a u32, and this length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from tokenloom.storage.formats.arrays import AnyArray
from tokenloom.storage.formats.records import JsonObject
from tokenloom.tasks.exporting.documents import Piece
from tokenloom.tasks.exporting.formats import row_files, rows
from tokenloom.tasks.exporting.formats.base import ExportUnit, VersionFacts
from tokenloom.tasks.exporting.hashed_file import FileRecord, HashedFile
from tokenloom.tasks.sources.tokens.id_columns import IDS

_SHAPE = np.dtype([("form", "u1"), ("length", "<u4")])
_ONE_LENGTH_OF_U32 = 1 << 2 | 2
_HASH = "xxh3_128"


class Mds(rows.TableFormat):
    """SPLIT/shard.00000.mds and so on, and SPLIT/index.json."""

    name = "mds"
    part_bytes = row_files.PART_BYTES

    def losses(self, facts: VersionFacts) -> list[str]:
        """Return what samples lose, or documents in llm-foundry."""
        cut = "llm-foundry cuts a document to max_seq_len; --unit sample --seq-len gives it samples of that length"
        return super().losses(facts) or [cut]

    def files(self, facts: VersionFacts, split: str, index: int, count: int) -> tuple[str, ...]:
        """See ExportFormat.files."""
        return (f"{split}/shard.{index:05}.mds",)

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Sequence[HashedFile]) -> None:
        """Write the header, then the rows."""
        (file,) = files
        row_bytes = row_files.row_lengths(unit.documents, facts) * sum(d.itemsize for d in _columns(facts).values())
        if facts.options.seq_len is None:
            row_bytes += len(_columns(facts)) * (4 + _SHAPE.itemsize)
        config = json.dumps(_config(facts), sort_keys=True).encode()
        file.write(row_files.header(row_bytes, self.name, config))
        for piece in rows.row_pieces(unit.documents, facts):
            file.write(row_files.joined(piece.lengths, _parts(piece, facts)))

    def finish(
        self, facts: VersionFacts, units: Sequence[ExportUnit], records: Mapping[str, FileRecord]
    ) -> dict[str, bytes]:
        """Return the index of each split, with the checksum of each shard."""
        return {
            f"{split}/index.json": json.dumps(
                {"shards": [_shard(unit, facts, records) for unit in units if unit.split == split], "version": 2},
                sort_keys=True,
            ).encode()
            for split in facts.splits
        }


def _columns(facts: VersionFacts) -> dict[str, np.dtype]:
    """Return the types of the columns, sorted by name."""
    found = rows.columns(facts)
    return dict(sorted({"tokens" if name == IDS else name: dtype for name, dtype in found.items()}.items()))


def _parts(piece: Piece, facts: VersionFacts) -> list[AnyArray]:
    """Return what a row consists of; see row_files.joined."""
    columns = rows.values(piece, facts)[::-1]
    if facts.options.seq_len is not None:
        return columns
    shape = np.empty((len(piece.lengths), 1), _SHAPE)
    shape["form"], shape["length"] = _ONE_LENGTH_OF_U32, piece.lengths[:, None]
    sizes = np.stack([_SHAPE.itemsize + piece.lengths * column.itemsize for column in columns], 1).astype("<u4")
    return [sizes, *(part for column in columns for part in (shape, column))]


def _config(facts: VersionFacts) -> JsonObject:
    """Return what all shards have in common."""
    length, columns = facts.options.seq_len, _columns(facts)
    return {
        "column_encodings": [f"ndarray:{dtype.name}" + (f":{length}" if length else "") for dtype in columns.values()],
        "column_names": list(columns),
        "column_sizes": [length * dtype.itemsize if length else None for dtype in columns.values()],
        "compression": None,
        "format": "mds",
        "hashes": [_HASH],
        "size_limit": None,
        "version": 2,
    }


def _shard(unit: ExportUnit, facts: VersionFacts, records: Mapping[str, FileRecord]) -> JsonObject:
    """Return the entry of a shard in the index."""
    name, record = unit.files[0], records[unit.files[0]]
    file = {"basename": name.rpartition("/")[2], "bytes": record.bytes, "hashes": {_HASH: record.xxh3_128}}
    num_rows = rows.num_rows(unit.documents, facts)
    return _config(facts) | {"raw_data": file, "samples": num_rows, "zip_data": None}
