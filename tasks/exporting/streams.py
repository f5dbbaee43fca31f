"""Formats that are streams of ids, which their trainers cut: Megatron, OLMo-core, llm.c, nanoGPT, datatrove.

The classes of tasks/sources/token_formats.py with the same names describe the files.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from tokenloom.storage.formats.arrays import TOKEN_DTYPES, AnyArray
from tokenloom.tasks.exporting.base import ExportFormat, ExportUnit, Files, Records, Units, VersionFacts, learned_bytes
from tokenloom.tasks.exporting.documents import Documents
from tokenloom.tasks.sources import token_formats as formats

_NUM_AT_ONCE = 2**19
_MEGATRON_CODES = {1: 1, 2: 8, 4: 4}  # bytes of an id -> uint8, uint16, int32: there is no uint32
_GPT2_IDS = 50_257
_LLMC_PART_TOKENS = 100_000_000  # modded-nanogpt's files have as many


class Megatron(ExportFormat):
    """SPLIT.bin with the ids and SPLIT.idx with the lengths: megatron-core, NeMo, Megatron-Bridge and GPT-NeoX.

    A document is one sequence; its end-of-text id is part of it.
    """

    name = "megatron"
    file_names = ("{split}.bin", "{split}.idx")
    num_ids = 2**31
    instead = "olmo"

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Files) -> None:
        """Write the ids, then the index, with the offsets of one shard in memory."""
        data, index = files
        for piece in unit.documents.pieces():
            data.write(piece.ids)
        count = unit.documents.num_documents
        form = formats.Megatron
        index.write(form.HEAD.pack(form.MAGIC, form.VERSION, _MEGATRON_CODES[facts.token_bytes], count, count + 1))
        for lengths in unit.documents.lengths():
            index.write(lengths.astype(form.LENGTH))
        at = 0
        for lengths in unit.documents.lengths():
            sizes = lengths.astype(form.OFFSET) * facts.token_bytes
            ends = at + np.cumsum(sizes)
            index.write(ends - sizes)
            at = int(ends[-1])
        for start in range(0, count + 1, _NUM_AT_ONCE):
            index.write(np.arange(start, min(start + _NUM_AT_ONCE, count + 1), dtype=form.OFFSET))


class Olmo(ExportFormat):
    """SPLIT/token_ids_part_0000.npy, .csv.gz and, with masks, SPLIT/labels_mask_part_0000.npy.

    A part never cuts a document. Lines of the .csv.gz are "start,end" in tokens of its part. `label_mask_paths` wants
    one mask for each token file, in the same order.
    """

    name = "olmo"
    file_names = ("{split}/token_ids_part_{index:04}.npy", "{split}/token_ids_part_{index:04}.csv.gz")
    mask_names = ("{split}/labels_mask_part_{index:04}.npy",)
    part_bytes = 2**30  # OLMo-core drops the tail of each file, so files are few
    keeps_masks = True
    needs = (
        "on a local path OLMo-core finds documents by the end-of-text id {eot_id}, not by the .csv.gz, unless "
        "use_array_if_local=False; a fixed sequence length drops the tail of each file"
    )

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Files) -> None:
        """Write ids, lines and masks in one pass."""
        data, lines = files[:2]
        at = 0
        with gzip.GzipFile("", "wb", 1, lines, mtime=0) as compressed:  # type: ignore[call-overload]  # it only writes
            for piece in unit.documents.pieces():
                data.write(piece.ids)
                ends = at + np.cumsum(piece.lengths, dtype=np.int64)
                table = pa.table({"start": pa.array(ends - piece.lengths), "end": pa.array(ends)})
                sink = pa.BufferOutputStream()
                pacsv.write_csv(table, sink, pacsv.WriteOptions(include_header=False))
                compressed.write(memoryview(sink.getvalue()))
                at += len(piece.ids)
                if facts.has_masks:
                    files[2].write(learned_bytes(piece, facts))


class Llmc(ExportFormat):
    """DATASET_SPLIT_000000.bin and so on; `validation` is called val.

    Our documents end with the end-of-text id. A file with one before its first document and none after its last one
    has one before each document, and no more tokens.
    """

    name = "llmc"
    file_names = ("{dataset}_{short}_{index:06}.bin",)
    needs = (
        "llm.c marks documents by a leading end-of-text id, {eot_id}; each file must have more tokens than ranks x "
        "batch x sequence length"
    )

    def parts(self, documents: Documents, facts: VersionFacts) -> list[Documents]:
        """Return files of about 100 million tokens."""
        return documents.cut(max(1, -(-documents.num_tokens // _LLMC_PART_TOKENS)))

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Files) -> None:
        """Write the header and the ids."""
        width = max(2, facts.token_bytes)
        magic = formats.Llmc.LLAMA3 if width == 4 else formats.Llmc.GPT2
        header = np.zeros(formats.Llmc.HEADER_INTS, "<i4")
        header[:3] = magic, formats.Llmc.VERSIONS[magic], unit.documents.num_tokens
        files[0].write(header)
        for ids in _leading(unit, facts.tokenizer.eot_id):
            files[0].write(ids.astype(TOKEN_DTYPES[width], copy=False))


def _leading(unit: ExportUnit, eot_id: int) -> Iterator[AnyArray]:
    """Yield the ids of a file: an end-of-text id, then all but the last one, which must be another."""
    last: int = eot_id
    for piece in unit.documents.pieces():
        yield np.array([last], piece.ids.dtype)
        yield piece.ids[:-1]
        last = int(piece.ids[-1])


class NanoGpt(ExportFormat):
    """train.bin, val.bin and a file for each other split: uint16 ids, an end-of-text id after each document.

    meta.pkl says the size of the vocabulary, unless it is GPT-2's, which nanoGPT assumes. Its few bytes are written by
    hand: tokenloom imports no pickle.
    """

    name = "nanogpt"
    file_names = ("{short}.bin",)
    num_ids = 2**16
    instead = "llmc, olmo or megatron"
    needs = "nanogpt has no document boundaries but the end-of-text id {eot_id}"

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Files) -> None:
        """Write the ids."""
        for piece in unit.documents.pieces():
            files[0].write(piece.ids.astype("<u2", copy=False))

    def finish(self, facts: VersionFacts, units: Units, records: Records) -> dict[str, bytes]:
        """Return meta.pkl: the pickle of {"vocab_size": N}."""
        size = facts.tokenizer.vocab_size
        return {} if size == _GPT2_IDS else {"meta.pkl": b"(Vvocab_size\nI%d\nd." % size}


class Datatrove(ExportFormat):
    """SPLIT/00000.ds and the files beside it, which nanotron reads; line 3 of .ds.metadata has the tokens in words."""

    name = "datatrove"
    file_names = ("{split}/{index:05}.ds", "{split}/{index:05}.ds.index", "{split}/{index:05}.ds.metadata")
    mask_names = ("{split}/{index:05}.ds.loss",)
    part_bytes = 2**30
    keeps_masks = True

    def write(self, unit: ExportUnit, facts: VersionFacts, files: Files) -> None:
        """Write all files in one pass."""
        data, index, metadata = files[:3]
        dtype = TOKEN_DTYPES[max(2, facts.token_bytes)]
        count = 0
        for piece in unit.documents.pieces():
            data.write(piece.ids.astype(dtype, copy=False))
            index.write(count + np.cumsum(piece.lengths, dtype=formats.Datatrove.END))
            count += len(piece.ids)
            if facts.has_masks:
                files[3].write(learned_bytes(piece, facts))
        metadata.write(f"{facts.tokenizer.name}|{dtype.itemsize}\n{count}\n{count:,} T".encode())
