"""Hostile input: one table of files, and what reading each of them gives; mutants, forged files and bombs.

`READ` files give their rows, `BAD_ROWS` files have rows that are skipped or refused, `REFUSED` files are refused whole.
docs/guides/rows.md says the same of them.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from tests.builders import raw_parquet as raw
from tests.builders.datasets import build, make_spec, write_jsonl, write_parquet
from tests.builders.mutations import damaged
from tests.builders.refusals import TEXTS, assert_builds, assert_nothing_visible, assert_refused, spec_of
from tests.counts import SUMMARY, count
from tests.drivers.reading_driver import MAX_BYTES, Children, Outcome
from tokenloom.errors import BadRow, InputError, TokenloomError, WorkerLost
from tokenloom.tasks.running import steps
from tokenloom.tasks.sources import FileRange, Rows, make_reader
from tokenloom.tasks.sources.reader import naming_source

MARK = b"\xef\xbb\xbf"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2183982\n"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": bz2.compress,
    ".zst": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
}
zstd = COMPRESS[".zst"]
CONTENT = b"".join(json.dumps({"text": f"{i} " + "é" * (i % 50)}).encode() + b"\n" for i in range(300))
ALL_TEXTS: list[str | None] = [json.loads(line)["text"] for line in CONTENT.splitlines()]
_KINDS = {"parquet": "parquet", "arrow": "arrow", "csv": "csv", "txt": "text"}


@dataclass(frozen=True)
class HostileFile:
    """A file, and what reading it gives.

    Attributes:
        name: says how the file is read, unless `options` give a kind.
        data: its bytes.
        wanted: the texts of its good rows, or (row, text) of each.
        bad: (row, reason) of its bad rows.
        message: a pattern of the message about the file, or about its first bad row.
        options: of its source.
    """

    name: str
    data: bytes
    wanted: list[Any] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    message: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> dict[str, Any]:
        """The options of its source, with its kind."""
        return {"kind": _KINDS.get(self.name.split(".")[1], "jsonl"), **self.options}


Table = dict[str, list[HostileFile]]


def parquet(columns: Any, **options: Any) -> bytes:
    """Return a parquet file of the columns."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


def _arrow(columns: Any) -> bytes:
    """Return an Arrow file of the columns."""
    table, sink = pa.table(columns), io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _json(value: str | bytes, *wanted: str, **fields: Any) -> list[HostileFile]:
    """Return a value as a JSON line and as an array."""
    data = value.encode() if isinstance(value, str) else value
    return [
        HostileFile(*file, list(wanted), **fields) for file in (("a.jsonl", data + b"\n"), ("a.json", b"[%b]" % data))
    ]


def _without_row_groups() -> bytes:
    sink = io.BytesIO()
    pq.ParquetWriter(sink, pa.schema({"text": pa.string()})).close()
    assert pq.ParquetFile(sink).num_row_groups == 0
    return sink.getvalue()


def _members(suffix: str, *bounds: int) -> bytes:
    return b"".join(COMPRESS[suffix](CONTENT[a:b]) for a, b in pairwise([0, *bounds, len(CONTENT)]))


def _zstd_with_window(window_log: int) -> bytes:
    """Return a line of JSON in a frame of zstd with a window of 2**window_log bytes (RFC 8878)."""
    text = b'{"text": "one"}\n'
    frame = b"\x28\xb5\x2f\xfd\0" + bytes([(window_log - 10) << 3])  # no flag, then the window
    return frame + (len(text) << 3 | 1).to_bytes(3, "little") + text  # one last block, not compressed


