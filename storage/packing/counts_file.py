"""The file in which a machine keeps the samples of each shard of a split, so that they are counted once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import numpy as np

from tokenloom.errors import FormatError
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.formats.canonical import read_signed_record, sign_record
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.packing.kept_files import keep
from tokenloom.storage.stores.local_files import read_regular


@dataclass(frozen=True, slots=True)
class CountsRecord:
    """The samples of each shard of a split under a packing.

    The version's name decides all the fields after it; they reveal mistakes.
    """

    version: str
    split: str
    packing: str
    seq_len: int
    num_shards: int
    num_tokens: int
    counts: list[int]


class CountsFile:
    """The counts of a split under a packing in the cache folder; several processes may use it at once.

    Args:
        cache_folder: the machine's; it need not exist.
        manifest: the manifest of the version.
        split: one of the version's.
        packing: one of plans.PACKINGS.
        seq_len: T, in [1, 2**31).
    """

    def __init__(self, cache_folder: Path, manifest: Manifest, split: str, packing: str, seq_len: int) -> None:
        name = f"{manifest.version}-{quote(split, safe='')}-{packing}-{seq_len}.json"
        self.path = cache_folder / "counts" / name
        held = manifest.splits[split]
        self._empty = CountsRecord(manifest.version, split, packing, seq_len, len(held.shards), held.tokens, [])

    def read(self) -> Int64s | None:
        """Return the counts, (num_shards,); None if the file is missing, damaged or of other samples."""
        try:
            record = read_signed_record(read_regular(self.path), str(self.path), CountsRecord)
        except (OSError, FormatError):
            return None
        is_of_split = replace(record, counts=[]) == self._empty and len(record.counts) == record.num_shards
        return np.array(record.counts, dtype=np.int64) if is_of_split else None

    def write(self, counts: Sequence[int]) -> bool:
        """Keep counts for later readers; return False, and log why, if the folder can't be written."""
        return keep(self.path, sign_record(replace(self._empty, counts=list(counts))))
