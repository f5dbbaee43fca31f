"""Files of rows behind a table of their offsets: MDS and LitData.

u32 number of rows, u32 offset of each row and of the end, a text of the format, the rows. So a file is below 4 GiB.
"""

from __future__ import annotations

import json
from abc import abstractmethod
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
from tokenloom.tasks.exporting.documents import Piece
from tokenloom.tasks.sources.token_ids import IDS
from tokenloom.wording import counted

_MAX_BYTES = 2**32 - 1
_LITDATA_CODES = {"uint16": 5, "int32": 2}  # LitData's numbers of these types
_LEAF: JsonObject = {"type": None, "context": None, "children_spec": []}
_SHAPE = np.dtype([("form", "u1"), ("length", "<u4")])
_ONE_LENGTH_OF_U32 = 1 << 2 | 2
_HASH = "xxh3_128"


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


class ChunkFormat(tables.TableFormat):
    """Files of rows behind a table of their offsets, of about 64 MiB, and SPLIT/index.json, which lists them."""

    part_bytes = 2**26  # bytes of ids in a file, the default of both formats

    @abstractmethod
    def head_bytes(self, facts: VersionFacts) -> int:
        """Return how many bytes each row has for each column, besides its values."""

    @abstractmethod
    def row_parts(self, piece: Piece, facts: VersionFacts) -> list[AnyArray]:
        """Return the parts of each row of a piece; see joined."""

    @abstractmethod
    def index(self, facts: VersionFacts, units: Units, records: Records) -> JsonObject:
        """Return the contents of index.json of a split with these units."""

    def text(self, facts: VersionFacts) -> bytes:
        """Return the text between the table and the rows."""
        return b""

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Files) -> None:
        """Write the table of offsets, then the rows; raise SpecError if a document makes the file too long."""
        documents, length, columns = unit.documents, facts.options.seq_len, tables.columns(facts)
        if length is None:
            lengths = np.concatenate(list(documents.lengths())).astype(np.int64)
        else:
            lengths = np.full(tables.num_rows(documents, facts), length, np.int64)
        row_bytes = lengths * sum(dtype.itemsize for dtype in columns.values()) + len(columns) * self.head_bytes(facts)
        text = self.text(facts)
        places = 4 * (len(row_bytes) + 2) + len(text) + np.append(0, np.cumsum(row_bytes))
        if places[-1] > _MAX_BYTES:
            raise SpecError(
                f"{self.name}: {counted(len(lengths), 'document')} make a file of 4 GiB or more; use megatron"
            )
        files[0].write(np.uint32(len(row_bytes)).tobytes() + places.astype("<u4").tobytes() + text)
        for piece in tables.row_pieces(documents, facts):
            files[0].write(joined(piece.lengths, self.row_parts(piece, facts)))

    def finish(self, facts: VersionFacts, units: Units, records: Records) -> dict[str, bytes]:
        """Return the index of each split."""
        by_split = {split: [unit for unit in units if unit.split == split] for split in facts.splits}
        indexes = {split: self.index(facts, of_split, records) for split, of_split in by_split.items()}
        return {f"{split}/index.json": json.dumps(index, sort_keys=True).encode() for split, index in indexes.items()}