ODD = "".join(chr(i) for i in [*range(32), *range(127, 160), 0xAD, 0x200B, 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF])
_TWO = b'{"text": "one"}\n{"text": "two"}\n'
_STRUCTS = [{"meta": {"body": "one"}}, {"meta": None}, {"meta": {"body": None}}, {"meta": {"body": "two"}}]
_LISTS = pa.array([["one", None, "two"], None, [], [None], ["", ""], ["three"]], pa.list_(pa.string()))
_REPLACED = {
    b'"a\xffb"': "a\ufffdb",
    b'"a\xe2\x82b"': "a\ufffdb",
    b'"a\\ud800b"': "a\ufffdb",
    b'"\\udc80"': "\ufffd",
    b'"\\ud83d\\ude00"': "\U0001f600",  # a surrogate pair is one character
}
_JOINED = {'["a", "b"]': "a\nb", "[]": "", '["a", null, "b"]': "a\nb", "[null]": "", '[""]': ""}
_NUMBERS = ("NaN", "-Infinity", "1e999", "-0", "9" * 4000, "1." + "3" * 9000)
READ: Table = {
    "a byte order mark at the start": [
        HostileFile("a.jsonl", MARK + _TWO, ["one", "two"]),
        HostileFile("a.jsonl.gz", COMPRESS[".gz"](MARK + _TWO), ["one", "two"]),
        HostileFile("a.json", MARK + b' [{"text": "one"}, {"text": "two"}]', ["one", "two"]),
        HostileFile("a.csv", MARK + b"text\none\ntwo\n", ["one", "two"]),
        HostileFile("a.csv.zst", COMPRESS[".zst"](MARK + b'"text","n"\none,1\ntwo,2\n'), ["one", "two"]),
    ],
    "a byte order mark in a text": [
        HostileFile("a.txt", MARK + b"one", ["\ufeffone"]),
        HostileFile("a.txt", MARK + b"one|two", ["\ufeffone", "two"], options={"separator": "|"}),
        HostileFile("a.csv", b'text\n"' + MARK + b'one"\n', ["\ufeffone"]),
        HostileFile("a.jsonl", '{"text": "\ufeffone"}'.encode(), ["\ufeffone"]),
    ],
    "control characters": [
        HostileFile("a.parquet", parquet({"text": [ODD]}), [ODD]),
        HostileFile("a.jsonl", json.dumps({"text": ODD}).encode(), [ODD]),
        HostileFile("a.csv", f'text\n"{ODD}"\n'.encode(), [ODD]),
        HostileFile("a.txt", ODD.encode(), [ODD]),
    ],
    "invalid UTF-8 that is replaced": [
        file
        for value, text in _REPLACED.items()
        for file in _json(b'{"text": %b}' % value, text, options={"encoding_errors": "replace"})
    ],
    "invalid UTF-8 beside the text": [
        HostileFile("a.json", b'[{"other": "\xff", "text": "one"}]', ["one"]),
        HostileFile("a.csv", b"other,text\n\xff,one\n", ["one"]),
        HostileFile("a.jsonl", b'{"other": "\\ud800", "text": "one"}', ["one"]),
    ],
    "repeated keys": _json('{"text": "first", "text": "last"}', "last"),
    "odd numbers": [file for number in _NUMBERS for file in _json(f'{{"n": {number}, "text": "one"}}', "one")],
    "nested JSON": _json('{"text": "one", "n": ' + "[" * 500 + "]" * 500 + "}", "one"),
    "a list of texts": [file for value, text in _JOINED.items() for file in _json(f'{{"text": {value}}}', text)],
    "nulls in lists and structs": [
        HostileFile(
            "a.parquet",
            parquet(pa.Table.from_pylist(_STRUCTS)),
            ["one", None, None, "two"],
            options={"text": "meta.body"},
        ),
        HostileFile("a.parquet", parquet({"text": _LISTS}), ["one\ntwo", None, "", "", "\n", "three"]),
    ],
    "parquet without row groups": [HostileFile("a.parquet", _without_row_groups())],
    "blank lines and mixed line ends of CSV": [
        HostileFile(
            "a.csv",
            b"text,n\r\none,1\n\n\r\ntwo,2\rthree,3\n,4\nfive,5",
            [(0, "one"), (1, "two"), (2, "three"), (3, ""), (4, "five")],
        )
    ],
    "a quote in a field of CSV": [HostileFile("a.csv", b'text,n\nan 11" disk,1\n', ['an 11" disk'])],
    "a separator": [
        HostileFile("a.txt", data, wanted, options={"separator": separator})
        for data, separator, wanted in (
            (b"one\n\ntwo\n\n\nthree\n\n", "\n\n", [(0, "one"), (5, "two"), (10, "three")]),
            (b"one\r\n\r\ntwo", "\n\n", [(0, "one\r\n\r\ntwo")]),
            (b"aXXXb", "XX", [(0, "a"), (3, "Xb")]),
            (b"\n one \n|\t|\n|", "|", [(0, " one "), (8, "\t")]),
        )
    ],
    "several compressed members": [
        HostileFile(f"a.jsonl{suffix}", _members(suffix, *cuts), ALL_TEXTS)
        for suffix in COMPRESS
        for cuts in ([1], [5, 5000, 5001], [len(CONTENT) - 1])
    ],
    "empty compressed members": [
        HostileFile(f"a.jsonl{suffix}", _members(suffix, 0, 5000, 5000, 5000, len(CONTENT)), ALL_TEXTS)
        for suffix in (".gz", ".zst")
    ],
    "zstd --long=27": [HostileFile("a.jsonl.zst", _zstd_with_window(27), ["one"])],
}


def _lines(reason: str, *cases: tuple[bytes, str], **options: Any) -> list[HostileFile]:
    """Return files with a bad line after one of 18 bytes, plain and compressed: (line, pattern of its message)."""
    return [
        HostileFile(
            name,
            pack(b'{"text": "first"}\n' + line + b'\n{"text": "last"}\n'),
            ["first", "last"],
            [(18, reason)],
            "line 2 at byte 18: " + message,
            options,
        )
        for line, message in cases
        for name, pack in (("a.jsonl", bytes), ("a.jsonl.gz", COMPRESS[".gz"]))
    ]


