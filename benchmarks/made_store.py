"""Generate stores for benchmarks: shards of random uint16 tokens, and sparse shards that take no disk space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenloom.storage.formats import shard as shard_format
from tokenloom.storage.formats.records import sign
from tokenloom.storage.formats.shard import ShardHeader
from tokenloom.storage.formats.shard_writer import ShardWriter
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions.tag_moves import move

VOCAB = 50_257
_VERSION = "5a" * 8
_TOKENS_START = 4096
_ROWS = ("read", "filtered", "excluded", "quarantined", "duplicates", "kept")
_FILE = {"bytes": 0, "sha256": "0" * 64}
#: what the manifest says of the files beside a shard, which readers of its tokens do not need
_BESIDE = {"files": {".docs": _FILE, ".blocks": _FILE}, "first_key": None, "last_key": None}


def write_store(folder: Path, num_shards: int, shard_tokens: int) -> str:
    """Write a version with shards of random documents; return its reference."""
    rng = np.random.default_rng(0)
    shards = make_folder(folder)
    entries = []
    for index in range(num_shards):
        offsets = random_offsets(rng, shard_tokens / 960)
        lengths = np.diff(offsets).astype(np.uint32)
        tokens = rng.integers(1, VOCAB, int(offsets[-1]), dtype=np.uint16)
        tokens[offsets[1:].astype(np.int64) - 1] = 0
        path = shards / f"{index:06d}.tok"
        with path.open("x+b") as file:
            writer = ShardWriter(file, VOCAB, header_info(index))
            writer.append(tokens, lengths)
            header, checksums = writer.finish()
        entry = {"name": f"train/{path.name}", "bytes": header.file_bytes, "sha256": checksums.sha256}
        entries.append(entry | {"tokens": header.num_tokens, "documents": header.num_documents})
    return publish(folder, entries)


def write_sparse_store(folder: Path, num_shards: int, offsets: NDArray[np.uint64]) -> str:
    """Write a version of sparse shards of zeros.

    All shards have documents of these lengths, each from another one on, so that no two have the same offsets.
    """
    shards = make_folder(folder)
    num_tokens = int(offsets[-1])
    lengths = np.diff(offsets)
    entries = []
    for index in range(num_shards):
        rolled = np.append(offsets[:1], np.cumsum(np.roll(lengths, -index)))
        header = sparse_header(index, rolled)
        path = shards / f"{index:06d}.tok"
        write_sparse_shard(path, header, rolled)
        entry: dict[str, Any] = {"name": f"train/{path.name}", "sha256": f"{index:064x}"}
        entry |= {"tokens": num_tokens, "documents": len(offsets) - 1, "bytes": header.file_bytes}
        entries.append(entry)
    return publish(folder, entries)


def random_offsets(rng: np.random.Generator, num_documents: float) -> NDArray[np.uint64]:
    """Return (num_documents + 1,) offsets of documents of at least 2 tokens, about 960 on average."""
    lengths = np.maximum(2, rng.lognormal(np.log(600), 1.0, max(1, int(num_documents))))
    return np.cumsum(np.concatenate([np.zeros(1), lengths.astype(np.int64)])).astype("<u8")


def header_info(index: int) -> dict[str, Any]:
    """Return the JSON block of a shard's header."""
    names: dict[str, Any] = {"dataset": "data", "split": "train", "tokenizer": "made", "fingerprint": "f" * 64}
    return names | {"shard_index": index, "seed": 0, "vocab_size": VOCAB, "eot_id": 0}


def publish(folder: Path, entries: list[dict[str, Any]]) -> str:
    """Write the manifest of the shards, and the tag `latest`; return the dataset's reference."""
    counts = {name: sum(entry[name] for entry in entries) for name in ("tokens", "documents")}
    tokenizer = {"kind": "made", "name": "made", "fingerprint": "f" * 64, "vocab_size": VOCAB, "eot_id": 0}
    manifest: dict[str, Any] = {"format_version": 1, "dataset": "data", "version": _VERSION, "tokenizer": tokenizer}
    manifest |= {"spec": {"tokenizer": {"kind": "byte"}}, "rows": dict.fromkeys(_ROWS, 0), "files": {}}
    shards = [_BESIDE | entry for entry in entries]
    manifest |= {"splits": {"train": counts | {"duplicates": 0, "shards": shards}}}
    (folder / "data/versions" / _VERSION / "manifest.json").write_bytes(sign(manifest))
    move(LocalStore(str((folder / "data").absolute())), "latest", _VERSION, 0, "made")
    return f"{folder}/data"


def make_folder(folder: Path) -> Path:
    """Create the folder of the version's shards."""
    shards = folder / "data/versions" / _VERSION / "train"
    shards.mkdir(parents=True)
    return shards


def sparse_header(index: int, offsets: NDArray[np.uint64]) -> ShardHeader:
    """Return the header of a sparse shard with these document offsets."""
    checksum = xxhash.xxh3_128_digest(offsets.tobytes())
    num_tokens = int(offsets[-1])
    offsets_start = -(-(_TOKENS_START + 2 * num_tokens) // 8) * 8
    places = (_TOKENS_START, offsets_start, offsets_start + offsets.nbytes)
    return ShardHeader(2, num_tokens, len(offsets) - 1, *places, bytes(16), checksum, header_info(index))


def write_sparse_shard(path: Path, header: ShardHeader, offsets: NDArray[np.uint64]) -> None:
    """Write a shard whose tokens are zeros and take no disk space."""
    with path.open("xb") as file:
        file.write(shard_format.pack_header(header))
        file.truncate(header.file_bytes)
        file.seek(header.offsets_start)
        file.write(offsets.tobytes())
