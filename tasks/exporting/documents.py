"""The documents of a split over all its shards, in order, streamed from the store in pieces of about 4 MB.

Every block that is read is compared with its checksum in the `.blocks` file before anything of it is written: one xxh3
of each byte, where the SHA-256 of the shard would take longer than the export. Memory holds a piece and the offsets of
one shard; a piece never cuts a document, so a document longer than a piece is held whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.cache.partial_shard import ShardRequest, download_run, read_blocks
from tokenloom.storage.formats.arrays import AnyArray, runs_of
from tokenloom.storage.formats.manifest import BLOCKS, MASK, Manifest, ShardEntry, beside
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.tasks.running import progress

_PIECE_BYTES = 4 * 2**20


class Piece(NamedTuple):
    """Some whole documents: their ids in the stored type, the lengths of each, and the classes of all their tokens.

    `classes` is None in a version without masks. All are valid as long as the caller likes.
    """

    ids: AnyArray  # (num_tokens,)
    lengths: NDArray[np.uint32]  # (num_documents,)
    classes: NDArray[np.uint8] | None  # (num_tokens,)


@dataclass(frozen=True)
class Documents:
    """The documents [start, end) of some neighbouring shards, counted from the first one; pickles small.

    Methods that read raise StoreError if a file is missing or can't be read, and FormatError if it is damaged.
    """

    store: Store
    version: str
    shards: tuple[ShardEntry, ...]
    start: int
    end: int
    num_tokens: int

    @classmethod
    def of_split(cls, store: Store, manifest: Manifest, split: str) -> Documents:
        """Return all documents of a split."""
        entries = tuple(entry for entry in manifest.splits[split].shards if entry.documents)
        num_documents = sum(each.documents for each in entries)
        num_tokens = sum(each.tokens for each in entries)
        return cls(store, manifest.version, entries, 0, num_documents, num_tokens)

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return self.end - self.start

    def _ranges(self) -> Iterator[tuple[StoredShard, int, int]]:
        """Yield each shard and which of its documents [first, end) are among these."""
        before = 0
        for entry in self.shards:
            first = max(0, self.start - before)
            end = min(entry.documents, self.end - before)
            before += entry.documents
            if first < end:
                yield StoredShard(self.store, self.version, entry), first, end

    def lengths(self) -> Iterator[NDArray[np.uint32]]:
        """Yield the tokens of each document, those of one shard at a time."""
        for shard, first, end in self._ranges():
            yield np.diff(shard.offsets[first : end + 1]).astype(np.uint32)

    def pieces(self) -> Iterator[Piece]:
        """Yield the documents in pieces of about 4 MB; report each as written when the next one is asked for."""
        for shard, first, end in self._ranges():
            width = shard.header.token_bytes
            offsets = shard.offsets[first : end + 1].astype(np.int64)
            tokens = _request(shard, shard.entry.name)
            mask = _request(shard, beside(shard.entry.name, MASK)) if shard.entry.has_mask else None
            for i, j in runs_of(offsets, _PIECE_BYTES // width):
                a = int(offsets[i])
                b = int(offsets[j])
                places = (shard.header.tokens_start + at * width for at in (a, b))
                ids = np.frombuffer(_checked_bytes(tokens, *places), shard.header.dtype)
                classes = np.frombuffer(_checked_bytes(mask, a, b), np.uint8) if mask else None
                yield Piece(ids, np.diff(offsets[i : j + 1]).astype(np.uint32), classes)
                report_written(b - a, j - i)

    def cut(self, num_parts: int) -> list[Documents]:
        """Return these documents in up to `num_parts` parts of about as many tokens; reads the offsets of each shard.

        Only of all documents of a split.
        """
        targets = [self.num_tokens * part // num_parts for part in range(1, num_parts)]
        bounds = {(self.start, 0), *self._documents_at(targets), (self.end, self.num_tokens)}
        return [self._between(*pair) for pair in pairwise(sorted(bounds))]

    def _documents_at(self, targets: list[int]) -> Iterator[tuple[int, int]]:
        """Yield how many documents end at each token or before it, and how many tokens these have."""
        ends = np.cumsum([entry.tokens for entry in self.shards])
        before = [0, *accumulate(entry.documents for entry in self.shards)]
        for index, tokens in groupby(targets, lambda token: int(np.searchsorted(ends, token, side="right"))):
            offsets = StoredShard(self.store, self.version, self.shards[index]).offsets.astype(np.int64)
            first = int(ends[index]) - self.shards[index].tokens
            for document in np.searchsorted(offsets, np.array(list(tokens)) - first, side="right") - 1:
                yield before[index] + int(document), first + int(offsets[document])

    def _between(self, start: tuple[int, int], end: tuple[int, int]) -> Documents:
        """Return the documents between two bounds (document, token), with no more shards than hold them."""
        ends = list(accumulate(entry.documents for entry in self.shards))
        first, last = (int(np.searchsorted(ends, at, side="right")) for at in (start[0], end[0] - 1))
        before = ends[first] - self.shards[first].documents
        shards = self.shards[first : last + 1]
        num_tokens = end[1] - start[1]
        return replace(self, shards=shards, start=start[0] - before, end=end[0] - before, num_tokens=num_tokens)


def report_written(num_tokens: int, num_documents: int) -> None:
    """Report documents that are written."""
    progress.report(progress.Advanced(num_tokens=num_tokens, num_documents=num_documents, done=num_tokens))


def _request(shard: StoredShard, name: str) -> ShardRequest:
    """Return the request of a file of a shard: its tokens or its mask."""
    entry = shard.entry
    path = version_path(shard.version, name)
    return ShardRequest(shard.store, path, entry.sha256, entry.bytes, entry.files[BLOCKS]["sha256"])


def _checked_bytes(request: ShardRequest, start: int, end: int) -> memoryview:
    """Return the bytes [start, end) of a shard or mask, each block of which is compared with its checksum."""
    if start == end:
        return memoryview(b"")
    checksums = read_blocks(request)
    blocks = checksums.covering(start, end)
    first, _ = checksums.bounds(blocks.start, blocks.stop)
    return memoryview(download_run(request, checksums, blocks))[start - first : end - first]