def _raw_strings(values: list[bytes]) -> pa.Array:
    """Return bytes as an array of strings, which need not be UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


_PAGE_TEXTS = [f"row {i} " + "xy" * 20 for i in range(60)]


def damaged_page() -> bytes:
    """Return 60 rows in groups of 20, with a wrong byte in the page of the second."""
    options: dict[str, Any] = {"use_dictionary": False, "write_page_checksum": True, "compression": "none"}
    data = bytearray(parquet({"text": _PAGE_TEXTS}, row_group_size=20, **options))
    chunk = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(1).column(0)
    data[chunk.data_page_offset + chunk.total_compressed_size - 30] ^= 0xFF
    return bytes(data)


_NO_TEXT_KEY = r"no key 'text'; its keys are: [^ ]{1,300}\. Set text:"
BAD_ROWS: Table = {
    "invalid UTF-8 or a lone surrogate": [
        *_lines(
            "invalid_utf8",
            (b'{"text": "bad \xff byte"}', "invalid UTF-8 at byte 14; .*encoding_errors: replace"),
            (b'{"text": "lone \\ud800 surrogate"}', "invalid UTF-8, or a lone surrogate.*encoding_errors: replace"),
            (b'{"other": "\xff", "text": "one"}', "invalid UTF-8"),
        ),
        HostileFile("a.txt", b"good until \xc3( here", bad=[(0, "invalid_utf8")], message="invalid UTF-8 at byte 11"),
        HostileFile(
            "a.txt",
            "sixteen".encode("utf-16"),
            bad=[(0, "invalid_utf8")],
            message="invalid UTF-8 at byte 0; .*iconv -f CP1252 -t UTF-8, .*encoding_errors: replace",
        ),
        HostileFile(
            "a.parquet",
            parquet({"text": _raw_strings([b"good", b"bad \xff\xfe bytes", b"\xed\xa0\x80"])}),
            ["good"],
            [(1, "invalid_utf8"), (2, "invalid_utf8")],
            "row 1: invalid UTF-8 at byte 4; .*encoding_errors: replace",
        ),
    ],
    "a byte order mark before a later line": [  # `cat` leaves it there when it joins files that begin with one
        HostileFile("a.jsonl", 2 * (MARK + b'{"text": "one"}\n'), ["one"], [(19, "invalid_json")], "not valid JSON")
    ],
    "line ends other than newlines": [
        HostileFile("a.jsonl", ('{"text": "one"}' + end + '{"text": "two"}\n').encode(), bad=[(0, "invalid_json")])
        for end in ("\r", "\u2028", "\u0085", "\x0b", "\x0c")
    ],
    "invalid JSON": _lines(
        "invalid_json",
        (b'{"text": "open', "not valid JSON: Unterminated string starting at: character 10 of the row; repair it"),
        (b'{"text": "one"} {"text": "two"}', "not valid JSON"),
        (b"\x00\x00\x00", "not valid JSON"),
    ),
    "JSON nested too deep": _lines(
        "invalid_json",
        (b"[" * 100_000, "not valid JSON: maximum recursion depth"),
        (b'{"text": ' + b'{"a":' * 100_000, "not valid JSON: maximum recursion depth"),
        (b'{"text": "one", "n": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "not valid JSON: maximum recursion depth"),
    ),
    "an integer of more than 4,300 digits": _lines(
        "invalid_json", (b'{"n": ' + b"9" * 4301 + b', "text": "one"}', "not valid JSON: .*4300 digits")
    ),
    "a value that is not a text": _lines(
        "not_text",
        (b'{"text": 12}', "'text' is a number, not text; repair the row"),
        (b'{"text": {"a": "b"}}', "'text' is an object, not text"),
    ),
    "no key of the text": _lines(
        "missing_key",
        (b'"text"', "a string where an object with the key 'text' is expected; repair the row, set text: ."),
        (b'{"body": "a", "id": 1}', "no key 'text'; its keys are: body, id. Set text: to one of them"),
    ),
    "keys that can't be printed": [
        file
        for key in (r"\ud800", "k" * 100_000)
        for file in _json(f'{{"{key}": "one"}}', bad=[(0, "missing_key")], message=_NO_TEXT_KEY)
    ],
    "an id that is not a string or an integer": _lines(
        "bad_id",
        (b'{"text": "a", "id": true}', "id 'id' is a boolean, not a string or an integer"),
        (b'{"text": "a", "id": ["x"]}', "id 'id' is an array"),
        id="id",
    ),
    "a value that the filter can't compare": _lines(
        "bad_filter",
        (b'{"text": "a", "n": "x"}', "'n' is 'x', which the filter can't compare with 1"),
        (b'{"text": "a", "n": {}}', "'n' is .*which the filter can't compare"),
        filter="text == 'first' or text == 'last' or n >= 1",
    ),
    "other fields than the header": [
        HostileFile(
            "a.csv", b"text,n\none,1\na,1,2\nb\ntwo,2\n", ["one", "two"], [(1, "fields"), (2, "fields")], "row 1"
        )
    ],
    "values of an array": [
        HostileFile(
            "a.json",
            b'[{"text": "a"},\n 7, {"text": "\xff"}, {"t": 1}, {"text": 1}, {"text": "b"}]',
            ["a", "b"],
            [(1, "missing_key"), (2, "invalid_utf8"), (3, "missing_key"), (4, "not_text")],
            "value 1 of its JSON array: a number where an object",
        )
    ],
    "a page that can't be decoded": [
        HostileFile("a.parquet", damaged_page(), _PAGE_TEXTS[:20] + _PAGE_TEXTS[40:], [(20, "bad_page")], "row group 1")
    ],
    "a line above the limit": [
        HostileFile(
            "a.jsonl",
            b'{"text": "short"}\n{"text": "' + b"x" * 6_000_000 + b'"}\n',
            ["short"],
            [(18, "too_large")],
            r"line 2 at byte 18: more than 4,194,504 bytes.*documents\.max_bytes",
            {"max_bytes": 100},
        )
    ],
}


def _csv(*cases: tuple[bytes, str], **options: Any) -> list[HostileFile]:
    return [HostileFile("a.csv", data, message=message, options=options) for data, message in cases]


def _column(table: Any, message: str, **options: Any) -> HostileFile:
    return HostileFile("a.parquet", parquet(table), message=message, options=options)


_BODY = {"body": ["x"], "": ["y"], "meta": [{"a": "z"}]}
_PACKED = {suffix: compress(CONTENT) for suffix, compress in COMPRESS.items()}
_ONE = b'{"text": "a"}'
REFUSED: Table = {
    "an array that is broken": [
        HostileFile("a.json", data, message=f"not a valid JSON array: .*{message}")
        for data, message in (
            (b"[%b,\n %b" % (_ONE, _ONE), "line 2 column 15"),
            (b'[%b, {"text": "b", "n": %b}]' % (_ONE, b"9" * 5000), "4300 digits"),
            (b"[%b, %b" % (_ONE, b"[" * 100_000), "maximum recursion depth"),
            (b'["one"]\n{"text": "two"}\n', "Extra data: line 2"),  # JSON lines whose first line is a list
        )
    ],
    "a header of CSV without the column": [
        *_csv(
            (b"text,n,text\na,1,b\n", r"two columns 'text'; its columns are: text, n, text\. .* set text:"),
            (
                b"first row,1\n",
                r"no column 'text'; its columns are: .first row., 1\. Set header: false if this is a row",
            ),
            (b"text;n\na;1\n", r"no column 'text'; its columns are: .text;n.\. .*check delimiter, or set text:"),
            (b"Text ,n\na,1\n", "no column 'text'; its columns are: .Text ., n. .* set text:"),
            (b"t\xff,n\na,1\n", r"no column 'text'; its columns are: .t\\udcff., n. .* set text:"),
            (b"\n\n", "no column 'text'; its columns are: none"),
        ),
        *_csv((b"text,n,n\na,1,2\n", "two columns 'n'.* set id:"), id="n"),
        *_csv((b"text,n\na,1\n", "no column 'no'; its columns are: text, n. .* set id:"), id="no"),
        *_csv((b"text,n\na,1\n", "'score', which the filter names; .*or change filter: to name"), filter="score > 1"),
    ],
    "quotes of CSV that don't fit": _csv(
        (b'text\n"open\n', r"line \d: not valid CSV: .*set delimiter"),
        (b'text\n"a"b\n', r"line \d: not valid CSV: .*set delimiter"),
        (b'"text\na\n', "not valid CSV|no column"),
        (b'text\ngood\n"open\nthe rest\n', "not valid CSV"),
    ),
    "a file that is not compressed as its name says": [
        HostileFile(f"a.jsonl{suffix}", data, message="broken|its first bytes|the file is empty")
        for suffix, packed in _PACKED.items()
        for data in (
            packed + b"garbage",
            packed[:-3],
            packed[: len(packed) // 10],
            packed[: len(packed) // 2],
            packed[: len(packed) // 2] + bytes([packed[len(packed) // 2] ^ 0xFF]) + packed[len(packed) // 2 + 1 :],
            CONTENT,
            _PACKED[".bz2" if suffix == ".gz" else ".gz"],
            b"",
        )
    ],
    "a compressed file without the suffix": [
        HostileFile(f"a{suffix}.jsonl", packed, message="not text, but compressed, parquet or Arrow; end its name in")
        for suffix, packed in _PACKED.items()
    ],
    "compression that is not supported": [
        HostileFile(
            f"a.jsonl{suffix}",
            b"anything",
            message=r"not supported; extract it, or recreate it with \.gz, \.bz2, \.zst or none",
        )
        for suffix in (".xz", ".lz4", ".zip", ".tar", ".tar.gz", ".7z")
    ],
    "an empty member of bz2": [
        HostileFile("a.jsonl.bz2", _members(".bz2", 0, 5000, 5000), message="broken bz2")
    ],  # Arrow's decoder stops at such a stream
    "zstd --long=28": [
        HostileFile("a.jsonl.zst", _zstd_with_window(log), message="broken zstd: .*requires too much memory")
        for log in (28, 31)
    ],
    "a name of a field that is not UTF-8": [
        HostileFile(
            f"a.{suffix}",
            data.replace(b"inner", b"inn\xff\xfe"),
            message=f"not a readable {kind} file: 'utf-8' codec can't decode",
            options={"text": "meta.other"},
        )
        for meta in ([{"inner": "one"}], [[{"inner": "one"}]])
        for suffix, kind, data in (
            ("arrow", "Arrow", _arrow({"meta": meta})),
            ("parquet", "parquet", parquet({"meta": meta}, store_schema=False)),
        )
    ],
    "a file of another kind": [
        HostileFile(name, CONTENT, message=message, options={"kind": kind})
        for kind, name, message in (
            ("parquet", "a.jsonl", "not a readable parquet file"),
            ("arrow", "a.parquet", "not a readable Arrow file"),
            ("arrayrecord", "a.json", "not a readable ArrayRecord file"),
            ("csv", "a.jsonl", "no column 'text'"),
        )
    ],
    "a column that is missing": [
        _column(_BODY, r"no column '\.'; its columns are: .*Set text: to one of them", text="."),
        _column(_BODY, "no column 'body.x'; its columns are: .*Set text: to", text="body.x"),
        _column(_BODY, "no column 'meta.x'; its columns are: .*meta, .*meta.a. Set text: to", text="meta.x"),
        _column(_BODY, "no column 'meta.a.x'; its columns are: .*Set", text="meta.a.x"),
        _column(_BODY, "'score', which the filter names; .*Change filter: to name", text="body", filter="score == 1"),
        _column(
            _BODY, "'meta.x', which the filter names; its columns are: .*meta.a", text="body", filter="meta.x == 1"
        ),
    ],
    "a column without text": [
        _column({"text": [1, 2]}, "column 'text' is int64; a text column holds strings, or lists of strings"),
        _column({"text": [[1], [2]]}, "column 'text' is list"),
        _column({"text": [{"a": "b"}]}, "column 'text' is struct"),
        _column({"text": pa.nulls(3)}, "column 'text' is null"),
    ],
    "a pointer of Git LFS": [
        HostileFile(name, POINTER, message="a pointer of Git LFS, .*`git lfs pull`", options=options)
        for name, options in (
            ("a.txt", {}),
            ("a.txt.gz", {}),
            ("a.csv", {"header": False, "text": "0"}),
            ("a.jsonl", {}),
            ("a.parquet", {}),
            ("a.arrow", {}),
            ("a.bin", {"kind": "tokens", "format": "nanogpt", "vocab_size": 50_000, "eot_id": 0, "has": []}),
        )
    ],
}


# Each file of the table


def batches_of(file: HostileFile, path: Path, **options: Any) -> Iterator[Rows]:
    """Write a file, and yield its batches."""
    path.write_bytes(file.data)
    reader = make_reader({"text": "text", "max_bytes": 2**28, "delimiter": ",", **file.source, **options})
    with naming_source(None):
        for part in reader.partitions(str(path)):
            yield from reader.read(str(path), part)


@pytest.mark.parametrize("what", READ)
def test_it_is_read(what: str, tmp_path: Path) -> None:
    for file in READ[what]:
        rows: list[Any] = []
        for batch in batches_of(file, tmp_path / file.name):
            rows += zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)
        assert rows == file.wanted or [text for _, text in rows] == file.wanted, (file.name, rows)


@pytest.mark.parametrize("what", BAD_ROWS)
def test_its_rows_are_bad(what: str, tmp_path: Path) -> None:
    for file in BAD_ROWS[what]:
        path = tmp_path / file.name
        batches = list(batches_of(file, path, on_error="skip"))
        assert [text for batch in batches for text in batch.texts.to_pylist()] == file.wanted, file
        assert [(bad.row, bad.reason) for batch in batches for bad in batch.bad] == file.bad, file
        with pytest.raises(BadRow, match=f"^{path}.*{file.message}") as raised:
            list(batches_of(file, path))
        assert (raised.value.row, raised.value.reason) == file.bad[0]
        assert len(str(raised.value).encode()) < 1000  # a message that can't be encoded would hide the error


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused(what: str, tmp_path: Path) -> None:
    for i, file in enumerate(REFUSED[what]):
        path = tmp_path / str(i) / file.name
        path.parent.mkdir()
        for on_error in ("fail", "skip"):
            with pytest.raises(InputError, match=file.message) as raised:
                list(batches_of(file, path, on_error=on_error))
            assert not isinstance(raised.value, BadRow)
            assert str(path) in str(raised.value)
            str(raised.value).encode()  # can be printed


# Several files and paths


def test_an_input_without_rows_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [])
    assert_refused(spec_of(path), str(path), "no document", "0 rows read")
    write_parquet(tmp_path / "b.parquet", TEXTS)
    assert_builds(spec_of(tmp_path / "*.parquet"), TEXTS)


def test_a_bad_row_is_answered_with_the_way_to_leave_it_out(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["first"])
    path.write_bytes(path.read_bytes() + b'{"text": 12}\n')
    assert_refused(
        spec_of(path, "jsonl"),
        "repair the row, set messages: for conversations, or leave out bad rows (documents.on_error: skip)",
    )


class _Keys(encryption.KmsClient):  # type: ignore[misc]  # pyarrow has no types
    """Wraps keys in nothing."""

    def wrap_key(self, key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize("is_plain", [True, False])
def test_an_encrypted_column_is_named_before_it_is_read(is_plain: bool, tmp_path: Path) -> None:
    """Under a plain footer, pyarrow ends the process that asks for what the footer says about the column."""
    path = tmp_path / "a.parquet"
    table = pa.table({"text": TEXTS, "other": TEXTS})
    options = encryption.EncryptionConfiguration("a", column_keys={"b": ["text"]}, plaintext_footer=is_plain)
    factory = encryption.CryptoFactory(lambda _: _Keys())
    keys = factory.file_encryption_properties(encryption.KmsConnectionConfig(), options)
    with pq.ParquetWriter(path, table.schema, encryption_properties=keys) as writer:
        writer.write_table(table)
    assert_refused(spec_of(path), str(path), "signed" if is_plain else "It is encrypted", "write it again without")


_JSONL = {"kind": "jsonl", "path": "good.jsonl"}
_CHAT = {"sources": [{**_JSONL, "messages": "text", "layout": "messages"}]}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("data/train.txt", {"sources": [{"kind": "huggingface", "name": "./data"}]}),
        ("data/train.parquet", {"sources": [{"kind": "huggingface", "name": "./data"}]}),
        ("exclude.txt", {"documents": {"exclude": "exclude.txt"}}),
        ("a.jinja", {"chat": {"template": "a.jinja"}, **_CHAT}),
        ("tokenizer.json", {"tokenizer": {"kind": "huggingface", "path": "tokenizer.json", "eot": "<|endoftext|>"}}),
        ("spm.model", {"tokenizer": {"kind": "sentencepiece", "path": "spm.model"}}),
        ("a.tiktoken", {"tokenizer": {"kind": "tiktoken", "name": "llama3", "ranks": "a.tiktoken"}}),
    ],
)
def test_a_pointer_of_git_lfs_beside_the_data_is_refused_by_name(
    name: str, fields: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "good.jsonl", TEXTS)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(POINTER)
    fields = json.loads(json.dumps(fields).replace("./data", str(tmp_path / "data")))
    spec = make_spec("store", **{"sources": [_JSONL], **fields})
    with pytest.raises(TokenloomError, match=r"a pointer of Git LFS, .*`git lfs pull`") as caught:
        build(spec)
    assert name in str(caught.value)


def test_a_pointer_of_git_lfs_in_a_store_is_refused_by_name() -> None:
    fsspec.filesystem("memory").pipe("/pointers/a.txt", POINTER)
    with pytest.raises(InputError, match=r"memory://pointers/a.txt: a pointer of Git LFS"):
        list(make_reader({"kind": "text", "max_bytes": 2**20}).read("memory://pointers/a.txt", FileRange(0, 1)))


# Mutants and forged files, read in a worker


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    made = Children()
    yield made
    made.close()


def read(children: Children, path: Path, data: bytes, **options: Any) -> Outcome:
    """Write a parquet file and read it in a worker as a build does."""
    path.write_bytes(data)
    return children.read(path, {"kind": "parquet", **options})


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_flipped_bit_in_any_page_with_a_checksum_is_found_and_named(
    compression: str, version: str, use_dictionary: bool, tmp_path: Path, children: Children
) -> None:
    table, sink = pa.table({"text": [f"{i} " + "é" * i for i in range(40)]}), io.BytesIO()
    options: dict[str, Any] = {"compression": compression, "data_page_version": version}
    pq.write_table(table, sink, row_group_size=8, write_page_checksum=True, use_dictionary=use_dictionary, **options)
    whole, num_pages = sink.getvalue(), 0
    metadata = pq.ParquetFile(sink).metadata
    assert read(children, tmp_path / "a.parquet", whole).texts == table["text"].to_pylist()
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(0)
        starts = [start for start in (chunk.dictionary_page_offset, chunk.data_page_offset) if start]
        for end in [*starts[1:], starts[0] + chunk.total_compressed_size]:
            for at in (end - 1, end - 4):
                changed = bytearray(whole)
                changed[at] ^= 1 << (at % 8)
                found = read(children, tmp_path / "a.parquet", bytes(changed))
                assert found.texts is None
                assert f"a.parquet, row group {group}, after row 0 of it" in found.said
                assert "CRC checksum" in found.said
            num_pages += 1
    assert num_pages == metadata.num_row_groups * (2 if use_dictionary else 1) == 5 * (2 if use_dictionary else 1)


TEN = raw.page(raw.DATA_PAGE, 10, b"\1" + raw.run(10), raw.RLE_DICTIONARY)
ONE = raw.page(raw.DICTIONARY_PAGE, 1, raw.plain([b"hello"]), raw.PLAIN)


@pytest.mark.parametrize(("num_rows", "num_values"), [(5, 10), (10, 5), (0, 10), (-10, 10)])
def test_a_footer_that_hides_rows_is_refused(
    num_rows: int, num_values: int, tmp_path: Path, children: Children
) -> None:
    """Arrow trusts the footer, and the remaining rows are lost silently."""
    found = read(children, tmp_path / "a.parquet", raw.file_of([ONE, TEN], num_rows, num_values=num_values))
    assert found.texts is None
    assert f"a.parquet, row group 0: its footer says {num_rows} rows, and {num_values} values" in found.said


@pytest.mark.parametrize("index", [1, 7, 255])
@pytest.mark.parametrize("row_bytes", [1, 1000])
def test_a_reference_beyond_the_dictionary_is_refused(
    row_bytes: int, index: int, tmp_path: Path, children: Children
) -> None:
    """Return whether a column is read as a dictionary, as a column of small rows is."""
    bad = raw.page(raw.DATA_PAGE, 10, b"\x08" + raw.run(10, index), raw.RLE_DICTIONARY)
    found = read(children, tmp_path / "a.parquet", raw.file_of([ONE, bad], 10, num_bytes=10 * row_bytes))
    assert found.texts is None
    assert "a.parquet, row group 0, after row 0 of it: can't be decoded" in found.said


def test_a_file_that_kills_its_worker_is_named_and_the_build_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow 26 ends the process at a histogram of the wrong length, which a footer can contain."""
    monkeypatch.setattr(steps, "RETRY_SECONDS", (0, 0, 0))
    path = tmp_path / "bad.parquet"
    path.write_bytes(raw.file_of([ONE, TEN], 10, histogram=[1, 2, 3]))
    with pytest.raises(WorkerLost, match=rf"cutting {path} into partitions: crashed in native code "):
        build(spec_of(path), num_workers=1)
    assert_nothing_visible(spec_of(path))
    write_parquet(path, ["good"])
    assert build(spec_of(path), num_workers=1).published


