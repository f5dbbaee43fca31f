"""Formats that keep a table: rows are documents, or samples of T tokens, with their ids and labels.

Parquet and Hugging Face write Arrow columns. MDS and LitData write files of rows behind a table of their offsets: u32
number of rows, u32 offset of each row and of the end, a text of the format, the rows. So a file is below 4 GiB.

Samples are the runs of T tokens of a file's documents, end to end, as packing `concat` has them; the rest of the file,
shorter than T, is left out. Labels are the ids, with -100 where a token is not learned. They are not shifted: models of
transformers shift them.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from tokenloom.errors import SpecError
from tokenloom.storage.formats.arrays import AnyArray, AnyBuffer, AnyDtype, offsets_of
from tokenloom.storage.formats.records import JsonObject, fields_of
from tokenloom.tasks.exporting.base import ExportFormat, ExportUnit, Files, Records, Units, VersionFacts, learned_bytes
from tokenloom.tasks.exporting.documents import Documents, Piece
from tokenloom.tasks.sources.token_ids import IDS, IGNORED, LABELS
from tokenloom.wording import counted

_MAX_BYTES = 2**32 - 1
_LITDATA_CODES = {"uint16": 5, "int32": 2}  # LitData's numbers of these types
_LEAF: JsonObject = {"type": None, "context": None, "children_spec": []}
_SHAPE = np.dtype([("form", "u1"), ("length", "<u4")])
_ONE_LENGTH_OF_U32 = 1 << 2 | 2
_HASH = "xxh3_128"


class TableFormat(ExportFormat):
    """A format of rows, with the limits and losses of all of them."""

    takes_samples = keeps_masks = True
    part_bytes = 2**29
    num_ids = 2**31
    instead = "olmo"

    def refuse(self, facts: VersionFacts) -> None:
        """Raise SpecError if ids need 32 bits without a sign, or a split has no sample."""
        super().refuse(facts)
        for split, documents in facts.splits.items():
            if not num_rows(documents, facts):
                raise SpecError(
                    f"--seq-len {facts.options.seq_len:,}: {split} has only {counted(documents.num_tokens, 'token')}; "
                    "use shorter samples, or leave it out with --split"
                )

    def parts(self, documents: Documents, facts: VersionFacts) -> list[Documents]:
        """See ExportFormat.parts; without those that are shorter than a sample."""
        return [part for part in super().parts(documents, facts) if num_rows(part, facts)]

    def losses(self, facts: VersionFacts) -> list[str]:
        """Return the loss of samples, the end of each file, or that of documents."""
        if (length := facts.options.seq_len) is None:
            return super().losses(facts)
        lost = f"up to {length - 1:,} tokens at the end of each file are lost"
        return [f"samples of {length:,} tokens cross documents; {lost}"]


def num_rows(documents: Documents, facts: VersionFacts) -> int:
    """Return how many rows the documents of a file are."""
    length = facts.options.seq_len
    return documents.num_documents if length is None else documents.num_tokens // length


def row_pieces(documents: Documents, facts: VersionFacts) -> Iterator[Piece]:
    """Yield pieces of whole rows; `lengths` are the tokens of each."""
    length = facts.options.seq_len
    if length is None:
        yield from documents.pieces()
        return
    rest: list[AnyArray] = []  # ids, and the classes of a version with masks
    for piece in documents.pieces():
        items = [piece.ids] if piece.classes is None else [piece.ids, piece.classes]
        if rest:
            items = [np.concatenate(pair) for pair in zip(rest, items, strict=True)]
        count = len(items[0]) // length
        whole = [each[: count * length] for each in items]
        rest = [each[count * length :] for each in items]
        if count:
            yield Piece(whole[0], np.full(count, length, np.uint32), whole[1] if piece.classes is not None else None)


def columns(facts: VersionFacts) -> dict[str, AnyDtype]:
    """Return the types of items of the columns: `input_ids`, and of a version with masks `labels`.

    Ids of 8 bits are widened to uint16, because torch's formatter of datasets would leave them uint8; those of 32 bits
    are int32, which every trainer takes.
    """
    ids = np.dtype("<i4" if facts.token_bytes == 4 else "<u2")
    return {IDS: ids, LABELS: np.dtype("<i4")} if facts.has_masks else {IDS: ids}


def values(piece: Piece, facts: VersionFacts) -> list[AnyArray]:
    """Return the items of each column, those of all rows of a piece end to end."""
    found = [piece.ids.astype(columns(facts)[IDS], copy=False)]
    if facts.has_masks:
        found.append(np.where(learned_bytes(piece, facts), piece.ids.astype("<i4"), np.int32(IGNORED)))
    return found


def schema(facts: VersionFacts) -> pa.Schema:
    """Return the columns as Arrow has them."""
    return pa.schema([(name, pa.list_(pa.from_numpy_dtype(dtype))) for name, dtype in columns(facts).items()])


def record_batches(unit: ExportUnit, facts: VersionFacts) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a unit."""
    for piece in row_pieces(unit.documents, facts):
        offsets = pa.array(offsets_of(piece.lengths.astype(np.int64))).cast(pa.int32())  # checks the range
        arrays = [pa.ListArray.from_arrays(offsets, pa.array(items)) for items in values(piece, facts)]
        yield pa.record_batch(arrays, schema=schema(facts))


