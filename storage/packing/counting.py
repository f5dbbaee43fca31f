"""Count the samples of each shard of a split: read the document offsets of every shard, 8 bytes a document."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tokenloom.storage.formats.arrays import Int64s, UInt64s
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.shard import ShardHeader, checked_offsets
from tokenloom.storage.formats.shard_entries import ShardEntry
from tokenloom.storage.packing.counts_file import CountsFile
from tokenloom.storage.packing.plans import num_samples, sample_key
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.versions.shards import naming_missing, read_shard_header

_READERS = 8  # shards whose offsets are read at the same time
_LONG_SECONDS = 10.0  # a count that takes longer is logged as a warning
_logger = logging.getLogger("tokenloom")


def counted_once(
    store: Store, manifest: Manifest, split: str, packing: str, seq_len: int, cache_folder: Path
) -> Int64s:
    """Return the samples of each shard, (num_shards,), as this machine kept them, or else counted and kept.

    See sample_counts for arguments and errors.
    """
    file = CountsFile(cache_folder, manifest, split, packing, seq_len)
    kept = file.read()
    return _count(store, manifest, split, packing, seq_len, file) if kept is None else kept


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
    """Return the document offsets of a shard, (num_documents + 1,); see read_header_and_offsets."""
    return read_header_and_offsets(store, manifest, shard)[1]


def read_header_and_offsets(store: Store, manifest: Manifest, shard: ShardEntry) -> tuple[ShardHeader, UInt64s]:
    """Return the header of a shard and its document offsets, (num_documents + 1,), read without its tokens.

    Args:
        store: the dataset's folder.
        manifest: the version's manifest.
        shard: one of the version's.

    Raises:
        FormatError: the shard is damaged, or not the one that the manifest lists.
        StoreError: it is missing or can't be read.
    """
    path = version_path(manifest.version, shard.name)
    header = read_shard_header(store, manifest.version, shard)
    with naming_missing(store, manifest.version, shard.name):
        data = store.read_range(path, header.offsets_start, header.file_bytes)
    return header, checked_offsets(data, header, store.place(path))