# Small files that claim or contain far more than memory: a worker reads or refuses them within its limit, which is 1 GB
# and four times the largest document, here of 1 MB

MILLION = 1_000_000


def outcome(children: Children, path: Path, data: bytes, max_bytes: int = MAX_BYTES, **options: Any) -> Outcome:
    """Read a file in a worker; its memory stays within the limit, and it needs less than a minute."""
    path.write_bytes(data)
    kinds = {".parquet": "parquet", ".arrow": "arrow", ".txt": "text", ".csv": "csv"}
    kind = next((kind for suffix, kind in kinds.items() if suffix in path.name), "jsonl")
    options = {"kind": kind, "delimiter": ",", "max_bytes": max_bytes, **options}
    found = children.read(path, options, keep_texts=False)
    assert not found.is_hang
    assert not found.fault
    assert found.peak <= 1000 * MILLION + 4 * max_bytes, found
    assert found.texts is not None or str(path) in found.said, found
    return found


@pytest.mark.slow
def test_a_damaged_file_is_read_or_refused_by_name(tmp_path: Path, children: Children) -> None:
    files, rng = [file for files in READ.values() for file in files if file.data], random.Random(20261121)
    num_read, wanted = 0, count(500, 8000)
    for _ in range(wanted):
        file = rng.choice(files)
        found = outcome(children, tmp_path / file.name, damaged(file.data, rng), **file.source)
        num_read += found.texts is not None
    SUMMARY.append(f"damaged files: {num_read} of {wanted} read, the others refused by name")
    assert wanted // 10 < num_read < wanted - wanted // 10  # otherwise the damage shows nothing


