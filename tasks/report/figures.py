"""The figures of a version that its report shows, as plain values, and the arithmetic on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.statistics import (
    DocumentCounts,
    DocumentStatistics,
    EncodedCounts,
    added,
    bin_edges,
)
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.tasks.publishing.version_facts import VersionFacts

_INDENTED = re.compile(r"^(?:\t|  +)\S.*\n(?:.*\n)*?(?:\t|  +)\S", re.MULTILINE)  # two such lines
_MIN_DOCUMENTS = 10  # of a split whose shares are compared
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class ExampleDocument:
    """A document of a version: where it lies, where it comes from, and how its text begins.

    Its tokens are [start, end) of the shard, the last of them end-of-text. `is_cut`: the text goes on.
    """

    split: str
    shard: str
    start: int
    end: int
    source: str
    path: str
    row: int
    id: str | None
    content: str
    text: str
    is_cut: bool

    @property
    def is_code(self) -> bool:
        """Whether the text is code or a table: it has two indented lines."""
        return bool(_INDENTED.search(self.text))


@dataclass(frozen=True, slots=True)
class FrequentToken:
    """A token and how often it is in the sample; `text` is None if it can't be decoded here."""

    id: int
    text: str | None
    count: int


@dataclass(frozen=True, slots=True)
class TokenSample:
    """The most frequent tokens, the most frequent first, among `num_tokens` tokens of `num_shards` shards."""

    tokens: list[FrequentToken]
    num_tokens: int
    num_shards: int


@dataclass(frozen=True, slots=True)
class VersionFigures:
    """All that the report of a version shows.

    `tags` name the version now. `replaced` is the version that its tag named before, None if there was none, and
    `previous` its facts, None if it is gone. `history` are the tokens of the last versions that the tag named, this one
    last, by name. `statistics` are by split, empty if they are unknown. `notes` say what could not be found out, and
    why.
    """

    facts: VersionFacts
    inputs: list[InputEntry]
    tags: list[str]
    replaced: str | None
    statistics: dict[str, DocumentStatistics]
    sample: TokenSample
    documents: list[ExampleDocument]
    previous: VersionFacts | None
    history: dict[str, int]
    notes: list[str]

    @property
    def total(self) -> DocumentCounts:
        """Documents and tokens of the version."""
        return total_of(self.splits.values())

    @property
    def splits(self) -> dict[str, DocumentCounts]:
        """Documents and tokens of each split, the one with the most tokens first."""
        return _largest_first(counts_of_splits(self.facts.manifest))

    @property
    def sources(self) -> dict[str, DocumentCounts]:
        """Documents and tokens of each source, the one with the most tokens first, also of one without any."""
        empty = {entry.source: DocumentCounts(0, 0) for entry in self.inputs}
        found = added([empty, *(one.sources for one in self.statistics.values())], empty)
        return _largest_first(found)

    @property
    def encoded(self) -> dict[str, EncodedCounts]:
        """What was encoded of each source; empty if unknown."""
        return (self.facts.build and self.facts.build.encoded) or {}

    @property
    def all_encoded(self) -> EncodedCounts | None:
        """What was encoded of all sources; None if unknown."""
        return added(self.encoded.values(), None)

    @property
    def lengths(self) -> list[int]:
        """How many documents have a length in each bin of statistics.py."""
        return added((one.lengths for one in self.statistics.values()), [])

    def tokens_of(self, split: str, source: str) -> int:
        """Return the tokens of a source in a split."""
        counts = self.statistics[split].sources.get(source) if split in self.statistics else None
        return counts.tokens if counts else 0

    @property
    def fates(self) -> dict[str, tuple[int, ...]]:
        """Rows read, filtered, quarantined, dropped and kept, of each source if build.json says it, and of all."""
        rows = self.facts.manifest.rows
        fates: dict[str, tuple[int, ...]] = {}
        for name, counts in self.sources.items():
            if self.statistics and (found := self.encoded.get(name)) and found.rows:
                quarantined, dropped = found.rows - found.filtered - found.documents, found.documents - counts.documents
                fates[name] = (found.rows, found.filtered, quarantined, dropped, counts.documents)
        return fates | {"all": (rows.read, rows.filtered, rows.quarantined, rows.duplicates + rows.excluded, rows.kept)}


