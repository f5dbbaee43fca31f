"""An independent reading of a file: all its texts in memory, by pyarrow, json, gzip and bz2 alone."""

from __future__ import annotations

import bz2
import gzip
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def plain_texts(name: str, data: bytes, options: dict[str, Any]) -> list[str | None]:
    """Return the text of every row of a file, None where it is null; raise whatever the libraries raise.

    Args:
        name: the file's name; its end says how it is compressed.
        data: its bytes.
        options: the source's options.
    """
    kind, column = options["kind"], options["text"]
    if kind == "parquet":
        return [_joined(value) for value in pq.read_table(io.BytesIO(data), columns=[column]).column(0).to_pylist()]
    if kind == "arrow":
        opened = (pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream)(pa.BufferReader(data))
        return [_joined(value) for value in opened.read_all().column(column).to_pylist()]
    if name.endswith((".gz", ".bz2")):
        data = (gzip if name.endswith(".gz") else bz2).decompress(data)
    if kind == "text":
        parts = data.decode().split(options["separator"]) if options["separator"] else [data.decode()]
        return [part.strip("\r\n") if options["separator"] else part for part in parts if part.strip("\r\n")]
    is_array = data.lstrip().startswith(b"[")
    values = json.loads(data) if is_array else [json.loads(line) for line in data.split(b"\n") if line.strip()]
    return [_joined(value[column]) for value in values]


def _joined(value: Any) -> str | None:
    """Return a list of texts as its lines."""
    if isinstance(value, list):
        value = "\n".join(item for item in value if item is not None)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not text")
    return value