def refused(children: Children, path: Path, data: bytes, *parts: str, **options: Any) -> None:
    """Check that a file is refused, with an error that contains `parts`."""
    found = outcome(children, path, data, **options)
    assert found.texts is None, found
    assert [part for part in parts if part not in found.said] == [], found.said


# Parquet


def test_references_to_one_text_are_rows(tmp_path: Path, children: Children) -> None:
    num_rows = count(2, 50) * MILLION
    data = raw.file_of(
        [ONE, raw.page(raw.DATA_PAGE, num_rows, b"\1" + raw.run(num_rows), raw.RLE_DICTIONARY)], num_rows
    )
    assert len(data) < 200
    found = outcome(children, tmp_path / "a.parquet", data)
    assert (found.num_rows, found.num_documents, found.num_bytes) == (num_rows, num_rows, 5 * num_rows), found


@pytest.mark.slow
@pytest.mark.parametrize("claimed", [None, 200 * MILLION])
def test_references_to_a_large_text_are_read_in_pieces_whatever_the_footer_claims(
    claimed: int | None, tmp_path: Path, children: Children
) -> None:
    """Rows of 1 MB each in a file of 1 MB, whose footer can claim rows of 200 bytes."""
    num_rows, text = count(1300, 20_000), b"x" * MILLION
    pages = [
        raw.page(raw.DICTIONARY_PAGE, 1, raw.plain([text]), raw.PLAIN),
        raw.page(raw.DATA_PAGE, num_rows, b"\1" + raw.run(num_rows), raw.RLE_DICTIONARY),
    ]
    data = raw.file_of(pages, num_rows, num_bytes=claimed and 200 * num_rows)
    found = outcome(children, tmp_path / "a.parquet", data)
    assert (found.num_documents, found.num_bytes) == (num_rows, num_rows * MILLION), found


