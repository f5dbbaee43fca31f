"""Stores made without a build, for readers: versions of given documents, or of sparse files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tests.builders.manifests import NO_FILES, NO_ROWS
from tokenloom.storage.formats import shard as shard_module
from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.storage.formats.blocks import ShardBlocks, encode_blocks
from tokenloom.storage.formats.classes import BEGINS, ENDS_TURN, LAST_TURN, MAY_LEARN, TEXT_CLASS
from tokenloom.storage.formats.records import canonical_json, sha256_of_bytes, sign
from tokenloom.storage.formats.shard import ShardHeader
from tokenloom.storage.formats.shard_writer import MaskWriter, ShardWriter

EOT = 0


def header_info(split: str, index: int, vocab_size: int) -> dict[str, Any]:
    """Return the JSON block of a shard's header."""
    made = {"dataset": "data", "split": split, "shard_index": index, "seed": 0, "tokenizer": "made"}
    return made | {"fingerprint": "f" * 64, "vocab_size": vocab_size, "eot_id": EOT}


def random_documents(num_tokens: int, mean_tokens: float, seed: int, vocab_size: int = 50_257) -> tuple[Any, Any]:
    """Return (tokens (n,), lengths (d,)) of documents with EOT only at their end; n is about num_tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.maximum(2, rng.lognormal(np.log(mean_tokens), 1.0, int(num_tokens / mean_tokens / 1.6) + 1))
    lengths = lengths.astype(np.uint32)
    tokens = rng.integers(1, vocab_size, int(lengths.sum()), dtype=token_dtype(vocab_size))
    tokens[np.cumsum(lengths, dtype=np.int64) - 1] = EOT
    return tokens, lengths


def random_classes(lengths: Any, seed: int) -> NDArray[np.uint8]:
    """Return classes for the tokens of documents, (n,): a conversation each, or now and then plain text.

    All that a mask may hold occurs: turns of every role and any length, also two of a role in a row, without an end or
    kept out of the loss. The first token begins, the last one is the end-of-text.
    """
    rng = np.random.default_rng(seed)
    num_tokens = int(lengths.sum())
    runs = rng.integers(1, 7, num_tokens)
    kinds = rng.integers(0, 9, num_tokens) | MAY_LEARN * rng.integers(0, 4, num_tokens).astype(bool)
    kinds |= LAST_TURN * (rng.integers(0, 3, num_tokens) == 0)
    classes = np.repeat(kinds, runs)[:num_tokens].astype(np.uint8)
    classes[rng.integers(0, num_tokens, num_tokens // 5)] |= ENDS_TURN
    ends = np.cumsum(lengths, dtype=np.int64)
    classes[ends - 1] = 0
    classes[ends - lengths] |= BEGINS
    for end, length in zip(ends.tolist(), lengths.tolist(), strict=True):
        if rng.random() < 0.2:
            classes[end - length : end] = TEXT_CLASS
    return classes


def write_store(
    folder: Path,
    shards: Sequence[tuple[Any, Any]],
    split: str = "train",
    vocab_size: int = 50_257,
    masks: Sequence[NDArray[np.uint8]] = (),
) -> str:
    """Write a version with these shards, (tokens, lengths) each, their masks and `.blocks`; return its reference."""
    heads = [[len(tokens), int(tokens[:9].sum())] for tokens, _ in shards]
    name = hashlib.sha256(canonical_json([vocab_size, heads])).hexdigest()[:16]
    version = folder / "data" / "versions" / name
    entries = [
        write_files(version, split, index, vocab_size, shard, masks[index] if masks else None)
        for index, shard in enumerate(shards)
    ]
    return publish(folder, name, {split: entries}, vocab_size)


def write_files(
    version: Path, split: str, index: int, vocab_size: int, shard: tuple[Any, Any], mask: NDArray[np.uint8] | None
) -> dict[str, Any]:
    """Write a shard, (tokens, lengths), its mask and `.blocks` into a version; return its entry of the manifest."""
    path = version / split / f"{index:06d}.tok"
    path.parent.mkdir(parents=True, exist_ok=True)
    entry, checksums = write_shard(path, vocab_size, header_info(split, index, vocab_size), *shard)
    blocks_of_mask = None
    if mask is not None:
        with path.with_suffix(".mask").open("xb") as file:
            writer = MaskWriter(file)
            writer.append(mask, np.zeros(0, np.uint32))
            blocks_of_mask = writer.finish()
    blocks = encode_blocks(replace(checksums, mask=blocks_of_mask))
    path.with_suffix(".blocks").write_bytes(blocks)
    listed = {"bytes": len(blocks), "sha256": sha256_of_bytes(blocks)}
    files = {".docs": {"bytes": 0, "sha256": "0" * 64}, ".blocks": listed}  # readers need no document table
    if blocks_of_mask:
        files[".mask"] = {"bytes": blocks_of_mask.num_bytes, "sha256": blocks_of_mask.sha256}
    return NO_FILES | entry | {"name": f"{split}/{index:06d}.tok", "files": files}


def write_shard(
    path: Path, vocab_size: int, info: dict[str, Any], tokens: NDArray[Any], lengths: NDArray[np.uint32]
) -> tuple[dict[str, Any], ShardBlocks]:
    """Write a `.tok` file; return its part of a manifest's entry, and its checksums."""
    with path.open("x+b") as file:
        writer = ShardWriter(file, vocab_size, info)
        writer.append(tokens, lengths)
        header, checksums = writer.finish()
    entry = {"bytes": header.file_bytes, "tokens": header.num_tokens, "documents": header.num_documents}
    return entry | {"sha256": checksums.sha256}, checksums


