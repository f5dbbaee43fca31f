"""One table of small dirty files for each outcome, by the promise of docs/guides/rows.md that they show.

`READ` files give their rows, `BAD_ROWS` files have rows that are skipped or refused, `REFUSED` files are refused whole.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MARK = b"\xef\xbb\xbf"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": bz2.compress,
    ".zst": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
}
CONTENT = b"".join(json.dumps({"text": f"{i} " + "é" * (i % 50)}).encode() + b"\n" for i in range(300))
TEXTS: list[str | None] = [json.loads(line)["text"] for line in CONTENT.splitlines()]
_KINDS = {"parquet": "parquet", "arrow": "arrow", "csv": "csv", "txt": "text"}


@dataclass(frozen=True)
class DirtyFile:
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


Table = dict[str, list[DirtyFile]]


def parquet(columns: Any, **options: Any) -> bytes:
    """Return a parquet file of the columns."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, **options)
    return sink.getvalue()


def _json(value: str | bytes, *wanted: str, **fields: Any) -> list[DirtyFile]:
    """Return a value as a JSON line and as an array."""
    data = value.encode() if isinstance(value, str) else value
    return [
        DirtyFile(*file, list(wanted), **fields) for file in (("a.jsonl", data + b"\n"), ("a.json", b"[%b]" % data))
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
        DirtyFile("a.jsonl", MARK + _TWO, ["one", "two"]),
        DirtyFile("a.jsonl.gz", COMPRESS[".gz"](MARK + _TWO), ["one", "two"]),
        DirtyFile("a.json", MARK + b' [{"text": "one"}, {"text": "two"}]', ["one", "two"]),
        DirtyFile("a.csv", MARK + b"text\none\ntwo\n", ["one", "two"]),
        DirtyFile("a.csv.zst", COMPRESS[".zst"](MARK + b'"text","n"\none,1\ntwo,2\n'), ["one", "two"]),
    ],
    "a byte order mark in a text": [
        DirtyFile("a.txt", MARK + b"one", ["\ufeffone"]),
        DirtyFile("a.txt", MARK + b"one|two", ["\ufeffone", "two"], options={"separator": "|"}),
        DirtyFile("a.csv", b'text\n"' + MARK + b'one"\n', ["\ufeffone"]),
        DirtyFile("a.jsonl", '{"text": "\ufeffone"}'.encode(), ["\ufeffone"]),
    ],
    "control characters": [
        DirtyFile("a.parquet", parquet({"text": [ODD]}), [ODD]),
        DirtyFile("a.jsonl", json.dumps({"text": ODD}).encode(), [ODD]),
        DirtyFile("a.csv", f'text\n"{ODD}"\n'.encode(), [ODD]),
        DirtyFile("a.txt", ODD.encode(), [ODD]),
    ],
    "invalid UTF-8 that is replaced": [
        file
        for value, text in _REPLACED.items()
        for file in _json(b'{"text": %b}' % value, text, options={"encoding_errors": "replace"})
    ],
    "invalid UTF-8 beside the text": [
        DirtyFile("a.json", b'[{"other": "\xff", "text": "one"}]', ["one"]),
        DirtyFile("a.csv", b"other,text\n\xff,one\n", ["one"]),
        DirtyFile("a.jsonl", b'{"other": "\\ud800", "text": "one"}', ["one"]),
    ],
    "repeated keys": _json('{"text": "first", "text": "last"}', "last"),
    "odd numbers": [file for number in _NUMBERS for file in _json(f'{{"n": {number}, "text": "one"}}', "one")],
    "nested JSON": _json('{"text": "one", "n": ' + "[" * 500 + "]" * 500 + "}", "one"),
    "a list of texts": [file for value, text in _JOINED.items() for file in _json(f'{{"text": {value}}}', text)],
    "nulls in lists and structs": [
        DirtyFile(
            "a.parquet",
            parquet(pa.Table.from_pylist(_STRUCTS)),
            ["one", None, None, "two"],
            options={"text": "meta.body"},
        ),
        DirtyFile("a.parquet", parquet({"text": _LISTS}), ["one\ntwo", None, "", "", "\n", "three"]),
    ],
    "parquet without row groups": [DirtyFile("a.parquet", _without_row_groups())],
    "blank lines and mixed line ends of CSV": [
        DirtyFile(
            "a.csv",
            b"text,n\r\none,1\n\n\r\ntwo,2\rthree,3\n,4\nfive,5",
            [(0, "one"), (1, "two"), (2, "three"), (3, ""), (4, "five")],
        )
    ],
    "a quote in a field of CSV": [DirtyFile("a.csv", b'text,n\nan 11" disk,1\n', ['an 11" disk'])],
    "a separator": [
        DirtyFile("a.txt", data, wanted, options={"separator": separator})
        for data, separator, wanted in (
            (b"one\n\ntwo\n\n\nthree\n\n", "\n\n", [(0, "one"), (5, "two"), (10, "three")]),
            (b"one\r\n\r\ntwo", "\n\n", [(0, "one\r\n\r\ntwo")]),
            (b"aXXXb", "XX", [(0, "a"), (3, "Xb")]),
            (b"\n one \n|\t|\n|", "|", [(0, " one "), (8, "\t")]),
        )
    ],
    "several compressed members": [
        DirtyFile(f"a.jsonl{suffix}", _members(suffix, *cuts), TEXTS)
        for suffix in COMPRESS
        for cuts in ([1], [5, 5000, 5001], [len(CONTENT) - 1])
    ],
    "empty compressed members": [
        DirtyFile(f"a.jsonl{suffix}", _members(suffix, 0, 5000, 5000, 5000, len(CONTENT)), TEXTS)
        for suffix in (".gz", ".zst")
    ],
    "zstd --long=27": [DirtyFile("a.jsonl.zst", _zstd_with_window(27), ["one"])],
}


