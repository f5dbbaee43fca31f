"""Files with one length and different rows, in each form that a source reads; the rows that a version must hold."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import random
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.datasets import stored_documents
from tokenloom.spec.build_spec import BuildSpec

EOT_ID = 50_256
IDS = {"kind": "ids", "vocab_size": EOT_ID + 1, "eot_id": EOT_ID}  # the tokenizer of files of tokens
SEPARATOR = "<|next|>"
Place = tuple[str, int]  # the path of a file, the number of a row in it
Parts = dict[str, bytes]  # a file's content by suffix, and those of files that are read with it


class Written(NamedTuple):
    """One file, and the files that are read with it.

    Attributes:
        parts: the contents by suffix.
        rows: the text of each row, by the number that the document table gives it.
    """

    parts: Parts
    rows: dict[int, str]


class Form(NamedTuple):
    """A form of files.

    Attributes:
        suffix: of the file's name, as in `parts` of what it writes.
        write: returns the parts of a file with these texts.
        number: returns the number of each row in such a file.
        options: of a source that reads such files.
    """

    suffix: str
    write: Callable[[Sequence[str]], Parts]
    number: Callable[[Sequence[str]], list[int]]
    options: dict[str, Any]

    @property
    def holds_ids(self) -> bool:
        """Whether the files hold tokens, not texts."""
        return bool(self.options["kind"] == "tokens")

    def written(self, texts: Sequence[str]) -> Written:
        """Return a file with these texts."""
        return Written(self.write(texts), dict(zip(self.number(texts), texts, strict=True)))

    def of_equal_size(self, num_files: int, num_rows: int = 6) -> list[Written]:
        """Return files of other rows and equal sizes, which compressed ones have only by chance."""
        if self.options == {"kind": "text"}:
            num_rows = 1
        files: list[Written] = []
        for seed in itertools.count():
            file = self.written(made_texts(seed, num_rows))
            if not files or sizes_of(file) == sizes_of(files[0]):
                files.append(file)
            if len(files) == num_files:
                break
        return files


def made_texts(seed: int, num_rows: int) -> list[str]:
    """Return different texts with one length."""
    numbers = random.Random(seed)
    return [f'{i:04d}: "é", said {numbers.getrandbits(64):016x}' for i in range(num_rows)]


def sizes_of(file: Written) -> list[int]:
    """Return the length of each part of a file."""
    return [len(part) for part in file.parts.values()]


# Numbers of rows


def by_order(texts: Sequence[str]) -> list[int]:
    """Number rows from 0."""
    return list(range(len(texts)))


def by_position(lengths: Sequence[int]) -> list[int]:
    """Number rows by where they begin."""
    return [0, *itertools.accumulate(lengths)][:-1]


def _line(text: str) -> bytes:
    return json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"


def _by_line(texts: Sequence[str]) -> list[int]:
    return by_position([len(_line(text)) for text in texts])


def _by_separator(texts: Sequence[str]) -> list[int]:
    """Return the byte after each separator; each but the last text ends with a line end before the next one."""
    return by_position([len(f"{text}\n{SEPARATOR}".encode()) for text in texts])


def _by_token(texts: Sequence[str]) -> list[int]:
    return by_position([len(text.encode()) + 1 for text in texts])


def _after_eot(texts: Sequence[str]) -> list[int]:
    return [position + 1 for position in _by_token(texts)]


# Contents


def parquet(texts: Sequence[str]) -> bytes:
    """Return a parquet file, in row groups of four."""
    file = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), file, row_group_size=4)
    return file.getvalue()


def arrow(texts: Sequence[str]) -> bytes:
    """Return an Arrow stream, in record batches of four."""
    return _stream(pa.table({"text": texts}))


def _stream(table: pa.Table) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return file.getvalue()


def json_lines(texts: Sequence[str]) -> bytes:
    """Return JSON lines."""
    return b"".join(map(_line, texts))


def json_array(texts: Sequence[str]) -> bytes:
    """Return one JSON array."""
    return json.dumps([{"text": text} for text in texts]).encode()


def csv_lines(texts: Sequence[str]) -> bytes:
    """Return CSV with a header."""
    file = io.StringIO()
    lines = csv.writer(file)
    lines.writerow(["number", "text"])
    lines.writerows(enumerate(texts))
    return file.getvalue().encode()


def text_lines(texts: Sequence[str]) -> bytes:
    """Return a text a line."""
    return "".join(f"{text}\n" for text in texts).encode()


def zstd(data: bytes) -> bytes:
    """Compress with Zstandard."""
    compressed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return compressed


def gzipped(data: bytes) -> bytes:
    """Compress with gzip."""
    return gzip.compress(data, mtime=0)


def _zipped(data: bytes) -> bytes:
    """Return an archive with one file of JSON lines."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("rows.jsonl"), data)
    return file.getvalue()


