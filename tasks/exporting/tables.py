"""Formats that keep a table: rows are documents, or samples of T tokens, with their ids and labels.

Samples are the runs of T tokens of a file's documents, end to end, as packing `concat` has them; the rest of the file,
shorter than T, is left out. Labels are the ids, with -100 where a token is not learned. They are not shifted: models of
transformers shift them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tokenloom.errors import SpecError
from tokenloom.storage.formats.arrays import AnyArray, AnyDtype
from tokenloom.storage.formats.records import JsonObject, fields_of
from tokenloom.tasks.exporting.base import ExportFormat, ExportUnit, Files, Records, Units, VersionFacts, learned_bytes
from tokenloom.tasks.exporting.documents import Documents, Piece
from tokenloom.tasks.sources.token_ids import IDS, IGNORED, LABELS
from tokenloom.wording import counted


class TableFormat(ExportFormat):
    """A format of rows, with the limits and losses of all of them."""

    takes_samples = keeps_masks = True
    part_bytes = 2**29
    num_ids, instead = 2**31, "olmo"

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
        whole, rest = [each[: count * length] for each in items], [each[count * length :] for each in items]
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
        offsets = pa.array(np.append(0, np.cumsum(piece.lengths, dtype=np.int64))).cast(pa.int32())  # checks the range
        arrays = [pa.ListArray.from_arrays(offsets, pa.array(items)) for items in values(piece, facts)]
        yield pa.record_batch(arrays, schema=schema(facts))


class Parquet(TableFormat):
    """SPLIT/00000.parquet and so on: `input_ids`, and `labels` with masks; a row group for each 4 MB of ids."""

    name, file_names = "parquet", ("{split}/{index:05}.parquet",)

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

    name, file_names = "huggingface", ("{split}/data-{index:05}-of-{count:05}.arrow",)

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