class Parquet(TableFormat):
    """SPLIT/00000.parquet and so on: `input_ids`, and `labels` with masks; a row group for each 4 MB of ids."""

    name = "parquet"
    file_names = ("{split}/{index:05}.parquet",)

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Files) -> None:
        """Write row groups; a dictionary of ids would be longer than they are."""
        sink = pa.PythonFile(files[0], "w")
        with pq.ParquetWriter(sink, schema(facts), compression="zstd", use_dictionary=False) as writer:
            for batch in record_batches(unit, facts):
                writer.write_batch(batch, row_group_size=max(1, batch.num_rows))


class HuggingFace(TableFormat):
    """A dataset of Hugging Face as `save_to_disk` writes it, for `load_from_disk`: TRL, axolotl, LLaMA-Factory.

    SPLIT/data-00000-of-00001.arrow and so on are Arrow streams, SPLIT/dataset_info.json has the types of columns,
    SPLIT/state.json the names of the files; dataset_dict.json names the splits.
    """

    name = "huggingface"
    file_names = ("{split}/data-{index:05}-of-{count:05}.arrow",)

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Files) -> None:
        """Write an Arrow stream."""
        with pa.ipc.new_stream(pa.PythonFile(files[0], "w"), schema(facts)) as writer:
            for batch in record_batches(unit, facts):
                writer.write_batch(batch)

    def finish(self, facts: VersionFacts, units: Units, records: Records) -> dict[str, bytes]:
        """Return the JSON files."""
        files = {"dataset_dict.json": _json({"splits": list(facts.splits)})}
        for split in facts.splits:
            names = [unit.files[0].rpartition("/")[2] for unit in units if unit.split == split]
            files[f"{split}/dataset_info.json"] = _json(_info(facts))
            files[f"{split}/state.json"] = _json(_state(split, names, units[0].documents.version, facts))
        return files


def _json(value: JsonObject) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()


def _info(facts: VersionFacts) -> JsonObject:
    """Return the types of columns; releases of datasets before and after 4.0 know `Sequence`."""
    features = {
        field.name: {"_type": "Sequence", "feature": {"_type": "Value", "dtype": str(field.type.value_type)}}
        for field in schema(facts)
    }
    return {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}


def _state(split: str, names: list[str], version: str, facts: VersionFacts) -> JsonObject:
    """Return the state of a split; the fingerprint names it in the caches of datasets."""
    identity = f"{version}/{split}/{json.dumps(fields_of(facts.options), sort_keys=True)}"
    return {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": xxhash.xxh3_64_hexdigest(identity.encode()),
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }


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
        ends = offsets_of(lengths.astype(np.int64)) if part.ndim == 1 else np.arange(len(part) + 1)
        buffers = [None, pa.py_buffer(ends * part[:1].nbytes), pa.py_buffer(part)]
        items.append(pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers))
    return memoryview(pc.binary_join_element_wise(*items, pa.scalar(b"", pa.large_binary())).buffers()[2])


class ChunkFormat(TableFormat):
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
        documents, length, types = unit.documents, facts.options.seq_len, columns(facts)
        if length is None:
            lengths = np.concatenate(list(documents.lengths())).astype(np.int64)
        else:
            lengths = np.full(num_rows(documents, facts), length, np.int64)
        row_bytes = lengths * sum(dtype.itemsize for dtype in types.values()) + len(types) * self.head_bytes(facts)
        text = self.text(facts)
        places = 4 * (len(row_bytes) + 2) + len(text) + offsets_of(row_bytes)
        if places[-1] > _MAX_BYTES:
            raise SpecError(
                f"{self.name}: {counted(len(lengths), 'document')} make a file of 4 GiB or more; use megatron"
            )
        files[0].write(np.uint32(len(row_bytes)).tobytes() + places.astype("<u4").tobytes() + text)
        for piece in row_pieces(documents, facts):
            files[0].write(joined(piece.lengths, self.row_parts(piece, facts)))

    def finish(self, facts: VersionFacts, units: Units, records: Records) -> dict[str, bytes]:
        """Return the index of each split."""
        files: dict[str, bytes] = {}
        for split in facts.splits:
            index = self.index(facts, [unit for unit in units if unit.split == split], records)
            files[f"{split}/index.json"] = json.dumps(index, sort_keys=True).encode()
        return files