def _true_claims() -> dict[str, bytes]:
    """A claim costs nothing, because only two rows are requested."""
    few, most = raw.plain([b"hello", b"world"]), raw.MOST
    return {
        "bytes of a page": raw.file_of([raw.page(raw.DATA_PAGE, 2, few, raw.PLAIN, most)], 2),
        "values of a page": raw.file_of([raw.page(raw.DATA_PAGE, most, few, raw.PLAIN)], 2),
    }


@pytest.mark.slow
@pytest.mark.parametrize("what", _true_claims())
def test_a_page_that_claims_more_than_the_footer_is_read_up_to_the_footers_size(
    what: str, tmp_path: Path, children: Children
) -> None:
    found = outcome(children, tmp_path / "a.parquet", _true_claims()[what])
    assert (found.num_documents, found.num_bytes) == (2, 10)


def _claims() -> dict[str, bytes]:
    few, most = raw.plain([b"hello", b"world"]), raw.MOST
    data, dictionary = raw.DATA_PAGE, raw.DICTIONARY_PAGE
    references = raw.page(data, 10, b"\1" + raw.run(10), raw.RLE_DICTIONARY)
    lists = raw.levels(0, most, 1) + raw.levels(1, most, 1) + b"\1" + raw.run(most)
    items = raw.file_of([ONE, raw.page(data, most, lists, raw.RLE_DICTIONARY)], 1, num_values=most, is_list=True)
    return {
        "values of a page": raw.file_of([raw.page(data, most, few, raw.PLAIN)], most),
        "values of a page, few rows": raw.file_of([raw.page(data, most, few, raw.PLAIN)], 2, num_values=most),
        "lengths of a page": raw.file_of([raw.page(data, most, b"\x80\1\4\2\0\0", raw.DELTA_LENGTH)], most),
        "prefixes of a page": raw.file_of([raw.page(data, most, b"\x80\1\4\2\0\0", raw.DELTA_BYTES)], most),
        "bytes of a packed page": raw.file_of([raw.page(data, 2, zstd(few), raw.PLAIN, most)], 2, codec=raw.ZSTD),
        "bytes of a dictionary": raw.file_of(
            [raw.page(dictionary, 2, zstd(few), raw.PLAIN, most), references], 10, codec=raw.ZSTD
        ),
        "values of a dictionary": raw.file_of([raw.page(dictionary, most, few, raw.PLAIN), references], 10),
        "length of a text": raw.file_of([raw.page(data, 1, struct.pack("<I", most) + b"x", raw.PLAIN)], 1),
        "rows": raw.file_of([ONE, references], 2**60),
        **({"items of a list": items} if count(0, 1) else {}),  # takes ten seconds to reach the limit
    }


