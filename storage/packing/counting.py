"""Count the samples of each shard of a split: read the document offsets of every shard, 8 bytes a document."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.shard_entries import ShardEntry
from tokenloom.storage.packing.counts_file import CountsFile
from tokenloom.storage.packing.plans import num_samples, sample_key
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.versions.stored_shard import StoredShard

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

    def count_shard(entry: ShardEntry) -> int:
        return num_samples(packing, seq_len, entry.tokens, StoredShard(store, manifest.version, entry).offsets)

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
