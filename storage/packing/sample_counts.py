"""How many samples each shard of a split has under a packing, found in the cheapest way.

For "concat" this is arithmetic. Otherwise the counts come from the manifest if the spec's `packs` names the pair, or
from the cache of this machine. Failing that, the document offsets of every shard are read once: 8 bytes a document, and
no tokens.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.formats.arrays import Int64s, UInt64s
from tokenloom.storage.formats.manifest import NAME, Manifest
from tokenloom.storage.formats.shard import checked_offsets, read_header
from tokenloom.storage.formats.shard_entries import ShardEntry, Shards
from tokenloom.storage.packing.counts_file import CountsFile
from tokenloom.storage.packing.plans import check_packing, num_concat_samples, num_samples, sample_key
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import check_header, version_path

_READERS = 8  # shards whose offsets are read at the same time
_LONG_SECONDS = 10.0  # a count that takes longer is logged as a warning
_logger = logging.getLogger("tokenloom")


def sample_counts(
    store: Store, manifest: Manifest, split: str, packing: str, seq_len: int, cache_folder: Path
) -> Int64s:
    """Return the samples of each shard of a split, (num_shards,).

    Args:
        store: the dataset's folder.
        manifest: the version's manifest.
        split: one of the version's.
        packing: one of plans.PACKINGS.
        seq_len: T, in [1, 2**31).
        cache_folder: keeps counts that had to be computed; several processes may use it at once.

    Raises:
        ValueError: packing or seq_len out of range.
        FormatError: a shard is damaged, or not the one that the manifest lists.
        StoreError: a shard is missing or can't be read.
    """
    check_packing(packing, seq_len)
    shards = manifest.splits[split].shards
    if packing == "concat":
        return num_concat_samples(np.array(shards.num_tokens(), np.int64), seq_len)
    key = sample_key(packing, seq_len)
    if all(key in row["samples"] for row in shards.rows):
        return _listed(store, manifest, shards, key)
    file = CountsFile(cache_folder, manifest, split, packing, seq_len)
    kept = file.read()
    return _count(store, manifest, split, packing, seq_len, file) if kept is None else kept


def _listed(store: Store, manifest: Manifest, shards: Shards, key: str) -> Int64s:
    """Return the samples of each shard as the manifest gives them; every sample has a token that no other has."""
    counts = [row["samples"][key] for row in shards.rows]
    if not all(type(n) is int and 0 <= n <= limit for n, limit in zip(counts, shards.num_tokens(), strict=True)):
        place = store.place(version_path(manifest.version, NAME))
        raise FormatError(f"{place}: samples of {key} must be counts of at most the shard's tokens; restore it")
    return np.array(counts, dtype=np.int64)


def _count(store: Store, manifest: Manifest, split: str, packing: str, seq_len: int, file: CountsFile) -> Int64s:
    begin = time.monotonic()

    def count_shard(shard: ShardEntry) -> int:
        return num_samples(packing, seq_len, shard.tokens, read_offsets(store, manifest, shard))

    with ThreadPoolExecutor(_READERS) as readers:
        counts = list(readers.map(count_shard, manifest.splits[split].shards))
    is_kept = file.write(counts)
    seconds = time.monotonic() - begin
    _logger.log(
        logging.WARNING if seconds >= _LONG_SECONDS else logging.INFO,
        "%s: counted the samples of %s for %s in %d shards in %.1f s, %s. To count them ahead of time, use `packs` in "
        "the spec or `tokenloom pack`",
        store.place(version_path(manifest.version)),
        split,
        sample_key(packing, seq_len),
        len(counts),
        seconds,
        f"kept in {file.path}" if is_kept else "not kept",
    )
    return np.array(counts, dtype=np.int64)


def read_offsets(store: Store, manifest: Manifest, shard: ShardEntry) -> UInt64s:
    """Return the document offsets of a shard, (num_documents + 1,), read without its tokens.

    Args:
        store: the dataset's folder.
        manifest: the version's manifest.
        shard: one of the version's.

    Raises:
        FormatError: the shard is damaged, or not the one that the manifest lists.
        StoreError: it is missing or can't be read.
    """
    path = version_path(manifest.version, shard.name)
    place = store.place(path)
    try:
        header = read_header(store, path)
        check_header(header, shard, place)
        data = store.read_range(path, header.offsets_start, header.file_bytes)
    except FileNotFoundError as error:
        raise StoreError(f"{place}: the shard is missing; restore it") from error
    return checked_offsets(data, header, place)