@pytest.mark.slow
@pytest.mark.parametrize("what", _claims())
def test_a_file_that_claims_more_than_it_contains_is_refused(what: str, tmp_path: Path, children: Children) -> None:
    data = _claims()[what]
    assert len(data) < 500
    refused(children, tmp_path / "a.parquet", data, "leave it out")


_CODECS = {"zstd": raw.ZSTD, "gzip": raw.GZIP, "brotli": raw.BROTLI, "snappy": raw.SNAPPY, "lz4_raw": raw.LZ4}


@pytest.mark.slow
@pytest.mark.parametrize("codec", list(_CODECS)[: count(1, len(_CODECS))])
def test_a_page_of_more_than_the_limit_is_refused_and_one_of_less_is_read(
    codec: str, tmp_path: Path, children: Children
) -> None:
    text = raw.plain([b"x" * MILLION])
    for num_rows, is_read in ((300, True), (1100, False)):
        packed = pa.compress(text * num_rows, codec, asbytes=True)
        page = raw.page(raw.DATA_PAGE, num_rows, packed, raw.PLAIN, num_rows * len(text))
        data = raw.file_of([page], num_rows, num_bytes=num_rows * len(text), codec=_CODECS[codec])
        if is_read:
            found = outcome(children, tmp_path / "a.parquet", data)
            assert (found.num_documents, found.num_bytes) == (num_rows, num_rows * MILLION), found
        else:
            refused(children, tmp_path / "a.parquet", data, "row group 0", "bytes of memory", "max_bytes")


