"""The spill: documents, tokens and ids of up to 64 MB of a partition's text, sorted by (split, key, content, row).

Read in ranges: the header holds the document counts of the splits, the key of every 1,024th document and a
checksum of every 128 KiB block of the body, so a key range costs one read of the document table and one of the
tokens, both checked. It holds neither source nor path: the same file under two names shares its spills.

    header   magic and two lengths, JSON block, sampled keys (u64), block checksums (xxh3_128)
    body     document table (TABLE_DTYPE), then tokens, classes and ids (UTF-8) in the same order

The JSON block has the counts of each split, the bytes of a token, and whether tokens have classes, one byte each: those
of conversations have. The checksum of the header is in the record of the partition, and covers all of the spill.

A part of a run, see records.RunPart, has the same format: its documents are those of many spills, in the order (split,
key, content, spill, row), since each row holds its spill too, see ROW_BITS. Further copies of documents are spills
too.

A spill is a cache that the next build reuses; its name is a hash of everything that determines its bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import IO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from tokenloom.errors import FormatError
from tokenloom.storage.formats.arrays import AnyArray, runs_of, token_dtype
from tokenloom.storage.formats.blocks import BlockHasher
from tokenloom.storage.formats.records import JsonObject, canonical_json
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.store import Store
from tokenloom.storage.work.records import SpillCounts, reading_work_file, spill_path
from tokenloom.storage.work.segments import as_segments, take_segments

SPILL_FORMAT = 2
MAGIC = b"TOKSPIL\0"
TABLE_DTYPE = np.dtype(
    [
        ("key", "<u8"),
        ("content_high", "<u8"),
        ("content_low", "<u8"),
        ("row", "<u8"),
        ("start", "<u8"),  # first token in the spill
        ("id_start", "<u8"),  # first byte of its id among all ids of the spill
        ("num_tokens", "<u4"),
        ("id_bytes", "<u4"),  # 0 where the document has no id
    ]
)
#: bits of `row`: 0 to 45 are the row, 46 to 55 the index of its spill in a run, 56 to 63 how many copies a document
#: has; in the spill of a partition, all but the first are 0
ROW_BITS = 46
COPIES_SHIFT = 56
MAX_RUN_SPILLS = 2 ** (COPIES_SHIFT - ROW_BITS)
_FIXED = struct.Struct("<8sII")  # magic, header bytes, JSON bytes
_BLOCK_BYTES = 2**17  # a read of a key range costs at most two blocks more; of 100 GB, a range is 80 KB of a spill
_PIECE_BYTES = 2**20  # tokens are written in pieces of this length
_READ_BYTES = 2**22  # tokens are read from a local spill in parts of this length
_SAMPLE_ROWS = 1024
_CHECKSUM_BYTES = 16
_HEAD_BYTES = 2**16  # nearly every header is shorter, so one read is enough


@dataclass(frozen=True)
class SpillDocuments:
    """Documents in memory, in the order they were read, with their tokens one after the other.

    Shapes: n documents; `content` is (n, 2) uint64 (high, low), `tokens` (sum of num_tokens,), `ids` (sum of
    id_bytes,) UTF-8, the rest (n,). `classes` has the class of each token, see storage/formats/classes.py; None if the
    documents are plain text.
    """

    split: NDArray[np.uint8]
    key: NDArray[np.uint64]
    content: NDArray[np.uint64]
    row: NDArray[np.uint64]
    num_tokens: NDArray[np.uint32]
    tokens: AnyArray
    id_bytes: NDArray[np.uint32]
    ids: NDArray[np.uint8]
    classes: NDArray[np.uint8] | None = None


def write_spill(
    store: Store, name: str, index: int, documents: SpillDocuments, num_splits: int, info: JsonObject
) -> SpillCounts:
    """Sort `documents` and write them as one spill.

    Args:
        store: the dataset's store.
        name: the name of the partition's spills.
        index: the index of this spill in the partition.
        documents: up to about 64 MB of text and its tokens.
        num_splits: splits of the build; documents are counted for each.
        info: JSON values for the header: tokenizer fingerprint.
    """
    assert documents.classes is None or len(documents.classes) == len(documents.tokens)
    order = np.lexsort((documents.row, *documents.content.T[::-1], documents.key, documents.split))
    split, num_tokens = documents.split[order], documents.num_tokens[order]
    counts = {
        "documents": np.bincount(split, minlength=num_splits).tolist(),
        "tokens": [int(num_tokens[split == i].sum(dtype=np.uint64)) for i in range(num_splits)],
    }
    info = info | counts | {"classes": documents.classes is not None, "token_bytes": documents.tokens.itemsize}
    with store.writing(spill_path(name, index), durable=False) as file:
        num_bytes, checksum = _write(file, documents, order, info)
    return SpillCounts(num_bytes, **counts, checksum=checksum)


def _table(documents: SpillDocuments, order: NDArray[np.intp]) -> AnyArray:
    """Return the document table of documents in an order, (n,) of TABLE_DTYPE."""
    table = np.zeros(len(order), TABLE_DTYPE)
    table["key"] = documents.key[order]
    table["content_high"], table["content_low"] = documents.content[order].T
    table["row"] = documents.row[order]
    for length, start, values in (
        ("num_tokens", "start", documents.num_tokens),
        ("id_bytes", "id_start", documents.id_bytes),
    ):
        table[length] = values[order]
        table[start] = np.cumsum(table[length], dtype=np.uint64) - table[length]
    return table


def _write(file: IO[bytes], documents: SpillDocuments, order: NDArray[np.intp], info: JsonObject) -> tuple[int, str]:
    """Write a spill; return its length and the checksum of its header."""
    table = _table(documents, order)
    columns = [(documents.tokens, documents.num_tokens), (documents.ids, documents.id_bytes)]
    if documents.classes is not None:
        columns.insert(1, (documents.classes, documents.num_tokens))
    body_bytes = table.nbytes + sum(values.nbytes for values, _ in columns)
    block, sampled = canonical_json(info), np.ascontiguousarray(table["key"][::_SAMPLE_ROWS]).tobytes()
    num_blocks = -(-body_bytes // _BLOCK_BYTES)
    header_bytes = _FIXED.size + len(block) + len(sampled) + _CHECKSUM_BYTES * num_blocks
    local_files.write_all(file, bytes(header_bytes))  # it holds the checksums of what follows
    hasher = BlockHasher(_BLOCK_BYTES)
    for part in chain([table], *(_in_order(values, lengths, order) for values, lengths in columns)):
        view = part.view(np.uint8).data
        local_files.write_all(file, view)
        hasher.update(view)
    head = _FIXED.pack(MAGIC, header_bytes, len(block)) + block + sampled + hasher.finish()
    assert len(head) == header_bytes  # else it would overwrite the table, or leave a gap
    file.seek(0)
    local_files.write_all(file, head)
    return header_bytes + body_bytes, xxhash.xxh3_128_hexdigest(head)


def _in_order(values: AnyArray, lengths: AnyArray, order: NDArray[np.intp]) -> Iterator[AnyArray]:
    """Yield the tokens (or ids) of the documents in an order, about _PIECE_BYTES at a time."""
    documents = as_segments(values, lengths)
    ends = np.concatenate([[0], np.cumsum(lengths[order], dtype=np.int64)])
    for start, end in runs_of(ends, _PIECE_BYTES // values.dtype.itemsize):
        yield take_segments(documents, order[start:end], values.dtype)


class Spill:
    """A spill, read in ranges; raises WorkError if its bytes are not those that were written.

    Holds only the header, and no open file.

    Args:
        store: the dataset's store.
        name: the name of the partition's spills.
        index: the index of this spill in the partition.
        num_bytes: its length, as the partition's record gives it.
        checksum: that of its header, as the record gives it.
    """

    def __init__(self, store: Store, name: str, index: int, num_bytes: int, checksum: str) -> None:
        self._store, self._path = store, spill_path(name, index)
        for is_last in (store.is_local, True):  # a remote file that arrives damaged is read again
            with reading_work_file(store, self._path, is_last=is_last):
                head = store.read_range(self._path, 0, min(_HEAD_BYTES, num_bytes))
                header_bytes, json_bytes = _FIXED.unpack_from(head)[1:] if len(head) >= _FIXED.size else (0, 0)
                if len(head) < header_bytes <= num_bytes:
                    head += store.read_range(self._path, len(head), header_bytes)
                head = head[:header_bytes]
                if xxhash.xxh3_128_hexdigest(head) != checksum:
                    raise FormatError("its header is not the one that its record names")
                break
        info_end = _FIXED.size + json_bytes
        self.info: JsonObject = json.loads(head[_FIXED.size : info_end])
        #: the documents of each split
        self.num_documents = cast(list[int], self.info["documents"])
        self._split_ends = [0, *np.cumsum(self.num_documents).tolist()]
        num_sampled = -(-self._split_ends[-1] // _SAMPLE_ROWS)
        self._sampled_keys = np.frombuffer(head, "<u8", num_sampled, info_end)
        self._checksums = head[info_end + 8 * num_sampled :]
        self._body_start, self._body_bytes = header_bytes, num_bytes - header_bytes
        #: whether its documents are conversations, whose tokens have classes
        self.has_classes = bool(self.info["classes"])
        self.dtype = token_dtype(2 ** (8 * cast(int, self.info["token_bytes"])))
        num_tokens = sum(cast(list[int], self.info["tokens"]))
        self._tokens_start = self._split_ends[-1] * TABLE_DTYPE.itemsize
        self._classes_start = self._tokens_start + num_tokens * self.dtype.itemsize
        self._ids_start = self._classes_start + num_tokens * self.has_classes

    def documents(self, split_index: int, start_key: int, end_key: int) -> tuple[int, AnyArray]:
        """Return the number of the first row of a split with a key in [start_key, end_key), and all such rows.

        They are (n,) of TABLE_DTYPE.
        """
        first, end = self._split_ends[split_index], self._split_ends[split_index + 1]
        # Sampled rows inside the split bracket the wanted ones; rows between two samples are read whole.
        low, high = -(-first // _SAMPLE_ROWS), -(-end // _SAMPLE_ROWS)
        keys = self._sampled_keys[low:high]
        before = low + int(np.searchsorted(keys, np.uint64(start_key), side="left")) - 1
        after = low + int(np.searchsorted(keys, np.uint64(end_key - 1), side="right"))
        row_start = max(first, before * _SAMPLE_ROWS)
        row_end = min(end, after * _SAMPLE_ROWS)
        if row_end <= row_start:
            return 0, np.empty(0, TABLE_DTYPE)
        size = TABLE_DTYPE.itemsize
        rows = np.frombuffer(self._read(row_start * size, row_end * size), TABLE_DTYPE)
        first_row = int(np.searchsorted(rows["key"], np.uint64(start_key)))
        last_row = int(np.searchsorted(rows["key"], np.uint64(end_key - 1), side="right"))
        return row_start + first_row, rows[first_row:last_row]

    def tokens(self, start: int, end: int) -> Iterator[AnyArray]:
        """Yield the tokens [start, end) of the spill, of its stored type: in parts of 4 MiB if it is local."""
        width = self.dtype.itemsize
        for part in self._parts(self._tokens_start + start * width, self._tokens_start + end * width):
            yield np.frombuffer(part, self.dtype)

    def classes(self, start: int, end: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the classes of the tokens [start, end) of a spill that `has_classes`, in parts as of tokens."""
        assert self.has_classes
        for part in self._parts(self._classes_start + start, self._classes_start + end):
            yield np.frombuffer(part, np.uint8)

    def _parts(self, start: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes [start, end) of the body, in parts of 4 MiB if the spill is local."""
        cuts: Iterable[int] = ()
        if self._store.is_local:  # elsewhere, each part would be a request
            cuts = range((start // _READ_BYTES + 1) * _READ_BYTES, end, _READ_BYTES)  # between blocks
        for part_start, part_end in pairwise([start, *cuts, end]):
            yield self._read(part_start, part_end)

    def ids(self, rows: AnyArray) -> pa.Array:
        """Return the ids of neighbouring rows of the spill, (n,) large_string, null where a document has none."""
        if not len(rows):
            return pa.array([], pa.large_string())
        first, last = int(rows["id_start"][0]), rows[-1]
        end = int(last["id_start"]) + int(last["id_bytes"])
        offsets = np.append(rows["id_start"], np.uint64(end)).astype(np.int64) - first
        data = pa.py_buffer(bytes(self._read(self._ids_start + first, self._ids_start + end)) if end > first else b"")
        strings = pa.Array.from_buffers(pa.large_string(), len(rows), [None, pa.py_buffer(offsets), data])
        return pc.if_else(pa.array(rows["id_bytes"] > 0), strings, pa.scalar(None, pa.large_string()))

    def _read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end) of the body; checks every block that they touch."""
        length = _BLOCK_BYTES
        first, last = start // length, -(-end // length)
        block_start, block_end = first * length, min(last * length, self._body_bytes)
        start_of_body = self._body_start
        for is_last in (self._store.is_local, True):  # a remote file that arrives damaged is read again
            with reading_work_file(self._store, self._path, is_last=is_last):
                read = self._store.read_range(self._path, start_of_body + block_start, start_of_body + block_end)
                data = memoryview(read)
                for block in range(first, last):
                    piece = data[(block - first) * length : (block - first + 1) * length]
                    checksum = self._checksums[block * _CHECKSUM_BYTES : (block + 1) * _CHECKSUM_BYTES]
                    if xxhash.xxh3_128_digest(piece) != checksum:
                        raise FormatError(f"block {block} (of {length // 1024} KiB) is damaged")
                break
        return data[start - first * length : end - first * length]