class Mds(ChunkFormat):
    """The files of MosaicML streaming.

    Columns are sorted by name: `labels` of a version with masks, and `tokens`, which llm-foundry asks for. A sample of
    a fixed length is its values alone. A document has the bytes of each column (u32) before them, and before the values
    of each one a byte, 1 << 2 | 2 for one dimension whose length is a u32, and this length.
    """

    name, file_names = "mds", ("{split}/shard.{index:05}.mds",)
    needs = "llm-foundry cuts a document to max_seq_len; --unit sample --seq-len gives it samples of that length"

    def head_bytes(self, facts: VersionFacts) -> int:
        """Return the bytes of a column's length and shape in a document; a sample has neither."""
        return 4 + _SHAPE.itemsize if facts.options.seq_len is None else 0

    def row_parts(self, piece: Piece, facts: VersionFacts) -> list[AnyArray]:
        """Return the columns, before those of documents the bytes of each and its shape."""
        columns = tables.values(piece, facts)[::-1]
        if facts.options.seq_len is not None:
            return columns
        shape = np.empty((len(piece.lengths), 1), _SHAPE)
        shape["form"], shape["length"] = _ONE_LENGTH_OF_U32, piece.lengths[:, None]
        sizes = np.stack([_SHAPE.itemsize + piece.lengths * column.itemsize for column in columns], 1).astype("<u4")
        return [sizes, *(part for column in columns for part in (shape, column))]

    def text(self, facts: VersionFacts) -> bytes:
        """Return the fields that all shards share."""
        return json.dumps(_mds_config(facts), sort_keys=True).encode()

    def index(self, facts: VersionFacts, units: Units, records: Records) -> JsonObject:
        """Return the shards, each with its checksum."""
        shards = []
        for unit in units:
            name, record = unit.files[0], records[unit.files[0]]
            file = {"basename": name.rpartition("/")[2], "bytes": record.bytes, "hashes": {_HASH: record.xxh3_128}}
            num_rows = tables.num_rows(unit.documents, facts)
            shards.append(_mds_config(facts) | {"raw_data": file, "samples": num_rows, "zip_data": None})
        return {"shards": shards, "version": 2}


def _mds_config(facts: VersionFacts) -> JsonObject:
    """Return the fields that all shards share."""
    length, types = facts.options.seq_len, tables.columns(facts)
    columns = dict(sorted(("tokens" if name == IDS else name, dtype) for name, dtype in types.items()))
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


class LitData(ChunkFormat):
    """The files of LitData.

    Without masks they are for its TokensLoader, as LitGPT has it: ids end to end, of which each chunk is cut into
    blocks. With masks, rows are dictionaries of `input_ids` and `labels`, which its loader of PyTrees returns one by
    one: u32 bytes of each array, then the arrays.
    """

    name, file_names = "litdata", ("{split}/chunk-0-{index}.bin",)

    def losses(self, facts: VersionFacts) -> list[str]:
        """Return the losses of samples, or of blocks of tokens."""
        lost = (
            "LitData's TokensLoader drops the tail of each chunk that fills no block, and crosses documents; --unit "
            "sample --seq-len BLOCK fills chunks with whole blocks"
        )
        return super().losses(facts) or [lost] * (not facts.has_masks)

    def head_bytes(self, facts: VersionFacts) -> int:
        """Return the bytes of an array's length in a dictionary."""
        return 4 if facts.has_masks else 0

    def row_parts(self, piece: Piece, facts: VersionFacts) -> list[AnyArray]:
        """Return the arrays, before those of dictionaries the bytes of each."""
        columns = tables.values(piece, facts)
        if not facts.has_masks:
            return columns
        return [np.stack([piece.lengths * column.itemsize for column in columns], 1).astype("<u4"), *columns]

    def index(self, facts: VersionFacts, units: Units, records: Records) -> JsonObject:
        """Return the chunks and their types; LitData caches chunks by updated_at. `dim` is the tokens of a chunk."""
        length, chunks = facts.options.seq_len, []
        for unit in units:
            num_rows = tables.num_rows(unit.documents, facts)
            dim = num_rows * length if length else unit.documents.num_tokens
            chunks.append(
                {
                    "chunk_bytes": records[unit.files[0]].bytes,
                    "chunk_size": num_rows,
                    "dim": None if facts.has_masks else dim,
                    "filename": unit.files[0].rpartition("/")[2],
                }
            )
        version = units[0].documents.version
        return {"chunks": chunks, "config": _litdata_config(facts), "updated_at": version}


def _litdata_config(facts: VersionFacts) -> JsonObject:
    """Return the fields that all chunks share."""
    columns = tables.columns(facts)
    tree = {"type": "builtins.dict", "context": json.dumps(list(columns)), "children_spec": [_LEAF] * len(columns)}
    return {
        "chunk_bytes": LitData.part_bytes,
        "chunk_size": None,
        "compression": None,
        "compression_level": None,
        "data_format": [f"no_header_numpy:{_LITDATA_CODES[dtype.name]}" for dtype in columns.values()],
        "data_spec": json.dumps([1, tree if facts.has_masks else _LEAF]),
        "encryption": None,
        "item_loader": "PyTreeLoader" if facts.has_masks else "TokensLoader",
    }
