"""How many samples each shard of a split has under a packing, found in the cheapest way.

For "concat" this is arithmetic. Otherwise the counts come from the manifest if the spec's `packs` names the pair, or
from the cache of this machine. Failing that, the document offsets of every shard are read once: 8 bytes a document, and
no tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenloom.errors import FormatError
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.formats.manifest import NAME, Manifest
from tokenloom.storage.formats.shard_entries import Shards
from tokenloom.storage.packing.plans import check_packing, num_concat_samples, sample_key
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path

if TYPE_CHECKING:
    from pathlib import Path


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
    from tokenloom.storage.packing.counting import counted_once  # its threads and log are not for most readers

    return counted_once(store, manifest, split, packing, seq_len, cache_folder)


def has_counts(manifest: Manifest, split: str, packing: str, seq_len: int, cache_folder: Path) -> bool:
    """Return whether sample_counts needs no shard; see there for arguments."""
    key = sample_key(packing, seq_len)
    if packing == "concat" or all(key in row["samples"] for row in manifest.splits[split].shards.rows):
        return True
    from tokenloom.storage.packing.counts_file import CountsFile  # most readers need only "concat"

    return CountsFile(cache_folder, manifest, split, packing, seq_len).read() is not None


def _listed(store: Store, manifest: Manifest, shards: Shards, key: str) -> Int64s:
    """Return the samples of each shard as the manifest gives them; every sample has a token that no other has."""
    counts = [row["samples"][key] for row in shards.rows]
    if not all(type(n) is int and 0 <= n <= limit for n, limit in zip(counts, shards.num_tokens(), strict=True)):
        place = store.place(version_path(manifest.version, NAME))
        raise FormatError(f"{place}: samples of {key} must be counts of at most the shard's tokens; restore it")
    return np.array(counts, dtype=np.int64)
