"""Masks for a version of plain text, written by hand, as a build with conversations writes them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from tests.builders.damaging import Made
from tests.storage.test_blocks import blocks_of
from tokenloom.storage.formats.blocks import BLOCK_BYTES, decode_blocks, encode_blocks
from tokenloom.storage.formats.classes import TEXT_CLASS
from tokenloom.storage.formats.document_table import BATCH_ROWS, SCHEMA, table_schema
from tokenloom.storage.formats.records import JsonObject, parse_json, sign


def give_masks(made: Made, value: int = TEXT_CLASS) -> None:
    """Give every shard of a version a mask, which says that all tokens have one class."""
    folder = made.store.local(f"versions/{made.version}")
    manifest: Any = parse_json((folder / "manifest.json").read_bytes(), "", is_signed=True)
    for split in manifest["splits"].values():
        for row in split["shards"]:
            path = folder / row["name"]
            mask = np.full(row["tokens"], value, np.uint8).tobytes()
            path.with_suffix(".mask").write_bytes(mask)
            _add_classes(path.with_suffix(".docs"), mask)
            blocks = decode_blocks(path.with_suffix(".blocks").read_bytes(), "")
            data = encode_blocks(replace(blocks, mask=blocks_of(mask, BLOCK_BYTES, 0)))
            path.with_suffix(".blocks").write_bytes(data)
            table = path.with_suffix(".docs").read_bytes()
            row["files"] |= {".mask": _entry(mask), ".blocks": _entry(data), ".docs": _entry(table)}
    (folder / "manifest.json").write_bytes(sign(manifest))


def _add_classes(path: Path, mask: bytes) -> None:
    """Add the column of hashes to a document table."""
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    bounds = zip(table["start"].to_pylist(), table["num_tokens"].to_pylist(), strict=True)
    hashes = pa.array([xxhash.xxh3_64_intdigest(mask[start : start + count]) for start, count in bounds], pa.uint64())
    field = table_schema(has_classes=True, has_ids=False).field("classes")
    table = table.add_column(len(SCHEMA), field, hashes)
    with path.open("wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=BATCH_ROWS)


def _entry(data: bytes) -> JsonObject:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
