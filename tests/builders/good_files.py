"""Small good files of four formats in the forms that are common, to be damaged: heads of real files, or made text."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path(os.environ.get("TOKENLOOM_TEST_DATA", "/nowhere"))
SEPARATOR = "<|endoftext|>"
NUM_ROWS = 40
_MAX_CHARS = 1500  # of a text: damage must hit more than one


@dataclass(frozen=True)
class GoodFile:
    """A file as bytes, with its contents and its reader. Damage goes into `data`, or into what `pack` makes of it."""

    name: str
    format: str
    data: bytes
    options: dict[str, Any] = field(default_factory=dict)
    pack: Callable[[bytes], bytes] | None = None

    @property
    def whole(self) -> bytes:
        """The bytes of the file."""
        return self.pack(self.data) if self.pack else self.data


def zstd(data: bytes) -> bytes:
    """Return `data` in a frame of zstd."""
    return bytes(pa.compress(data, "zstd", asbytes=True))


def gzipped(data: bytes) -> bytes:
    """Return `data` in a member of gzip, the same bytes at any time."""
    return gzip.compress(data, mtime=0)


PACKS: dict[str, Callable[[bytes], bytes]] = {".gz": gzipped, ".bz2": bz2.compress, ".zst": zstd}


def real_texts() -> list[list[str]]:
    """Return lists of NUM_ROWS texts each, of several languages, from the data folder; made ones without it."""
    if not DATA.is_dir():
        return [_made_texts(seed) for seed in range(4)]
    found = [
        _column(DATA / "ag_news" / "train-00000-of-00008.parquet", "text"),
        _column(DATA / "multilingual" / "nsmc" / "part-00000.parquet", "text"),
        _column(DATA / "wikitext-2" / "valid.parquet", "text"),
        _column(DATA / "nltk" / "movie_reviews_pos.parquet", "text"),
        ["\n".join(lines) for lines in _column(DATA / "multilingual" / "tang_poems.parquet", "paragraphs")],
    ]
    with gzip.open(DATA / "tinystories" / "stories.jsonl.gz", "rt", encoding="utf-8") as file:
        found.append([json.loads(next(file))["story"] for _ in range(NUM_ROWS)])
    return [[text[:_MAX_CHARS].strip("\r\n") for text in texts] for texts in found]


def _column(path: Path, name: str) -> list[Any]:
    batch = next(pq.ParquetFile(path).iter_batches(NUM_ROWS, columns=[name]))
    return list(batch.column(0).to_pylist())


def _made_texts(seed: int) -> list[str]:
    rng = random.Random(seed)
    words = ["the", "token", "été", "漢字", "\U0001f680", 'a "quoted" word', "comma,", "line\nend", "naïve", "data"]
    return [f"{i} " + " ".join(rng.choices(words, k=rng.randrange(1, 60))) for i in range(NUM_ROWS)]


def good_files() -> dict[str, list[GoodFile]]:
    """Return the good files by format: parquet, json, text (CSV too), arrow."""
    texts = real_texts()
    made = {
        "parquet": list(_parquet(texts)),
        "json": list(_json(texts)),
        "text": list(_text(texts)),
        "arrow": list(_arrow(texts)),
    }
    return {name: files for name, files in made.items() if files}


def _table(texts: Sequence[str], kind: pa.DataType | None = None) -> pa.Table:
    column = pa.array([*texts[:-1], None], pa.string())
    if kind is not None and pa.types.is_list(kind):
        column = pa.array([text.split("\n") for text in texts], kind)
    elif kind is not None:
        column = column.cast(kind)
    return pa.table({"number": pa.array(range(len(texts)), pa.int64()), "text": column})


_PARQUET: list[dict[str, Any]] = [
    {"compression": "none", "use_dictionary": False},
    {"compression": "none", "use_dictionary": False, "write_page_checksum": True},
    {"compression": "snappy"},
    {"compression": "zstd", "write_page_checksum": True},
    {"compression": "gzip", "data_page_version": "2.0"},
    {"compression": "lz4", "data_page_size": 500, "write_page_index": True},
    {"compression": "brotli", "store_schema": False},
    {"compression": "zstd", "use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    {"compression": "snappy", "use_dictionary": False, "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY"}},
    {"compression": "snappy", "data_page_version": "2.0", "write_statistics": False},
    {"compression": "zstd", "kind": pa.large_string()},
    {"compression": "snappy", "kind": pa.dictionary(pa.int32(), pa.string())},
    {"compression": "none", "kind": pa.list_(pa.string())},
    {"compression": "zstd", "kind": pa.list_(pa.string()), "data_page_version": "2.0"},
    {"compression": "none", "kind": pa.string_view()},
]


def _parquet(texts: list[list[str]]) -> Iterator[GoodFile]:
    for i, options in enumerate(_PARQUET):
        kind = options.get("kind")
        sink = io.BytesIO()
        writing = {key: value for key, value in options.items() if key != "kind"}
        pq.write_table(_table(texts[i % len(texts)], kind), sink, row_group_size=NUM_ROWS // 3, **writing)
        yield GoodFile(f"{i}.parquet", "parquet", sink.getvalue(), {"kind": "parquet"})


def _json(texts: list[list[str]]) -> Iterator[GoodFile]:
    for i, rows in enumerate(texts):
        values = [{"id": number, "text": text, "meta": {"of": [number, None]}} for number, text in enumerate(rows)]
        lines = "".join(json.dumps(value, ensure_ascii=i % 2 == 0) + "\n" for value in values).encode()
        array = json.dumps(values, ensure_ascii=i % 2 == 0, indent=i % 3 or None).encode()
        options = {"kind": "jsonl"}
        yield GoodFile(f"{i}.jsonl", "json", lines, options)
        yield GoodFile(f"{i}.json", "json", array, options)
        suffix, pack = list(PACKS.items())[i % len(PACKS)]
        yield GoodFile(f"{i}.jsonl{suffix}", "json", lines, options, pack)
    yield GoodFile("array.json.gz", "json", array, options, gzipped)


def _text(texts: list[list[str]]) -> Iterator[GoodFile]:
    separated = {"kind": "text", "separator": SEPARATOR}
    for i, rows in enumerate(texts):
        suffix, pack = list(PACKS.items())[i % len(PACKS)]
        whole, parts, sink = "\n".join(rows).encode(), SEPARATOR.join(rows).encode(), io.StringIO()
        csv.writer(sink).writerows([("id", "text"), *enumerate(rows)])
        table, options = sink.getvalue().encode(), {"kind": "csv", "delimiter": ","}
        yield GoodFile(f"{i}.txt", "text", whole, {"kind": "text"})
        yield GoodFile(f"{i}.txt{suffix}", "text", whole, {"kind": "text"}, pack)
        yield GoodFile(f"{i}.parts.txt", "text", parts, separated)
        yield GoodFile(f"{i}.parts.txt{suffix}", "text", parts, separated, pack)
        yield GoodFile(f"{i}.csv", "text", table, options)
        yield GoodFile(f"{i}.csv{suffix}", "text", table, options, pack)


_ARROW: list[tuple[bool, str | None, pa.DataType | None]] = [
    (False, None, None),
    (True, None, None),
    (False, "lz4", None),
    (True, "zstd", None),
    (False, None, pa.large_string()),
    (True, None, pa.dictionary(pa.int32(), pa.string())),
    (False, "zstd", pa.dictionary(pa.int8(), pa.string())),
    (False, None, pa.list_(pa.string())),
    (True, "lz4", pa.list_(pa.string())),
    (True, None, pa.string_view()),
]


def _arrow(texts: list[list[str]]) -> Iterator[GoodFile]:
    for i, (is_file, codec, kind) in enumerate(_ARROW):
        table, sink = _table(texts[i % len(texts)], kind), io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression=codec, unify_dictionaries=True)
        with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=NUM_ROWS // 3)
        yield GoodFile(f"{i}.arrow", "arrow", sink.getvalue(), {"kind": "arrow"})
