"""An independent reading of a file: all its rows in memory, read with only pyarrow, json, csv and zlib.

It shares no code with the readers that it checks. (Only zstd comes through pyarrow in both.)
"""

from __future__ import annotations

import bz2
import csv
import io
import json
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_SURROGATES = "surrogateescape"


def plain_rows(name: str, data: bytes, options: dict[str, Any]) -> list[str | None]:
    """Return the text of every row of a file, None where it is null; raises whatever the libraries raise.

    Args:
        name: the file's name; its end says how it is compressed.
        data: its bytes.
        options: the source's options.
    """
    kind, column = options["kind"], options.get("text", "text")
    if kind == "parquet":
        file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
        return _texts(file.read(columns=[column], use_threads=False))
    if kind == "arrow":
        return _texts(_arrow(data, column))
    data = decompressed(name, data)
    if kind == "csv":
        return _csv(data, column)
    if kind == "text":
        return _documents(data.decode(), options.get("separator"))
    return _json(data, column)


def decompressed(name: str, data: bytes) -> bytes:
    """Return the decompressed content of a file, whose suffix names the compression."""
    if name.endswith(".gz"):
        return _members(data, lambda: zlib.decompressobj(31))
    if name.endswith(".bz2"):
        return _members(data, bz2.BZ2Decompressor)
    if name.endswith(".zst"):
        return bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())
    return data


def _members(data: bytes, make: Callable[[], Any]) -> bytes:
    """Return the content of all members of a file; trailing bytes must be a member too."""
    out = b""
    while data:
        member = make()
        out += member.decompress(data)
        if not member.eof:
            raise EOFError("it ends inside of a member")
        data = member.unused_data
    return out


def _arrow(data: bytes, column: str) -> pa.Table:
    """Return one column; another one may be damaged."""
    open_it = pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream
    index = open_it(pa.BufferReader(data)).schema.get_field_index(column)
    options = pa.ipc.IpcReadOptions(included_fields=[index], use_threads=False)
    return open_it(pa.BufferReader(data), options=options).read_all()


def _texts(table: pa.Table) -> list[str | None]:
    table.validate(full=True)
    return [_joined(value) for value in table.column(0).to_pylist()]


def _joined(value: Any) -> str | None:
    """Return a list of texts as its lines."""
    if isinstance(value, list):
        value = "\n".join(item for item in value if item is not None)
    if isinstance(value, bytes):
        value = value.decode()
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not text")
    if value is not None:
        value.encode()  # no lone surrogate
    return value


def _json(data: bytes, key: str) -> list[str | None]:
    content = data.removeprefix(b"\xef\xbb\xbf")
    if content.lstrip().startswith(b"["):
        values = json.loads(content.decode("utf-8", _SURROGATES))
    else:
        values = [json.loads(line.decode()) for line in content.split(b"\n") if line.strip()]
    return [_joined(value[key]) for value in values]


def _documents(text: str, separator: str | None) -> list[str | None]:
    if separator is None:
        return [text]
    return [part.strip("\r\n") for part in text.split(separator) if part.strip("\r\n")]


def _csv(data: bytes, column: str) -> list[str | None]:
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", _SURROGATES)
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    header = rows[0]
    if header.count(column) != 1 or any(len(row) != len(header) for row in rows):
        raise ValueError("rows that do not fit the header")
    return [_joined(row[header.index(column)]) for row in rows[1:]]
