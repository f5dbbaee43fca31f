"""Files of rows with any columns, in each format that a source reads."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Row = dict[str, Any]


def write_rows(path: Path, rows: Sequence[Row], group_rows: int = 10) -> Path:
    """Write rows in the format that the file's suffix names; parquet and Arrow in groups of `group_rows`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=group_rows)
    elif path.suffix == ".arrow":
        table = pa.Table.from_pylist(list(rows))
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, group_rows)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            lines = csv.DictWriter(file, list(rows[0]))
            lines.writeheader()
            lines.writerows(rows)
    elif path.suffix == ".array_record":
        module = pytest.importorskip("array_record.python.array_record_module")
        records = module.ArrayRecordWriter(str(path), "group_size:3")
        for row in rows:
            records.write(json.dumps(row, ensure_ascii=False).encode())
        records.close()
    else:
        lines_of_json = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        text = "".join(lines_of_json) if path.suffix == ".jsonl" else f"[{','.join(lines_of_json)}]"
        path.write_text(text, encoding="utf-8")
    return path
