"""Count the samples of each shard of a split once: a machine keeps the counts in a file of its cache folder.

Counting reads the document offsets of every shard, 8 bytes a document.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from tokenloom.errors import FormatError
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.formats.manifest import Manifest, ShardEntry
from tokenloom.storage.formats.records import read_record, sign
from tokenloom.storage.packing.packings import check_packing, num_samples, sample_key
from tokenloom.storage.stores.local_files import read_regular, replace_file
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.versions.stored_shard import StoredShard

_READERS = 8  # the offsets of so many shards are read at the same time
_LONG_SECONDS = 10.0  # a count that takes longer is logged as a warning


@dataclass(frozen=True, slots=True)
class CountsRecord:
    """The samples of each shard of a split under a packing; `name` is that of the file, which says of which."""

    name: str
    counts: list[int]


class CountsFile:
    """The counts of a split under a packing in the cache folder; several processes may use it at once.

    Args:
        cache_folder: the machine's; it need not exist.
        manifest: the manifest of the version.
        split: one of the version's.
        packing: the full name of one.
        seq_len: T, in [1, 2**31).
    """

    def __init__(self, cache_folder: Path, manifest: Manifest, split: str, packing: str, seq_len: int) -> None:
        name = f"{manifest.version}-{quote(split, safe='')}-{packing}-{seq_len}.json"
        self.path = cache_folder / "counts" / name
        self._num_shards = len(manifest.splits[split].shards)

    def read(self) -> Int64s | None:
        """Return the counts, (num_shards,); None if the file is missing, damaged or of other samples."""
        try:
            record = read_record(read_regular(self.path), str(self.path), CountsRecord)
        except (OSError, FormatError):
            return None
        is_of_split = (record.name, len(record.counts)) == (self.path.name, self._num_shards)
        return np.array(record.counts, dtype=np.int64) if is_of_split else None

    def write(self, counts: Sequence[int]) -> bool:
        """Keep counts for later readers; return False, and log why, if the folder can't be written."""
        try:
            replace_file(self.path, sign(CountsRecord(self.path.name, list(counts))))
        except OSError as error:
            import logging  # most readers log nothing

            folder, reason = self.path.parent, error.strerror
            logging.getLogger("tokenloom").warning(
                "%s: can't be written: %s; TOKENLOOM_CACHE names another folder", folder, reason
            )
            return False
        return True


def sample_counts(
    store: Store, manifest: Manifest, split: str, packing: str, seq_len: int, cache_folder: Path
) -> Int64s:
    """Return the samples of each shard of a split, (num_shards,), as this machine kept them, or else counted and kept.

    Those of a packing that does not follow documents are arithmetic.

    Args:
        store: the dataset's folder.
        manifest: the version's manifest.
        split: one of the version's.
        packing: the full name of one.
        seq_len: T, in [1, 2**31).
        cache_folder: keeps the counts; several processes may use it at once.

    Raises:
        ValueError: packing or seq_len out of range.
        FormatError: a shard is damaged, or not the one that the manifest lists.
        StoreError: a shard is missing or can't be read.
    """
    if not check_packing(packing, seq_len).follows_documents:
        tokens = [shard.tokens for shard in manifest.splits[split].shards]
        return np.array([num_samples(packing, seq_len, num_tokens) for num_tokens in tokens], np.int64)
    file = CountsFile(cache_folder, manifest, split, packing, seq_len)
    kept = file.read()
    return _count(store, manifest, split, packing, seq_len, file) if kept is None else kept


def _count(store: Store, manifest: Manifest, split: str, packing: str, seq_len: int, file: CountsFile) -> Int64s:
    import logging  # not for readers that need not count
    from concurrent.futures import ThreadPoolExecutor

    begin = time.monotonic()

    def count_shard(entry: ShardEntry) -> int:
        return num_samples(packing, seq_len, entry.tokens, StoredShard(store, manifest.version, entry).offsets)

    with ThreadPoolExecutor(_READERS) as readers:
        counts = list(readers.map(count_shard, manifest.splits[split].shards))
    is_kept = file.write(counts)
    seconds = time.monotonic() - begin
    logging.getLogger("tokenloom").log(
        logging.WARNING if seconds >= _LONG_SECONDS else logging.INFO,
        "%s: counted the samples of %s for %s in %d shards in %.1f s, %s",
        store.place(version_path(manifest.version)),
        split,
        sample_key(packing, seq_len),
        len(counts),
        seconds,
        f"kept in {file.path}" if is_kept else "not kept",
    )
    return np.array(counts, dtype=np.int64)
