"""Statistics of the documents of a version: how many, how long, from which source; measured while shards are written.

The histogram of lengths has a bin for each length below 8, and eight bins for each power of two above, so that its
edges are integers and two versions have the same ones: `length_bins([7, 8, 15, 16, 17, 18]) -> [7, 8, 15, 16, 16, 17]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import zip_longest
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import Int64s

Part = TypeVar("Part")
Empty = TypeVar("Empty")
_STEPS = 8  # bins for each power of two
_SHIFT = 3  # log2 of _STEPS


@dataclass(frozen=True, slots=True)
class DocumentCounts:
    """Documents, such as those of a source, and their tokens."""

    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class DocumentStatistics:
    """The documents of a shard or split: how many have a length in each bin, and what comes from each source.

    `lengths` ends with its last bin that is not empty. Lengths count tokens, with end-of-text. `classes` counts the
    tokens of each class, by its number; only of versions with conversations.
    """

    lengths: list[int] = field(default_factory=list)
    sources: dict[str, DocumentCounts] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChatCounts:
    """Counts of rendered conversations, before duplicates and excluded ones are dropped.

    `turns` are those of the assistant that may be learned; `ended_turns` of them end with a stop token that is learned.
    `without_target` conversations have no token that is learned; `dropped` more were left out for that.
    `doubled_bos` ones begin with two beginning-of-text tokens. Of `incomplete` ones the template leaves out tools, a
    call, or a message that has text beside its reasoning.
    """

    conversations: int = 0
    turns: int = 0
    ended_turns: int = 0
    without_target: int = 0
    dropped: int = 0
    doubled_bos: int = 0
    incomplete: int = 0

    def __add__(self, other: ChatCounts) -> ChatCounts:
        return added((self, other), self)


@dataclass(frozen=True, slots=True)
class EncodedCounts:
    """Counts of encoded documents of a source, before duplicates and excluded documents are dropped.

    `bytes` are those of its texts in UTF-8; `chat` counts what was rendered, None for a source of texts. `rows` were
    read, and `filtered` of them left out by a filter or a rule; the others that are no documents are quarantined.
    """

    documents: int
    tokens: int
    bytes: int
    chat: ChatCounts | None = None
    rows: int = 0
    filtered: int = 0


@dataclass(frozen=True, slots=True)
class MarkCounts:
    """What marks make of documents, before duplicates: those that stay by split, with their further `copies`.

    `removed` counts the documents that each list dropped, and the expressions "keep" and "repeat"; "excluded" are those
    of documents.exclude. `values` says how many documents have each value of a mark, numbers rounded to two digits;
    `found`, how many keys of each file of marks a document has, once for each spill.
    """

    splits: dict[str, DocumentCounts]
    copies: DocumentCounts
    removed: dict[str, DocumentCounts]
    values: dict[str, dict[str, int]]
    found: dict[str, int] = field(default_factory=dict)


class DocumentCounter:
    """Measures documents batch by batch.

    Args:
        sources: the names of the sources, which documents name by index.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = list(sources)
        self._lengths: list[int] = []
        self._documents, self._tokens = np.zeros((2, len(sources)), np.int64)

    def add(self, num_tokens: NDArray[np.uint32], source_index: NDArray[np.intp]) -> None:
        """Count n documents; both arrays are (n,)."""
        self._lengths = added([self._lengths, count_lengths(num_tokens)], [])
        num_sources = len(self._sources)
        self._documents += np.bincount(source_index, minlength=num_sources)
        # Sums of floats, which are exact below 2**53.
        self._tokens += np.bincount(source_index, num_tokens, num_sources).astype(np.int64)

    def statistics(self, classes: dict[str, int]) -> DocumentStatistics:
        """Return the statistics with these classes; a source without a document is left out."""
        counts = zip(self._sources, self._documents.tolist(), self._tokens.tolist(), strict=True)
        sources = {name: DocumentCounts(*found) for name, *found in counts if found[0]}
        return DocumentStatistics(self._lengths, sources, classes)


def added(parts: Iterable[Part | None], empty: Empty) -> Part | Empty:
    """Return the sum of counts: of records by field, of objects by key, of lists by position.

    Example: added([{"a": [1]}, {"a": [2, 5], "b": [3]}], {}) -> {"a": [3, 5], "b": [3]}

    Args:
        parts: the counts; None counts nothing.
        empty: returned if there are none.
    """
    given: list[Any] = [part for part in parts if part is not None]  # type: ignore[explicit-any]
    if not given:
        return empty
    first = given[0]
    if is_dataclass(first):
        columns = ([getattr(part, field.name) for part in given] for field in fields(first))
        return cast(Part, type(first)(*(added(column, None) for column in columns)))  # type: ignore[misc]
    if isinstance(first, dict):
        return cast(Part, {key: added((part.get(key) for part in given), None) for key in sorted(set().union(*given))})
    return cast(Part, list(map(sum, zip_longest(*given, fillvalue=0))) if isinstance(first, list) else sum(given))


def length_bins(lengths: NDArray[np.uint32]) -> Int64s:
    """Return the bin of each of (n,) lengths."""
    values = lengths.astype(np.int64)
    exponent = np.frexp(np.maximum(values, 1).astype(np.float64))[1] - 1  # floor(log2(length)): exact below 2**53
    shift = np.maximum(exponent - _SHIFT, 0)
    return np.where(values < _STEPS, values, _STEPS * shift + (values >> shift))


def bin_edges(num_bins: int) -> Int64s:
    """Return the (num_bins + 1,) edges of the first bins: bin k holds the lengths [edges[k], edges[k + 1])."""
    bins = np.arange(num_bins + 1)
    shift = np.maximum(bins // _STEPS - 1, 0)
    return np.where(bins < 2 * _STEPS, bins, (bins - _STEPS * shift) << shift)


def count_lengths(lengths: NDArray[np.uint32]) -> list[int]:
    """Return how many of (n,) lengths are in each bin."""
    if lengths.max(initial=0) < len(lengths):  # usual, and ten times as fast as a bin for each document
        by_length = np.bincount(lengths)
        counts = np.bincount(length_bins(np.arange(len(by_length), dtype=np.uint32)), by_length).astype(np.int64)
    else:
        counts = np.bincount(length_bins(lengths))
    found: list[int] = counts.tolist()
    return found
