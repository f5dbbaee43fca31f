"""Masks for a version of plain text, written by hand, as a build with conversations writes them."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from tests.builders.damaging import Made
from tests.storage.test_blocks import blocks_of
from tokenloom.storage.formats.blocks import BLOCK_BYTES, decode_blocks, encode_blocks
from tokenloom.storage.formats.canonical import read_signed, sign
from tokenloom.storage.formats.classes import TEXT_CLASS
from tokenloom.storage.formats.records import JsonObject


def give_masks(made: Made) -> None:
    """Give every shard of a version a mask, which says that its tokens are plain text."""
    folder = made.store.local(f"versions/{made.version}")
    manifest = read_signed((folder / "manifest.json").read_bytes(), "")
    for split in manifest["splits"].values():  # type: ignore[attr-defined]
        for row in split["shards"]:
            path = folder / row["name"]
            mask = np.full(row["tokens"], TEXT_CLASS, np.uint8).tobytes()
            path.with_suffix(".mask").write_bytes(mask)
            blocks = decode_blocks(path.with_suffix(".blocks").read_bytes(), "")
            data = encode_blocks(replace(blocks, mask=blocks_of(mask, BLOCK_BYTES, 0)))
            path.with_suffix(".blocks").write_bytes(data)
            row["files"] |= {".mask": _entry(mask), ".blocks": _entry(data)}
    (folder / "manifest.json").write_bytes(sign(manifest))


def _entry(data: bytes) -> JsonObject:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