def _lines(reason: str, *cases: tuple[bytes, str]) -> list[DirtyFile]:
    """Return files with a bad line after one of 18 bytes, plain and compressed: (line, pattern of its message)."""
    return [
        DirtyFile(
            name,
            pack(b'{"text": "first"}\n' + line + b'\n{"text": "last"}\n'),
            ["first", "last"],
            [(18, reason)],
            "line 2 at byte 18: " + message,
        )
        for line, message in cases
        for name, pack in (("a.jsonl", bytes), ("a.jsonl.gz", COMPRESS[".gz"]))
    ]


def _raw_strings(values: list[bytes]) -> pa.Array:
    """Return bytes as an array of strings, which need not be UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


_NO_TEXT_KEY = r"no key 'text'; its keys are: [^ ]{1,300}\. Set text:"
BAD_ROWS: Table = {
    "invalid UTF-8 or a lone surrogate": [
        *_lines(
            "invalid_utf8",
            (b'{"text": "bad \xff byte"}', "invalid UTF-8 at byte 14; .*encoding_errors: replace"),
            (b'{"text": "lone \\ud800 surrogate"}', "invalid UTF-8, or a lone surrogate.*encoding_errors: replace"),
            (b'{"other": "\xff", "text": "one"}', "invalid UTF-8"),
        ),
        DirtyFile("a.txt", b"good until \xc3( here", bad=[(0, "invalid_utf8")], message="invalid UTF-8 at byte 11"),
        DirtyFile(
            "a.parquet",
            parquet({"text": _raw_strings([b"good", b"bad \xff\xfe bytes", b"\xed\xa0\x80"])}),
            ["good"],
            [(1, "invalid_utf8"), (2, "invalid_utf8")],
            "row 1: invalid UTF-8 at byte 4; .*encoding_errors: replace",
        ),
    ],
    "a byte order mark before a later line": [  # `cat` leaves it there when it joins files that begin with one
        DirtyFile("a.jsonl", 2 * (MARK + b'{"text": "one"}\n'), ["one"], [(19, "invalid_json")], "not valid JSON")
    ],
    "line ends other than newlines": [
        DirtyFile("a.jsonl", ('{"text": "one"}' + end + '{"text": "two"}\n').encode(), bad=[(0, "invalid_json")])
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
        (b"[" * 100_000, "JSON nested too deep"),
        (b'{"text": ' + b'{"a":' * 100_000, "JSON nested too deep"),
        (b'{"text": "one", "n": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "JSON nested too deep"),
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
        (b'["text", "more"]', "an array where an object with the key 'text' is expected; repair"),
        (b'"text"', "a string where an object with the key 'text' is expected; set text: ."),
        (b'{"body": "a", "id": 1}', "no key 'text'; its keys are: body, id. Set text: to one of them"),
    ),
    "keys that can't be printed": [
        file
        for key in (r"\ud800", "k" * 100_000)
        for file in _json(f'{{"{key}": "one"}}', bad=[(0, "missing_key")], message=_NO_TEXT_KEY)
    ],
    "a line above the limit": [
        DirtyFile(
            "a.jsonl",
            b'{"text": "short"}\n{"text": "' + b"x" * 6_000_000 + b'"}\n',
            ["short"],
            [(18, "too_large")],
            r"line 2 at byte 18: more than 4,194,504 bytes.*documents\.max_bytes",
            {"max_bytes": 100},
        )
    ],
}


def _csv(*cases: tuple[bytes, str], **options: Any) -> list[DirtyFile]:
    return [DirtyFile("a.csv", data, message=message, options=options) for data, message in cases]


def _array(*cases: tuple[bytes, str]) -> list[DirtyFile]:
    return [
        DirtyFile("a.json", data, message=rf"line \d+, value \d of its JSON array: .*{message}")
        for data, message in cases
    ]


def _column(table: Any, message: str, **options: Any) -> DirtyFile:
    return DirtyFile("a.parquet", parquet(table), message=message, options=options)


_BODY = {"body": ["x"], "": ["y"], "meta": [{"a": "z"}]}
_WHOLE = parquet({"text": TEXTS}, row_group_size=100)
_PACKED = {suffix: compress(CONTENT) for suffix, compress in COMPRESS.items()}
_ONE = b'{"text": "a"}'
REFUSED: Table = {
    "an array that is broken": _array(
        (b"[%b, %b" % (_ONE, _ONE), ""),
        (b"[%b, %b,]" % (_ONE, _ONE), ""),
        (b"[%b %b]" % (_ONE, _ONE), "',' is missing before"),
        (b'[%b, {"text": "b"]' % _ONE, "not valid JSON"),
        (b"[%b, %b] %b" % (_ONE, _ONE, _ONE), "text after the end of the array"),
        (b'[%b, {"text": "b", "n": %b}]' % (_ONE, b"9" * 5000), "4300 digits"),
        (b"[%b, %b" % (_ONE, b"[" * 100_000), "nested too deep"),
    ),
    "JSON lines whose first line is a list": [
        DirtyFile(
            "a.jsonl",
            b'["one"]\n{"text": "two"}\n',
            message="value 1 of its JSON array: text after",
            options={"text": "."},
        )
    ],
    "a value of an array above the limit": [
        DirtyFile(
            "a.json",
            b'[{"text": "one"}, {"text": "' + b"x" * 10_000_000 + b'"}]',
            message=r"value 1 of its JSON array: more than 4,194,504 bytes.*max_bytes",
            options={"max_bytes": 100},
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
        DirtyFile(f"a.jsonl{suffix}", data, message="broken|its first bytes|the file is empty")
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
        DirtyFile(f"a{suffix}.jsonl", packed, message="its first bytes are those of (gzip|bz2|zstd); end its name in")
        for suffix, packed in _PACKED.items()
    ],
    "compression that is not supported": [
        DirtyFile(
            f"a.jsonl{suffix}", b"anything", message=r"not supported; recreate it with \.gz, \.bz2, \.zst or none"
        )
        for suffix in (".xz", ".lz4", ".zip")
    ],
    "an empty member of bz2": [
        DirtyFile("a.jsonl.bz2", _members(".bz2", 0, 5000, 5000), message="broken bz2")
    ],  # Arrow's decoder stops at such a stream
    "zstd --long=28": [
        DirtyFile("a.jsonl.zst", _zstd_with_window(log), message="zstd --long=28 or more.*recreate it with 27 or less")
        for log in (28, 31)
    ],
    "a file of another kind": [
        DirtyFile(name, CONTENT, message=message, options={"kind": kind})
        for kind, name, message in (
            ("parquet", "a.jsonl", "not a readable parquet file"),
            ("arrow", "a.parquet", "not a readable Arrow file"),
            ("arrayrecord", "a.json", "not a readable ArrayRecord file"),
            ("csv", "a.jsonl", "no column 'text'"),
        )
    ],
    "a column that is missing": [
        _column(_BODY, r"no column '\.'; its columns are: .*Set text: to one of them", text="."),
        _column(_BODY, "no column 'body.x': column 'body' is string, which has no fields. Set text: to", text="body.x"),
        _column(_BODY, "no column 'meta.x': the fields of 'meta' are: a. Set text: to a column", text="meta.x"),
        _column(_BODY, "no column 'meta.a.x': column 'meta.a' is string, which has no fields", text="meta.a.x"),
        _column(_BODY, "'score', which the filter names; .*Change filter: to name", text="body", filter="score == 1"),
        _column(_BODY, "'meta.x', which the filter names: the fields of", text="body", filter="meta.x == 1"),
    ],
    "a column without text": [
        _column({"text": [1, 2]}, "column 'text' is int64; a text column holds strings, or lists of strings"),
        _column({"text": [[1], [2]]}, "column 'text' is list"),
        _column({"text": [{"a": "b"}]}, "column 'text' is struct"),
        _column({"text": pa.nulls(3)}, "column 'text' is null"),
    ],
    "parquet that is truncated": [
        DirtyFile("a.parquet", _WHOLE[:end], message="not a readable parquet file")
        for end in (1, 4, 11, 100, len(_WHOLE) // 2, -500, -9, -8, -4, -1)
    ],
    "an empty file": [
        DirtyFile("a.parquet", b"", message="not a readable parquet file"),
        DirtyFile("a.arrow", b"", message="the file is empty"),
        DirtyFile("a.jsonl.gz", b"", message="the file is empty"),
        DirtyFile("a.csv", b"", message="no column 'text'"),
    ],
}
