"""All packings by name, what each does to a shard, and how many samples each makes of the shards of a split.

docs/guides/extending.md adds a packing. Counting samples reads the document offsets of every shard, 8 bytes a document,
so a machine keeps the counts in a file of its cache folder.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from tokenloom.errors import FormatError
from tokenloom.storage.cache import default_cache_folder
from tokenloom.storage.formats.arrays import Int64s, UInt64s
from tokenloom.storage.formats.manifest import Manifest, ShardEntry
from tokenloom.storage.formats.records import decode_record, parse_json, sign
from tokenloom.storage.packing.base import Concat, Document, DocumentPadded, Packing
from tokenloom.storage.packing.best_fit import OVERLONG, BestFit
from tokenloom.storage.stores.local_files import read_regular, replace_file
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.versions.stored_shard import StoredShard

PACKINGS: Mapping[str, Packing] = {
    packing.name: packing for packing in (Concat(), Document(), DocumentPadded(), *map(BestFit, OVERLONG))
}
#: the names of "best_fit" with its options, such as "best_fit_drop_pad8"
_BEST_FIT = re.compile(r"best_fit(?:_(drop|keep_start))?(?:_pad([2-9]|[1-9][0-9]{1,8}))?")
_READERS = 8  # threads that read the offsets of shards
_LONG_SECONDS = 10.0  # a count that takes longer is logged as a warning


def packing_named(name: str, overlong: str | None = None, pad_documents: int | None = None) -> Packing:
    """Find a packing by its name and options: "best_fit", "drop", 8 -> the one named "best_fit_drop_pad8".

    Raises ValueError if there is none, or an option is out of range or contradicts the name. None changes nothing.
    """
    if overlong not in (None, *OVERLONG):
        raise ValueError(f"overlong: one of {', '.join(OVERLONG)}, not {overlong!r}")
    match = _BEST_FIT.fullmatch(name)
    named_overlong, named_multiple = match.groups() if match else (None, None)
    if overlong is not None and (not match or named_overlong not in (None, overlong)):
        raise ValueError(f"overlong={overlong!r} is of the packing best_fit, not of {name!r}; omit it")
    if pad_documents is not None and (not match or named_multiple not in (None, str(pad_documents))):
        raise ValueError(f"pad_documents={pad_documents} is of the packing best_fit, not of {name!r}")
    if match:
        return BestFit(overlong or named_overlong or "split", pad_documents or int(named_multiple or 1))
    if name not in PACKINGS:
        raise ValueError(f"packing: one of {', '.join(PACKINGS)}, not {name!r}")
    return PACKINGS[name]


@dataclass(frozen=True)
class PackingShares:
    """The padding and the cut documents of a packing, in one shard or summed over several.

    A document is cut if no sample holds all of its tokens. A token that two samples share counts once.
    """

    num_samples: int
    padding_tokens: int
    slot_tokens: int  # num_samples * (T + 1)
    cut_documents: int
    num_documents: int

    @property
    def padding_share(self) -> float:
        """Padding in all slots, in [0, 1]."""
        return self.padding_tokens / max(1, self.slot_tokens)

    @property
    def cut_share(self) -> float:
        """Cut documents in all documents, in [0, 1]."""
        return self.cut_documents / max(1, self.num_documents)

    def __add__(self, other: PackingShares) -> PackingShares:
        return PackingShares(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def shares_of(packing: Packing, seq_len: int, offsets: UInt64s) -> PackingShares:
    """Compute the shares of a packing in a shard with these document offsets, in 24 bytes for each piece.

    A document is whole if one piece holds all of it: of those that begin with it or before, the one that reaches
    furthest.
    """
    plan = packing.plan(seq_len, offsets)
    _, starts, lengths = plan.pieces(np.arange(len(plan)))
    by_start = np.argsort(starts, kind="stable")
    starts, ends = starts[by_start], (starts + lengths)[by_start]
    reach = np.maximum.accumulate(np.append(0, ends))  # by the pieces before
    firsts, lasts = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    is_cut = (lasts > firsts) & (reach[np.searchsorted(starts, firsts, side="right")] < lasts)
    slot_tokens = len(plan) * (seq_len + 1)
    return PackingShares(
        num_samples=len(plan),
        padding_tokens=slot_tokens - int(lengths.sum()),
        slot_tokens=slot_tokens,
        cut_documents=int(is_cut.sum()),
        num_documents=len(firsts),
    )


@dataclass(frozen=True, slots=True)
class CountsRecord:
    """The samples of each shard of a split under a packing; `name` is that of the file, which names all of these."""

    name: str
    counts: list[int]


def counts_path(cache_folder: Path, manifest: Manifest, split: str, packing: Packing, seq_len: int) -> Path:
    """Return where a machine keeps the counts of a split under a packing."""
    return cache_folder / "counts" / f"{manifest.version}-{quote(split, safe='')}-{packing.name}-{seq_len}.json"


def sample_counts(
    store: Store, manifest: Manifest, split: str, packing: Packing, seq_len: int, cache_folder: Path | None = None
) -> Int64s:
    """Count the samples of each shard of a split, (num_shards,), or read the counts that this machine kept.

    A packing that does not follow documents needs neither.

    Args:
        store: the dataset's folder.
        manifest: the version's manifest.
        split: one of the version's.
        packing, seq_len: how samples are cut.
        cache_folder: keeps the counts, None for the machine's cache; several processes may use it at once.

    Raises:
        FormatError: a shard is damaged, or not the one that the manifest lists.
        StoreError: a shard is missing or can't be read.
    """
    shards = manifest.splits[split].shards
    if not packing.follows_documents:
        plans = (packing.plan(seq_len, np.array([0, shard.tokens], np.uint64)) for shard in shards)
        return np.fromiter(map(len, plans), np.int64)
    path = counts_path(cache_folder or default_cache_folder(), manifest, split, packing, seq_len)
    with suppress(OSError, FormatError):  # not counted yet, or damaged
        record = decode_record(CountsRecord, parse_json(read_regular(path), str(path), is_signed=True), str(path))
        if (record.name, len(record.counts)) == (path.name, len(shards)):
            return np.array(record.counts, dtype=np.int64)
    return np.array(_count(store, manifest, split, packing, seq_len, path), dtype=np.int64)


def _count(store: Store, manifest: Manifest, split: str, packing: Packing, seq_len: int, path: Path) -> list[int]:
    """Count the samples, and keep the counts in the file at `path` for later readers."""
    import logging  # not for readers that need not count
    from concurrent.futures import ThreadPoolExecutor

    log, begin = logging.getLogger("tokenloom"), time.monotonic()

    def count_shard(entry: ShardEntry) -> int:
        return packing.count(seq_len, StoredShard(store, manifest.version, entry).offsets)

    with ThreadPoolExecutor(_READERS) as readers:
        counts = list(readers.map(count_shard, manifest.splits[split].shards))
    seconds = time.monotonic() - begin
    level = logging.WARNING if seconds >= _LONG_SECONDS else logging.INFO
    place, cut = store.place(version_path(manifest.version)), f"{packing.name}/{seq_len}"
    message = "%s: counted the samples of %s for %s in %d shards in %.1f s, to keep in %s"
    log.log(level, message, place, split, cut, len(counts), seconds, path)
    try:
        replace_file(path, sign(CountsRecord(path.name, counts)))
    except OSError as error:
        log.warning("%s: can't be written: %s; TOKENLOOM_CACHE names another folder", path.parent, error.strerror)
    return counts
