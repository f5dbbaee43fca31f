"""How many samples each shard of a split has under a packing, found the cheapest way there is.

By arithmetic for "concat"; from the manifest where the spec's `packs` named the pair; from what this machine kept; else
by reading the document offsets of every shard once, 8 bytes a document, and no token.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.canonical import read_signed, sign
from tokenloom.storage.formats.manifest import NAME
from tokenloom.storage.formats.shard import checked_offsets, read_header
from tokenloom.storage.packing.packing import check_packing, num_samples, sample_key
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.versions import check_listed, version_path

Int64s = NDArray[np.int64]

_READERS = 8  # shards whose offsets are read at the same time
_LONG_SECONDS = 10.0  # of counting: from there on it is told even to who shows warnings alone
_logger = logging.getLogger("tokenloom")


def sample_counts(
    store: Store, manifest: dict[str, Any], split: str, packing: str, seq_len: int, cache_folder: Path
) -> Int64s:
    """Return the samples of each shard of a split, (num_shards,).

    Args:
        store: of the dataset.
        manifest: of the version.
        split: one of the version's.
        packing: one of packing.PACKINGS.
        seq_len: T, in [1, 2**31).
        cache_folder: where counts that had to be computed are kept; several processes may use it at once.

    Raises:
        ValueError: packing or seq_len out of range.
        FormatError: a shard is damaged, or another one than the manifest lists.
        StoreError: a shard is missing or can't be read.
    """
    check_packing(packing, seq_len)
    shards = manifest["splits"][split]["shards"]
    if packing == "concat":
        tokens = np.array([shard["tokens"] for shard in shards], dtype=np.int64)
        return np.maximum(tokens - 1, 0) // seq_len
    key = sample_key(packing, seq_len)
    if all(key in shard["samples"] for shard in shards):
        return _listed(store, manifest, shards, key)
    kept = kept_counts(cache_folder, manifest, split, packing, seq_len)
    return _count(store, manifest, split, packing, seq_len, cache_folder) if kept is None else kept


def _listed(store: Store, manifest: dict[str, Any], shards: list[dict[str, Any]], key: str) -> Int64s:
    """Return the samples of each shard as the manifest gives them; a sample has a token of its own."""
    counts = [shard["samples"][key] for shard in shards]
    if not all(type(n) is int and 0 <= n <= shard["tokens"] for n, shard in zip(counts, shards, strict=True)):
        place = store.place(version_path(manifest["version"], NAME))
        raise FormatError(f"{place}: samples of {key} must be counts, no more than a shard's tokens; restore it")
    return np.array(counts, dtype=np.int64)


def _count(
    store: Store, manifest: dict[str, Any], split: str, packing: str, seq_len: int, cache_folder: Path
) -> Int64s:
    begin = time.monotonic()

    def count_shard(shard: dict[str, Any]) -> int:
        return num_samples(packing, seq_len, shard["tokens"], read_offsets(store, manifest, split, shard))

    with ThreadPoolExecutor(_READERS) as readers:
        counts = list(readers.map(count_shard, manifest["splits"][split]["shards"]))
    place = keep_counts(cache_folder, manifest, split, packing, seq_len, counts)
    seconds = time.monotonic() - begin
    _logger.log(
        logging.WARNING if seconds >= _LONG_SECONDS else logging.INFO,
        "%s: counted the samples of %s for %s in %d shards in %.1f s, %s. `packs` in the spec, or `tokenloom pack`, "
        "count them ahead",
        store.place(version_path(manifest["version"])),
        split,
        sample_key(packing, seq_len),
        len(counts),
        seconds,
        f"kept in {place}" if place else "not kept",
    )
    return np.array(counts, dtype=np.int64)


def read_offsets(store: Store, manifest: dict[str, Any], split: str, shard: dict[str, Any]) -> NDArray[np.uint64]:
    """Return the document offsets of a shard, (num_documents + 1,), read without its tokens.

    Args:
        store: of the dataset.
        manifest: of the version.
        split: one of the version's.
        shard: its entry in the manifest.

    Raises:
        FormatError: the shard is damaged, or another one than the manifest lists.
        StoreError: it is missing or can't be read.
    """
    path = version_path(manifest["version"], shard["name"])
    place = store.place(path)
    try:
        header = read_header(lambda start, end: store.read_range(path, start, end), place)
        check_listed(header, shard, place)
        data = store.read_range(path, header.offsets_start, header.file_bytes)
    except FileNotFoundError as error:
        raise StoreError(f"{place}: the shard is missing; restore it") from error
    return checked_offsets(data, header, place)


def counts_path(cache_folder: Path, version: str, split: str, packing: str, seq_len: int) -> Path:
    """Return the file that keeps the counts of a split under a packing."""
    return cache_folder / "counts" / f"{version}-{quote(split, safe='')}-{packing}-{seq_len}.json"


def kept_counts(cache_folder: Path, manifest: dict[str, Any], split: str, packing: str, seq_len: int) -> Int64s | None:
    """Return the counts that this machine kept, (num_shards,); None if there are none that can be used."""
    path = counts_path(cache_folder, manifest["version"], split, packing, seq_len)
    try:
        value = read_signed(path.read_bytes(), str(path))
    except (OSError, FormatError):
        return None
    counts = value.pop("counts", [])
    what = _what(manifest, split, packing, seq_len)
    return np.array(counts, dtype=np.int64) if value == what and len(counts) == what["num_shards"] else None


def keep_counts(
    cache_folder: Path, manifest: dict[str, Any], split: str, packing: str, seq_len: int, counts: Sequence[int]
) -> Path | None:
    """Keep counts for later readers; return the file, None (and log why) if the folder can't be written."""
    path = counts_path(cache_folder, manifest["version"], split, packing, seq_len)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    data = sign(_what(manifest, split, packing, seq_len) | {"counts": list(counts)})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        _logger.warning("%s: can't be written: %s; TOKENLOOM_CACHE names another folder", path, error.strerror)
        return None
    return path


def _what(manifest: dict[str, Any], split: str, packing: str, seq_len: int) -> dict[str, Any]:
    """Return what counts are of; a version's name holds all that decides them, the rest finds mistakes."""
    return {
        "version": manifest["version"],
        "split": split,
        "packing": packing,
        "seq_len": seq_len,
        "num_shards": len(manifest["splits"][split]["shards"]),
        "num_tokens": manifest["splits"][split]["tokens"],
    }