def write_sparse_store(folder: Path, num_shards: int, shard_tokens: int, document_tokens: int) -> str:
    """Write a version of sparse uint16 shards of zeros, which differ only in their index; return its reference.

    Args:
        folder: the store.
        num_shards: files.
        shard_tokens: tokens of each, a multiple of document_tokens.
        document_tokens: tokens of each document.
    """
    name = "5a" * 8
    split_folder = folder / "data" / "versions" / name / "train"
    split_folder.mkdir(parents=True)
    entries = []
    for index in range(num_shards):
        entry: dict[str, Any] = {"name": f"train/{index:06d}.tok", "sha256": f"{index:064x}"}
        entry |= {"tokens": shard_tokens, "documents": shard_tokens // document_tokens}
        entry |= NO_FILES | {"bytes": 0}
        entries.append(entry)
    offsets = np.arange(0, shard_tokens + 1, document_tokens, dtype="<u8")
    assert offsets[-1] == shard_tokens, "whole documents"
    checksum = xxhash.xxh3_128_digest(offsets.tobytes())
    for index, entry in enumerate(entries):
        entry["bytes"] = _write_sparse(split_folder / f"{index:06d}.tok", index, shard_tokens, offsets, checksum)
    return publish(folder, name, {"train": entries}, 50_257)


def _write_sparse(path: Path, index: int, num_tokens: int, offsets: NDArray[Any], checksum: bytes) -> int:
    info = header_info("train", index, 50_257)
    tokens_start = 4096
    offsets_start = -(-(tokens_start + 2 * num_tokens) // 8) * 8
    header = ShardHeader(
        token_bytes=2,
        num_tokens=num_tokens,
        num_documents=len(offsets) - 1,
        tokens_start=tokens_start,
        offsets_start=offsets_start,
        file_bytes=offsets_start + offsets.nbytes,
        tokens_checksum=bytes(16),  # of zeros it would take long; only verify="full" looks at it
        offsets_checksum=checksum,
        info=info,
    )
    with path.open("xb") as file:
        file.write(shard_module.pack_header(header))
        os.truncate(file.fileno(), header.file_bytes)
        file.seek(offsets_start)
        file.write(offsets.tobytes())
    return header.file_bytes


def publish(folder: Path, version: str, splits: dict[str, list[dict[str, Any]]], vocab_size: int) -> str:
    """Write the manifest of shards and the tag `latest`; return the reference of the dataset."""
    from tokenloom.storage.stores.local import LocalStore
    from tokenloom.storage.versions.tag_moves import move, newest_number

    manifest = {
        "format_version": 1,
        "dataset": "data",
        "version": version,
        "spec": {"tokenizer": {"kind": "byte"}},
        "tokenizer": {"kind": "made", "name": "made", "fingerprint": "f" * 64, "vocab_size": vocab_size, "eot_id": EOT},
        "splits": {
            name: {
                "tokens": sum(entry["tokens"] for entry in entries),
                "documents": sum(entry["documents"] for entry in entries),
                "duplicates": 0,
                "shards": entries,
            }
            for name, entries in splits.items()
        },
        "rows": NO_ROWS,
        "files": {},
    }
    (folder / "data" / "versions" / version / "manifest.json").write_bytes(sign(manifest))
    store = LocalStore(str((folder / "data").absolute()))
    move(store, "latest", version, newest_number(store, "latest"), "made")
    return f"{folder}/data"