class Mds(ChunkFormat):
    """The files of MosaicML streaming.

    Columns are sorted by name: `labels` of a version with masks, and `tokens`, which llm-foundry asks for. A sample of
    a fixed length is its values alone. A document has the bytes of each column (u32) before them, and before the values
    of each one a byte, 1 << 2 | 2 for one dimension whose length is a u32, and this length.
    """

    name = "mds"
    file_names = ("{split}/shard.{index:05}.mds",)
    needs = "llm-foundry cuts a document to max_seq_len; --unit sample --seq-len gives it samples of that length"

    def head_bytes(self, facts: VersionFacts) -> int:
        """Return the bytes of a column's length and shape in a document; a sample has neither."""
        return 4 + _SHAPE.itemsize if facts.options.seq_len is None else 0

    def row_parts(self, piece: Piece, facts: VersionFacts) -> list[AnyArray]:
        """Return the columns, before those of documents the bytes of each and its shape."""
        arrays = values(piece, facts)[::-1]
        if facts.options.seq_len is not None:
            return arrays
        shape = np.empty((len(piece.lengths), 1), _SHAPE)
        shape["form"] = _ONE_LENGTH_OF_U32
        shape["length"] = piece.lengths[:, None]
        sizes = np.stack([_SHAPE.itemsize + piece.lengths * array.itemsize for array in arrays], 1).astype("<u4")
        return [sizes, *(part for array in arrays for part in (shape, array))]

    def text(self, facts: VersionFacts) -> bytes:
        """Return the fields that all shards share."""
        return json.dumps(_mds_config(facts), sort_keys=True).encode()

    def index(self, facts: VersionFacts, units: Units, records: Records) -> JsonObject:
        """Return the shards, each with its checksum."""
        shards = []
        for unit in units:
            name = unit.files[0]
            record = records[name]
            file = {"basename": name.rpartition("/")[2], "bytes": record.bytes, "hashes": {_HASH: record.xxh3_128}}
            count = num_rows(unit.documents, facts)
            shards.append(_mds_config(facts) | {"raw_data": file, "samples": count, "zip_data": None})
        return {"shards": shards, "version": 2}


def _mds_config(facts: VersionFacts) -> JsonObject:
    """Return the fields that all shards share."""
    length = facts.options.seq_len
    types = columns(facts)
    named = dict(sorted(("tokens" if name == IDS else name, dtype) for name, dtype in types.items()))
    return {
        "column_encodings": [f"ndarray:{dtype.name}" + (f":{length}" if length else "") for dtype in named.values()],
        "column_names": list(named),
        "column_sizes": [length * dtype.itemsize if length else None for dtype in named.values()],
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

    name = "litdata"
    file_names = ("{split}/chunk-0-{index}.bin",)

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
        arrays = values(piece, facts)
        if not facts.has_masks:
            return arrays
        return [np.stack([piece.lengths * array.itemsize for array in arrays], 1).astype("<u4"), *arrays]

    def index(self, facts: VersionFacts, units: Units, records: Records) -> JsonObject:
        """Return the chunks and their types; LitData caches chunks by updated_at. `dim` is the tokens of a chunk."""
        length = facts.options.seq_len
        chunks = []
        for unit in units:
            count = num_rows(unit.documents, facts)
            dim = count * length if length else unit.documents.num_tokens
            chunks.append(
                {
                    "chunk_bytes": records[unit.files[0]].bytes,
                    "chunk_size": count,
                    "dim": None if facts.has_masks else dim,
                    "filename": unit.files[0].rpartition("/")[2],
                }
            )
        return {"chunks": chunks, "config": _litdata_config(facts), "updated_at": units[0].documents.version}


def _litdata_config(facts: VersionFacts) -> JsonObject:
    """Return the fields that all chunks share."""
    types = columns(facts)
    tree = {"type": "builtins.dict", "context": json.dumps(list(types)), "children_spec": [_LEAF] * len(types)}
    return {
        "chunk_bytes": LitData.part_bytes,
        "chunk_size": None,
        "compression": None,
        "compression_level": None,
        "data_format": [f"no_header_numpy:{_LITDATA_CODES[dtype.name]}" for dtype in types.values()],
        "data_spec": json.dumps([1, tree if facts.has_masks else _LEAF]),
        "encryption": None,
        "item_loader": "PyTreeLoader" if facts.has_masks else "TokensLoader",
    }