def _array_records(texts: Sequence[str]) -> bytes:
    module = pytest.importorskip("array_record.python.array_record_module")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records")
        writer = module.ArrayRecordWriter(str(path), "group_size:3")
        for text in texts:
            writer.write(text.encode())
        writer.close()
        return path.read_bytes()


def _ids_of(texts: Sequence[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


def _tokens(texts: Sequence[str], *, leads: bool = False) -> bytes:
    """Return all ids as 16 bits, with an end-of-text id after each text, or before it."""
    ids: list[int] = []
    for text_ids in _ids_of(texts):
        ids += [EOT_ID, *text_ids] if leads else [*text_ids, EOT_ID]
    return np.array(ids, "<u2").tobytes()


def _megatron(texts: Sequence[str]) -> Parts:
    lengths = [len(ids) + 1 for ids in _ids_of(texts)]
    offsets = [2 * start for start in by_position(lengths)]
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(texts), len(texts) + 1)
    arrays = [np.array(lengths, "<i4"), np.array(offsets, "<i8"), np.arange(len(texts) + 1, dtype="<i8")]
    return {".bin": _tokens(texts), ".idx": head + b"".join(array.tobytes() for array in arrays)}


def _olmo(texts: Sequence[str]) -> Parts:
    starts = [*_by_token(texts), len(_tokens(texts)) // 2]
    lines = [f"{start},{end}\n" for start, end in itertools.pairwise(starts)]
    return {".npy": _tokens(texts), ".csv.gz": gzipped("".join(lines).encode())}


def _llmc(texts: Sequence[str]) -> bytes:
    tokens = _tokens(texts, leads=True)
    header = np.zeros(256, "<i4")
    header[:3] = [20240520, 1, len(tokens) // 2]
    return header.tobytes() + tokens


def _datatrove(texts: Sequence[str]) -> Parts:
    starts = [*_by_token(texts), len(_tokens(texts)) // 2]
    return {".ds": _tokens(texts), ".ds.index": np.array(starts[1:], "<u8").tobytes()}


def _rows_of_ids(texts: Sequence[str]) -> pa.Table:
    return pa.table({"input_ids": pa.array(_ids_of(texts), pa.list_(pa.int32()))})


def _parquet_of_ids(texts: Sequence[str]) -> bytes:
    file = io.BytesIO()
    pq.write_table(_rows_of_ids(texts), file)
    return file.getvalue()


def _plain(
    suffix: str,
    content: Callable[[Sequence[str]], bytes],
    number: Callable[[Sequence[str]], list[int]] = by_order,
    **options: Any,
) -> Form:
    """Return a form of single files; their suffix names their kind unless `options` do."""
    return Form(suffix, lambda texts: {suffix: content(texts)}, number, {"kind": suffix[1:]} | options)


def _packed(form: Form, suffix: str, compress: Callable[[bytes], bytes]) -> Form:
    name = f"{form.suffix}{suffix}"
    return Form(name, lambda texts: {name: compress(form.write(texts)[form.suffix])}, form.number, form.options)


#: Forms of texts that each protocol and the hub read, by name.
TEXTS: dict[str, Form] = {
    "parquet": _plain(".parquet", parquet),
    "arrow": _plain(".arrow", arrow),
    "jsonl": _plain(".jsonl", json_lines, _by_line),
    "json": _plain(".json", json_array, kind="jsonl"),
    "csv": _plain(".csv", csv_lines),
}
TEXTS |= {
    "jsonl.gz": _packed(TEXTS["jsonl"], ".gz", gzipped),
    "jsonl.zst": _packed(TEXTS["jsonl"], ".zst", zstd),
    "jsonl.bz2": _packed(TEXTS["jsonl"], ".bz2", bz2.compress),
    "csv.gz": _packed(TEXTS["csv"], ".gz", gzipped),
}
_WHOLE = _plain(".txt", lambda texts: texts[0].encode(), kind="text")
_SEPARATED = _plain(
    ".txt", lambda texts: f"\n{SEPARATOR}".join(texts).encode(), _by_separator, kind="text", separator=SEPARATOR
)
#: Those that the kind `text` reads, otherwise than the package does.
OWN_TEXTS: dict[str, Form] = {
    "text": _WHOLE,
    "text, separated": _SEPARATED,
    "text, separated, gz": _packed(_SEPARATED, ".gz", gzipped),
}
ZIPPED = _packed(TEXTS["jsonl"], ".zip", _zipped)._replace(
    number=by_order
)  # which only the package reads, by the order of rows
LINES = _plain(".txt", text_lines)  # a line is a row, as the package reads text
ARRAY_RECORDS = _plain(".array_record", _array_records, kind="arrayrecord")


def _imported(name: str, suffix: str, write: Callable[[Sequence[str]], Parts], number: Any = by_order) -> Form:
    return Form(suffix, write, number, {"kind": "tokens", "format": name})


def _saved(texts: Sequence[str]) -> Parts:
    """Return the files of a folder that save_to_disk wrote."""
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": None}
    return {"/data-00000-of-00001.arrow": arrow(texts), "/state.json": json.dumps(state).encode()}


SAVED = Form("", _saved, by_order, {"kind": "arrow"})

#: Files of tokens, by the format of their import.
IMPORTS: dict[str, Form] = {
    "megatron": _imported("megatron", ".bin", _megatron),
    "olmo": _imported("olmo", ".npy", _olmo),
    "llmc": _imported("llmc", ".bin", lambda texts: {".bin": _llmc(texts)}, _after_eot),
    "nanogpt": _imported("nanogpt", ".bin", lambda texts: {".bin": _tokens(texts)}, _by_token),
    "datatrove": _imported("datatrove", ".ds", _datatrove),
    "ids in arrow": _imported("huggingface", ".arrow", lambda texts: {".arrow": _stream(_rows_of_ids(texts))}),
    "ids in parquet": _imported("huggingface", ".parquet", lambda texts: {".parquet": _parquet_of_ids(texts)}),
}


# What a version must hold


def rows_at(files: Mapping[str, Written]) -> dict[Place, str]:
    """Return the text of each row of files, by the file's path and the row's number."""
    return {(path, number): text for path, file in files.items() for number, text in file.rows.items()}


def documents_of(spec: BuildSpec, version: str) -> Iterator[tuple[Place, str]]:
    """Yield the place and the text of each document of a version whose ids are bytes."""
    for document in stored_documents(spec, version):
        text = bytes(document["ids"].tolist()).decode()
        yield (document["path"], document["row"]), text


def assert_complete(spec: BuildSpec, version: str, rows: Mapping[Place, str]) -> None:
    """Check that a version holds each text of the rows once, and each at the place of a row with that text."""
    documents = list(documents_of(spec, version))
    assert sorted(text for _, text in documents) == sorted(set(rows.values()))
    assert {place: rows[place] for place, _ in documents} == dict(documents)
