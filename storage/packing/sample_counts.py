"""How many samples each shard of a split has under a packing, found in the cheapest way.

For a packing that does not follow documents, this is arithmetic. Otherwise the counts come from the manifest if the
spec's `packs` names the pair, or from the cache of this machine. Failing that, the document offsets of every shard are
read once: 8 bytes a document, and no tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenloom.errors import FormatError
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.formats.manifest import MANIFEST, Manifest
from tokenloom.storage.packing.packings import check_packing, packing_named, sample_key
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
        packing: the full name of one.
        seq_len: T, in [1, 2**31).
        cache_folder: keeps counts that had to be computed; several processes may use it at once.

    Raises:
        ValueError: packing or seq_len out of range.
        FormatError: a shard is damaged, or not the one that the manifest lists.
        StoreError: a shard is missing or can't be read.
    """
    check_packing(packing, seq_len)
    counts = _known_counts(store, manifest, split, packing, seq_len)
    if counts is not None:
        return counts
    from tokenloom.storage.packing.counting import counted_once  # its threads and log are not for most readers

    return counted_once(store, manifest, split, packing, seq_len, cache_folder)


def has_counts(store: Store, manifest: Manifest, split: str, packing: str, seq_len: int, cache_folder: Path) -> bool:
    """Return whether sample_counts needs no shard; see there for arguments and errors."""
    check_packing(packing, seq_len)
    if _known_counts(store, manifest, split, packing, seq_len) is not None:
        return True
    from tokenloom.storage.packing.counting import CountsFile

    return CountsFile(cache_folder, manifest, split, packing, seq_len).read() is not None


def _known_counts(store: Store, manifest: Manifest, split: str, packing: str, seq_len: int) -> Int64s | None:
    """Return the counts that follow from the manifest alone; every sample has a token that no other has."""
    shards, key = manifest.splits[split].shards, sample_key(packing, seq_len)
    if not (found := packing_named(packing)).follows_documents:
        offsets = np.zeros((len(shards), 2), np.uint64)
        offsets[:, 1] = shards.num_tokens()
        return np.array([found.count(seq_len, of_shard) for of_shard in offsets], np.int64)
    if not all(key in row["samples"] for row in shards.rows):
        return None
    counts = [row["samples"][key] for row in shards.rows]
    if not all(type(n) is int and 0 <= n <= limit for n, limit in zip(counts, shards.num_tokens(), strict=True)):
        place = store.place(version_path(manifest.version, MANIFEST))
        raise FormatError(f"{place}: samples of {key} must be counts of at most the shard's tokens; restore it")
    return np.array(counts, dtype=np.int64)
