"""Which documents of a split are read: all, or those of a part of the keys, or of a source; and the source of each.

Keys are hashes of contents, so a part is a random sample of the documents, whatever the shards. Parts that do not
overlap have no document in common, and a part inside another one has a subset of its documents. The keys of a shard
ascend, so its documents of a part are one run of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tokenloom.storage.formats.arrays import Int32s, Int64s, UInt64s
from tokenloom.storage.formats.keys import KEY_SPACE
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.packing.base import Packing, ShardPlan
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import read_inputs
from tokenloom.storage.versions.stored_shard import StoredShard

_MAX_SHARDS = 256  # whose sources are kept in memory, 12 bytes a document


class ShardSources:
    """The sources of the documents of a shard, as the bytes of one int32 for each token: what a window copies.

    Args:
        offsets: (num_documents + 1,) the document offsets of the shard.
        of_documents: (num_documents,) int32, the source of each.
    """

    def __init__(self, offsets: UInt64s, of_documents: Int32s) -> None:
        self.offsets, self.of_documents = offsets, of_documents

    def __getitem__(self, part: slice[int, int, None]) -> bytes:
        start, end = part.start // 4, part.stop // 4
        first = int(np.searchsorted(self.offsets, np.uint64(start), side="right")) - 1
        last = int(np.searchsorted(self.offsets, np.uint64(end), side="left"))
        inside: Int64s = np.clip(self.offsets[first : last + 1].astype(np.int64), start, end)
        return np.repeat(self.of_documents[first:last], inside[1:] - inside[:-1]).tobytes()

    def at(self, tokens: Int64s) -> Int32s:
        """Find the source of each of (n,) tokens of the shard."""
        return self.of_documents[np.searchsorted(self.offsets, tokens.astype(np.uint64), side="right") - 1]


class DocumentSources:
    """The sources of the documents of a split, read shard by shard: 8 bytes of offsets, and the table, a document.

    Attributes:
        names: the sources of the version, in the order of its inputs; a source is its index here.
    """

    def __init__(self, store: Store, manifest: Manifest, split: str) -> None:
        inputs = [entry.source for entry in read_inputs(store, manifest)]
        self.names = list(dict.fromkeys(inputs))
        self._of_inputs = np.array([self.names.index(name) for name in inputs], np.int32)
        self._store, self._version, self._entries = store, manifest.version, manifest.splits[split].shards
        self._of_shard = lru_cache(_MAX_SHARDS)(self._read)

    def __getitem__(self, shard: int) -> ShardSources:
        return self._of_shard(shard)

    def _read(self, index: int) -> ShardSources:
        shard = StoredShard(self._store, self._version, self._entries[index])
        of_documents = [self._of_inputs[batch.input] for batch in shard.table(len(self._of_inputs)).batches()]
        return ShardSources(shard.offsets, np.concatenate([np.zeros(0, np.int32), *of_documents]))


class Part(NamedTuple):
    """The documents with keys from `start` to `end` of the key space, 0 <= start < end <= 1."""

    start: float
    end: float


def checked_part(part: Sequence[float]) -> Part | None:
    """Check a part, None if it is the whole; raise ValueError if it is not 0 <= start < end <= 1."""
    if len(part) != 2 or not 0 <= part[0] < part[1] <= 1:
        raise ValueError(f"part must be (start, end) with 0 <= start < end <= 1, not {part!r}")
    checked = Part(float(part[0]), float(part[1]))
    return None if checked == (0, 1) else checked


def find_runs(store: Store, manifest: Manifest, split: str, part: Part) -> dict[int, tuple[int, int]]:
    """Find the tokens [start, end) of a part in the shards that are not whole in it, by the index of the shard.

    Raises StoreError or FormatError if the document table of a shard, at most two of them, can't be read.
    """
    low, high = (int(Fraction(repr(bound)) * KEY_SPACE) for bound in part)
    runs = {}
    for index, entry in enumerate(manifest.splits[split].shards):
        first, last = (int(key, 16) if key else 0 for key in (entry.first_key, entry.last_key))
        if last < low or first >= high:
            runs[index] = (0, 0)
        elif first < low or last >= high:
            runs[index] = _run(StoredShard(store, manifest.version, entry), low, high)
    return runs


def _run(shard: StoredShard, low: int, high: int) -> tuple[int, int]:
    table = shard.table(num_inputs=0)  # of which only the keys are read
    start, end = (table.first_row(key) for key in (low, high))
    return int(shard.offsets[start]), int(shard.offsets[end])


class _Chosen:
    """Some samples of a plan, numbered from 0, with pieces `start` tokens later."""

    def __init__(self, plan: ShardPlan, chosen: Int64s | None, start: int) -> None:
        self._plan, self._chosen, self._start = plan, chosen, start

    def __len__(self) -> int:
        return len(self._plan if self._chosen is None else self._chosen)

    def pieces(self, samples: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """See ShardPlan."""
        row_offsets, starts, lengths = self._plan.pieces(samples if self._chosen is None else self._chosen[samples])
        return row_offsets, starts + self._start, lengths


@dataclass
class Selection:
    """The documents of a split that are read.

    Args:
        store, manifest, split: of the dataset, of the version, and the split's name.
        part: of the keys; None for all.
        runs: {shard: (start, end)}: the tokens of the part in the shards that are not whole in it, see find_runs.
        source: the index of the source of all documents; None for any.
    """

    store: Store
    manifest: Manifest
    split: str
    part: Part | None
    runs: dict[int, tuple[int, int]]
    source: int | None = None
    _sources: DocumentSources | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_sources": None}  # read again on first use

    @property
    def sources(self) -> DocumentSources:
        """The source of each document, which is read on first use."""
        if self._sources is None:
            self._sources = DocumentSources(self.store, self.manifest, self.split)
        return self._sources

    def count(self, packing: Packing, seq_len: int, counts: Int64s) -> Int64s:
        """Count the samples of each shard, (num_shards,), from those of whole shards."""
        counts = counts.copy()
        for index in self.runs if self.source is None else range(len(counts)):
            start, end = self.runs.get(index, (0, 1))
            offsets = np.array([start, end], np.uint64)
            if packing.follows_documents and start < end:
                entry = self.manifest.splits[self.split].shards[index]
                offsets = StoredShard(self.store, self.manifest.version, entry).offsets
            counts[index] = len(self.plan(packing, seq_len, index, offsets))
        return counts

    def num_tokens(self, num_shards: int) -> int:
        """Count the tokens of the documents of the source."""
        total = 0
        for index in range(num_shards):
            offsets, sources = self.sources[index].offsets.astype(np.int64), self.sources[index].of_documents
            start, end = self.runs.get(index, (0, offsets[-1]))
            is_chosen = (sources == self.source) & (offsets[:-1] >= start) & (offsets[1:] <= end)
            total += int(np.diff(offsets)[is_chosen].sum())
        return total

    def cut(self, index: int, offsets: UInt64s) -> UInt64s:
        """Cut the document offsets of a shard to those of its run, counted from its first token."""
        if index not in self.runs:
            return offsets
        start, end = (np.uint64(bound) for bound in self.runs[index])
        inside = offsets[(offsets > start) & (offsets < end)]
        return np.concatenate([np.array([start]), inside, np.array([end])]) - start

    def plan(self, packing: Packing, seq_len: int, index: int, offsets: UInt64s) -> ShardPlan:
        """Plan the samples of a shard with these document offsets; Packing.plan documents them.

        With a source, each sample of the packing is of one document.
        """
        plan, start = packing.plan(seq_len, self.cut(index, offsets)), self.runs.get(index, (0, 0))[0]
        if self.source is None:
            return plan if index not in self.runs else _Chosen(plan, None, start)
        _, starts, _ = plan.pieces(np.arange(len(plan)))
        return _Chosen(plan, np.flatnonzero(self.sources[index].at(starts + start) == self.source), start)
