"""Files of rows behind a table of their places: MDS and LitData.

u32 number of rows, u32 place of each row and of the end, a text of the format, the rows. So a file is below 4 GiB.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import SpecError
from tokenloom.storage.formats.arrays import AnyArray, AnyBuffer
from tokenloom.storage.formats.records import JsonObject
from tokenloom.tasks.exporting import tables
from tokenloom.tasks.exporting.base import ExportUnit, Files, Records, Units, VersionFacts
from tokenloom.tasks.exporting.documents import Documents, Piece
from tokenloom.tasks.sources.token_ids import IDS
from tokenloom.wording import counted

PART_BYTES = 2**26  # bytes of ids in a file, the default of both formats
_MAX_BYTES = 2**32 - 1
_LITDATA_CODES = {"uint16": 5, "int32": 2}  # LitData's numbers of these types
_LEAF: JsonObject = {"type": None, "context": None, "children_spec": []}
_SHAPE = np.dtype([("form", "u1"), ("length", "<u4")])
_ONE_LENGTH_OF_U32 = 1 << 2 | 2
_HASH = "xxh3_128"


def row_lengths(documents: Documents, facts: VersionFacts) -> NDArray[np.int64]:
    """Return the tokens of each row of a file."""
    length = facts.options.seq_len
    if length is None:
        return np.concatenate(list(documents.lengths())).astype(np.int64)
    return np.full(documents.num_tokens // length, length, np.int64)


def header(row_bytes: NDArray[np.int64], name: str, text: bytes = b"") -> bytes:
    """Return the bytes before the rows; raise SpecError if a document makes the file too long."""
    places = 4 * (len(row_bytes) + 2) + len(text) + np.append(0, np.cumsum(row_bytes))
    if places[-1] > _MAX_BYTES:
        raise SpecError(f"{name}: {counted(len(row_bytes), 'document')} make a file of 4 GiB or more; use megatron")
    return np.uint32(len(row_bytes)).tobytes() + places.astype("<u4").tobytes() + text


def joined(lengths: NDArray[np.uint32], parts: Sequence[AnyArray]) -> AnyBuffer:
    """Return the rows of a piece, each its share of every part in turn.

    Args:
        lengths: the tokens of each row, (num_rows,).
        parts: columns, (num_tokens,), and values before them in each row, (num_rows, n).
    """
    if len(parts) == 1:
        return parts[0]
    items = []
    for part in parts:
        ends = np.append(0, np.cumsum(lengths, dtype=np.int64)) if part.ndim == 1 else np.arange(len(part) + 1)
        buffers = [None, pa.py_buffer(ends * part[:1].nbytes), pa.py_buffer(part)]
        items.append(pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers))
    return memoryview(pc.binary_join_element_wise(*items, pa.scalar(b"", pa.large_binary())).buffers()[2])


class Mds(tables.TableFormat):
    """The files of MosaicML streaming: SPLIT/shard.00000.mds and so on, of about 64 MiB, and SPLIT/index.json.

    Columns are sorted by name: `labels` of a version with masks, and `tokens`, which llm-foundry asks for. A sample of
    a fixed length is its values alone. A document has the bytes of each column (u32) before them, and before the values
    of each one a byte, 1 << 2 | 2 for one dimension whose length is a u32, and this length.
    """

    name = "mds"
    part_bytes = PART_BYTES

    def losses(self, facts: VersionFacts) -> list[str]:
        """Return the losses of samples, or of documents in llm-foundry."""
        cut = "llm-foundry cuts a document to max_seq_len; --unit sample --seq-len gives it samples of that length"
        return super().losses(facts) or [cut]

    def files(self, facts: VersionFacts, split: str, index: int, count: int) -> tuple[str, ...]:
        """See ExportFormat.files."""
        return (f"{split}/shard.{index:05}.mds",)

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Files) -> None:
        """Write the header, then the rows."""
        (file,) = files
        row_bytes = row_lengths(unit.documents, facts) * sum(d.itemsize for d in _mds_columns(facts).values())
        if facts.options.seq_len is None:
            row_bytes += len(_mds_columns(facts)) * (4 + _SHAPE.itemsize)
        config = json.dumps(_mds_config(facts), sort_keys=True).encode()
        file.write(header(row_bytes, self.name, config))
        for piece in tables.row_pieces(unit.documents, facts):
            file.write(joined(piece.lengths, _mds_parts(piece, facts)))

    def finish(self, facts: VersionFacts, units: Units, records: Records) -> dict[str, bytes]:
        """Return the index of each split, with the checksum of each shard."""
        return {
            f"{split}/index.json": json.dumps(
                {"shards": [_shard(unit, facts, records) for unit in units if unit.split == split], "version": 2},
                sort_keys=True,
            ).encode()
            for split in facts.splits
        }


def _mds_columns(facts: VersionFacts) -> dict[str, np.dtype]:
    """Return the types of the columns, sorted by name."""
    found = tables.columns(facts)
    return dict(sorted({"tokens" if name == IDS else name: dtype for name, dtype in found.items()}.items()))


def _mds_parts(piece: Piece, facts: VersionFacts) -> list[AnyArray]:
    """Return the parts of each row; see joined."""
    columns = tables.values(piece, facts)[::-1]
    if facts.options.seq_len is not None:
        return columns
    shape = np.empty((len(piece.lengths), 1), _SHAPE)
    shape["form"], shape["length"] = _ONE_LENGTH_OF_U32, piece.lengths[:, None]
    sizes = np.stack([_SHAPE.itemsize + piece.lengths * column.itemsize for column in columns], 1).astype("<u4")
    return [sizes, *(part for column in columns for part in (shape, column))]


def _mds_config(facts: VersionFacts) -> JsonObject:
    """Return the fields that all shards share."""
    length, columns = facts.options.seq_len, _mds_columns(facts)
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


def _shard(unit: ExportUnit, facts: VersionFacts, records: Records) -> JsonObject:
    """Return the entry of a shard in the index."""
    name, record = unit.files[0], records[unit.files[0]]
    file = {"basename": name.rpartition("/")[2], "bytes": record.bytes, "hashes": {_HASH: record.xxh3_128}}
    num_rows = tables.num_rows(unit.documents, facts)
    return _mds_config(facts) | {"raw_data": file, "samples": num_rows, "zip_data": None}


class LitData(tables.TableFormat):
    """SPLIT/chunk-0-0.bin and so on, of about 64 MiB, and SPLIT/index.json.

    Without masks they are for its TokensLoader, as LitGPT has it: ids end to end, of which each chunk is cut into
    blocks. With masks, rows are dictionaries of `input_ids` and `labels`, which its loader of PyTrees returns one by
    one: u32 bytes of each array, then the arrays.
    """

    name = "litdata"
    part_bytes = PART_BYTES

    def losses(self, facts: VersionFacts) -> list[str]:
        """Return the losses of samples, or of blocks of tokens."""
        lost = (
            "LitData's TokensLoader drops the tail of each chunk that fills no block, and crosses documents; --unit "
            "sample --seq-len BLOCK fills chunks with whole blocks"
        )
        return super().losses(facts) or [lost] * (not facts.has_masks)

    def files(self, facts: VersionFacts, split: str, index: int, count: int) -> tuple[str, ...]:
        """See ExportFormat.files."""
        return (f"{split}/chunk-0-{index}.bin",)

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Files) -> None:
        """Write the header, then the rows."""
        (file,) = files
        columns = tables.columns(facts)
        row_bytes = row_lengths(unit.documents, facts) * sum(dtype.itemsize for dtype in columns.values())
        if facts.has_masks:
            row_bytes += 4 * len(columns)
        file.write(header(row_bytes, self.name))
        for piece in tables.row_pieces(unit.documents, facts):
            parts = tables.values(piece, facts)
            if facts.has_masks:
                parts.insert(0, np.stack([piece.lengths * part.itemsize for part in parts], 1).astype("<u4"))
            file.write(joined(piece.lengths, parts))

    def finish(self, facts: VersionFacts, units: Units, records: Records) -> dict[str, bytes]:
        """Return the index of each split; LitData caches chunks by updated_at."""
        return {
            f"{split}/index.json": json.dumps(
                {
                    "chunks": [_chunk(unit, facts, records) for unit in units if unit.split == split],
                    "config": _litdata_config(facts),
                    "updated_at": documents.version,
                },
                sort_keys=True,
            ).encode()
            for split, documents in facts.splits.items()
        }


def _litdata_config(facts: VersionFacts) -> JsonObject:
    """Return the fields that all chunks share."""
    columns = tables.columns(facts)
    tree = {"type": "builtins.dict", "context": json.dumps(list(columns)), "children_spec": [_LEAF] * len(columns)}
    return {
        "chunk_bytes": PART_BYTES,
        "chunk_size": None,
        "compression": None,
        "compression_level": None,
        "data_format": [f"no_header_numpy:{_LITDATA_CODES[dtype.name]}" for dtype in columns.values()],
        "data_spec": json.dumps([1, tree if facts.has_masks else _LEAF]),
        "encryption": None,
        "item_loader": "PyTreeLoader" if facts.has_masks else "TokensLoader",
    }


def _chunk(unit: ExportUnit, facts: VersionFacts, records: Records) -> JsonObject:
    """Return the entry of a chunk in the index; `dim` is its tokens."""
    num_rows, length = tables.num_rows(unit.documents, facts), facts.options.seq_len
    return {
        "chunk_bytes": records[unit.files[0]].bytes,
        "chunk_size": num_rows,
        "dim": None if facts.has_masks else num_rows * length if length else unit.documents.num_tokens,
        "filename": unit.files[0].rpartition("/")[2],
    }