# Arrow


def _large(num_rows: int) -> pa.Table:
    """Return a table of texts of 1 MB each, one after the other in memory."""
    offsets = pa.py_buffer(MILLION * np.arange(num_rows + 1, dtype=np.int64))
    texts = pa.py_buffer(np.full(num_rows * MILLION, ord("x"), np.uint8))
    return pa.table({"text": pa.LargeStringArray.from_buffers(num_rows, offsets, texts)})


@pytest.mark.slow
@pytest.mark.parametrize("is_file", [True, False])
def test_a_batch_of_more_than_the_limit_is_refused(is_file: bool, tmp_path: Path, children: Children) -> None:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    table = _large(1100)
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    refused(children, tmp_path / "a.arrow", sink.getvalue(), "bytes of memory", "max_bytes")


@pytest.mark.slow
@pytest.mark.parametrize("claimed", [2**31, 2**40, 2**62, -2])
def test_a_buffer_that_claims_more_than_it_contains_is_refused(
    claimed: int, tmp_path: Path, children: Children
) -> None:
    sink = io.BytesIO()
    table = pa.table({"text": ["hello " * 1000] * 10})
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    length = struct.pack("<q", 60_000)  # comes before the compressed texts
    assert data.count(length + b"\x28\xb5\x2f\xfd") == 1
    refused(children, tmp_path / "a.arrow", data.replace(length, struct.pack("<q", claimed)), "record batch 0")


# Endless compressed text

PACKED: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "zst": zstd}


def _packed(suffix: str, head: bytes, piece: bytes, gigabytes: float) -> bytes:
    """Return a file of `head` and gigabytes of `piece`, in members of 10 MB."""
    member = piece * (10 * MILLION // len(piece))
    return PACKED[suffix](head) + PACKED[suffix](member) * int(gigabytes * 100)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt", "parts.txt", "a.csv"])
def test_a_line_without_end_is_refused_by_its_length(
    name: str, suffix: str, tmp_path: Path, children: Children
) -> None:
    head = {"a.jsonl": b'{"text": "', "a.json": b'[{"text": "', "a.csv": b'text\n"'}.get(name, b"")
    said = {"a.csv": "64,000,000 characters", "a.json": "make JSON lines: jq -c"}.get(name, "max_bytes")
    options = {"separator": "<|endoftext|>"} if name == "parts.txt" else {}
    data = _packed(suffix, head, b"x", count(1, 10) / (4 if suffix == "bz2" else 1))
    refused(children, tmp_path / f"{name}.{suffix}", data, said, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_line_without_end_is_skipped_in_little_memory(name: str, tmp_path: Path, children: Children) -> None:
    data = _packed("zst", b'{"text": "', b"x", count(1, 10)) + zstd(b'"}\n<|>{"text": "good"}')
    options: dict[str, Any] = {"separator": "<|>"} if name == "a.txt" else {}
    found = outcome(children, tmp_path / f"{name}.zst", data, on_error="skip", **options)
    assert found.num_rows == 2
    assert found.peak < 300 * MILLION


@pytest.mark.slow
def test_a_line_whose_values_take_many_times_its_bytes_is_refused(tmp_path: Path, children: Children) -> None:
    """Three bytes of JSON become a list of 64 bytes, so a line within max_bytes takes more than the memory limit."""
    max_bytes = count(24 * MILLION, 2**28)
    for name, end in [("a.jsonl.zst", b"]}\n"), ("a.json.zst", b"]}]")][: count(1, 2)]:
        head = (b"[" if "json." in name else b"") + b'{"text": "a", "b": [[]'
        data = _packed("zst", head, b",[]", count(5, 40) / 100) + zstd(end)
        refused(children, tmp_path / name, data, "memory", max_bytes=max_bytes)