def bytes_per_token(counts: EncodedCounts | None) -> float | None:
    """Return the bytes of text for each token; None if unknown."""
    return counts.bytes / counts.tokens if counts and counts.bytes and counts.tokens else None


def _largest_first(counts: dict[str, DocumentCounts]) -> dict[str, DocumentCounts]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1].tokens, item[0])))


def counts_of_sources(facts: VersionFacts) -> dict[str, DocumentCounts] | None:
    """Return documents and tokens of each source of a version; None if its build.json does not say them."""
    statistics = facts.build.statistics if facts.build else None
    return added((one.sources for one in statistics.values()), None) if statistics else None


def counts_of_splits(manifest: Manifest) -> dict[str, DocumentCounts]:
    """Return documents and tokens of each split of a manifest."""
    return {name: DocumentCounts(split.documents, split.tokens) for name, split in manifest.splits.items()}


def total_of(counts: Iterable[DocumentCounts]) -> DocumentCounts:
    """Return the sum of documents and tokens."""
    parts = list(counts)
    return DocumentCounts(sum(part.documents for part in parts), sum(part.tokens for part in parts))


def tokens_by_length(lengths: Sequence[int]) -> list[float]:
    """Return the tokens of the documents in each bin of a histogram, as if their lengths were spread evenly in it."""
    edges = bin_edges(len(lengths))
    tokens: list[float] = (np.asarray(lengths) * (edges[:-1] + edges[1:] - 1) / 2).tolist()
    return tokens


def length_quantiles(lengths: Sequence[float], shares: Sequence[float] = QUANTILES) -> list[float]:
    """Return the quantiles of a histogram of lengths, each right to within its bin; empty without documents.

    Within a bin the lengths are taken to be spread evenly.

    Args:
        lengths: (num_bins,) documents, or tokens, by bin, see statistics.py.
        shares: each in [0, 1].
    """
    counts = np.asarray(lengths, dtype=np.float64)
    if not counts.sum():
        return []
    edges, ends = bin_edges(len(counts)), np.cumsum(counts)
    found = []
    for share in shares:
        rank = share * ends[-1]
        index = min(int(np.searchsorted(ends, rank, side="left")), len(counts) - 1)
        index = index if counts[index] else int(np.flatnonzero(counts)[0])
        inside = (rank - (ends[index] - counts[index])) / counts[index]
        start, last = int(edges[index]), int(edges[index + 1]) - 1
        found.append(start + (last - start) * min(max(inside, 0.0), 1.0))
    return found


def by_doubling(lengths: Sequence[float]) -> list[tuple[float, float, float]]:
    """Return (start, end, count) for each doubling of the length, from the first to the last that is not empty.

    `start` and `end` are logarithms to base 2: the lengths in [2**start, 2**end) are `count` documents, or tokens.
    """
    counts = np.zeros(64)
    starts = np.log2(np.maximum(1, bin_edges(len(lengths))[:-1])).astype(np.int64)
    np.add.at(counts, starts, np.asarray(lengths, dtype=np.float64))
    filled = np.flatnonzero(counts)
    return [(float(k), k + 1.0, float(counts[k])) for k in range(filled[0], filled[-1] + 1)] if len(filled) else []


def unlike_shares(splits: Mapping[str, DocumentCounts]) -> dict[str, tuple[float, float]]:
    """Return the splits whose share of the tokens is more than twice or less than half of that of the documents.

    Returns (share of the documents, share of the tokens) of each; a split of fewer than 10 documents says nothing.
    """
    total = total_of(splits.values())
    shares = {
        name: (counts.documents / total.documents, counts.tokens / total.tokens)
        for name, counts in splits.items()
        if counts.documents >= _MIN_DOCUMENTS
    }
    return {name: pair for name, pair in shares.items() if max(pair) > 2 * min(pair)}
