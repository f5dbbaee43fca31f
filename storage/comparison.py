"""Compare two versions: by content, which documents were kept, moved, added and removed; their specs and inputs.

A document of A and one of B match if their texts are equal. With kept duplicates, a text that A has n times and B m
times has min(n, m) matches: first as many as possible within a split, these are kept, then across splits, these moved.
The other documents of A were removed, those of B were added. Copies of a text are interchangeable: those at the end of
the order stay without a match.

Both versions are read part by part, so that all documents of a text come together. The shards of a split are
consecutive ranges of keys, so the tables of a split, one after the other, are sorted by key. If a key depends only on
seed and content, and the seeds are equal, both versions have the same order: a part is a range of keys, and each table
is read once. Otherwise (other seeds, or duplicates are kept) it is a range of contents, and both versions are read once
for each part. A part has a bounded size, but for the copies of the most frequent text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError
from tokenloom.storage.formats.arrays import Int64s, UInt64s
from tokenloom.storage.formats.document_table import DocumentColumns
from tokenloom.storage.formats.keys import equal_part, order_keys
from tokenloom.storage.formats.manifest import InputEntry, Manifest
from tokenloom.storage.formats.records import fields_of
from tokenloom.storage.versions.document_tables import VersionTables

FATES = ("added", "removed", "kept", "moved")
REMASKED = "remasked"
_READ_BYTES = 4 * 2**20  # one request reads this much; a batch of a table has 3 MB
_PART_ROWS = 2**22  # rows of both versions in a part, about 220 MB

Rows = NDArray[np.void]
Advance = Callable[[int], None]
ROW = np.dtype(
    [
        ("content", "<u8", (2,)),  # high and low half
        ("key", "<u8"),
        ("row", "<u8"),  # counted in the input file
        ("classes", "<u8"),  # a hash of those of its tokens, 0 in a version without masks
        ("num_tokens", "<u4"),
        ("input", "<u4"),  # index into the version's inputs
        ("shard", "<u4"),  # counted in its split
        ("split", "<u4"),  # index into the version's splits
    ]
)
_NO_ROWS: Rows = np.empty(0, ROW)


@dataclass(frozen=True)
class Documents:
    """All documents of a version.

    `splits` are the names of the splits, `input_sources` the source of each input; rows name both by index. `key_seed`
    is the seed, if keys depend on nothing but it and the content, None if a content has several. `num_documents` are in
    all splits. `batches` yields the documents of a split, by its index, sorted by key, some at a time.
    """

    splits: Sequence[str]
    input_sources: Sequence[str]
    key_seed: int | None
    num_documents: int
    batches: Callable[[int], Iterator[Rows]]


def version_documents(tables: VersionTables) -> Documents:
    """Return the documents of a published version.

    Raises FormatError or StoreError, also later, if a table is damaged or can't be read.
    """
    return Documents(
        list(tables.manifest.splits),
        [entry.source for entry in tables.inputs],
        tables.key_seed,
        tables.manifest.num_documents,
        partial(_batches, tables),
    )


def _batches(tables: VersionTables, split: int) -> Iterator[Rows]:
    """Yield the documents of a split, up to 65,536 at a time; raises FormatError if rows would be counted wrongly."""
    last_key, seed = 0, tables.key_seed
    for number, entry in enumerate(list(tables.manifest.splits.values())[split].shards):
        table = tables.open(entry, _READ_BYTES)
        for columns in table.batches():
            keys = columns.key
            if int(keys[0]) < last_key or (keys[1:] < keys[:-1]).any():
                raise FormatError(f"{table.place}: its rows are not sorted by key; restore it")
            if seed is not None and (order_keys(columns.content, seed) != keys).any():
                raise FormatError(f"{table.place}: its keys are not those of its contents; restore it")
            last_key = int(keys[-1])
            yield _rows(columns, number, split)


def _rows(columns: DocumentColumns, shard: int, split: int) -> Rows:
    rows: Rows = np.empty(columns.num_rows, ROW)
    for name in ("content", "key", "row", "num_tokens", "input"):
        rows[name] = getattr(columns, name)
    rows["shard"], rows["split"] = shard, split
    rows["classes"] = 0 if columns.classes is None else columns.classes
    return rows


class Fates(NamedTuple):
    """The fates of some documents: `removed` and `moved_from` are rows of A, the others of B.

    Row i of `moved_from` became row i of `moved`. `remasked` are those of `kept` and `moved` that have as many tokens
    as before, with other classes.
    """

    added: Rows
    removed: Rows
    kept: Rows
    moved: Rows
    moved_from: Rows
    remasked: Rows


def compare(a: Documents, b: Documents, advance: Advance, part_rows: int = _PART_ROWS) -> Iterator[Fates]:
    """Yield the fates of all documents from A to B, some texts at a time; every document comes once.

    Args:
        a: the documents of the old version.
        b: those of the new one.
        advance: called with the number of rows that were read.
        part_rows: rows of both versions that are in memory at once, about.
    """
    have_one_order = a.key_seed is not None and a.key_seed == b.key_seed
    num_parts = max(1, -(-(a.num_documents + b.num_documents) // part_rows))
    read = _by_key if have_one_order else _by_content
    names = sorted({*a.splits, *b.splits})
    splits_a, splits_b = _numbers_of(a.splits, names), _numbers_of(b.splits, names)
    for rows_a, rows_b in zip(read(a, num_parts, advance), read(b, num_parts, advance), strict=True):
        yield _match(rows_a, rows_b, splits_a, splits_b)


class Tally:
    """Counts documents and tokens by fate, by source, and by the splits between which they moved.

    Documents that were removed count with their tokens and source in A, all others with those in B.
    """

    def __init__(self, a: Documents, b: Documents) -> None:
        self.sources = sorted({*a.input_sources, *b.input_sources})
        self.splits = sorted({*a.splits, *b.splits})
        self._sources_a, self._sources_b = (_numbers_of(side.input_sources, self.sources) for side in (a, b))
        self._splits_a, self._splits_b = (_numbers_of(side.splits, self.splits) for side in (a, b))
        self.by_source = np.zeros((len(FATES), len(self.sources), 2), np.int64)  # documents and tokens
        self.num_remasked = 0
        self.moves = np.zeros((len(self.splits), len(self.splits), 2), np.int64)  # [split before, split after]

    def add(self, fates: Fates) -> None:
        """Count documents."""
        for number, name in enumerate(FATES):
            rows: Rows = getattr(fates, name)
            sources = self._sources_a if name == "removed" else self._sources_b
            self.by_source[number] += _sums(sources[rows["input"]], rows, len(self.sources))
        self.num_remasked += len(fates.remasked)
        if len(fates.moved):
            count = len(self.splits)
            old, new = self._splits_a[fates.moved_from["split"]], self._splits_b[fates.moved["split"]]
            self.moves += _sums(old * np.uint64(count) + new, fates.moved, count**2).reshape(count, count, 2)


def _numbers_of(names: Sequence[str], all_names: Sequence[str]) -> UInt64s:
    """Return the position of each name in `all_names`."""
    numbers = {name: number for number, name in enumerate(all_names)}
    return np.array([numbers[name] for name in names], np.uint64)


def _sums(labels: UInt64s, rows: Rows, count: int) -> Int64s:
    """Return (count, 2): the documents and the tokens of each label in [0, count)."""
    labels = labels.astype(np.intp)
    tokens = np.bincount(labels, rows["num_tokens"], count)  # exact, since sums stay below 2**53
    return np.stack([np.bincount(labels, minlength=count), tokens.astype(np.int64)], axis=1)


def _match(a: Rows, b: Rows, splits_a: UInt64s, splits_b: UInt64s) -> Fates:
    """Return the fates of all documents of A and of B with certain contents.

    Args:
        a: the documents of A, in the order of the version.
        b: those of B.
        splits_a: a number for each split of A, equal to that of B's split of the same name.
        splits_b: the same for B.
    """
    splits = np.concatenate((splits_a[a["split"]], splits_b[b["split"]]))
    content = np.concatenate((a["content"], b["content"]))
    kept_a, kept_b = _pair((splits, content[:, 1], content[:, 0]), len(a))
    rest_a, rest_b = np.delete(np.arange(len(a)), kept_a), np.delete(np.arange(len(b)), kept_b)
    content = np.concatenate((a["content"][rest_a], b["content"][rest_b]))
    moved_a, moved_b = _pair((content[:, 1], content[:, 0]), len(rest_a))
    before, after = a[np.append(kept_a, rest_a[moved_a])], b[np.append(kept_b, rest_b[moved_b])]
    has_other_classes = (before["classes"] != after["classes"]) & (before["num_tokens"] == after["num_tokens"])
    has_other_classes &= (before["classes"] > 0) & (after["classes"] > 0)  # both versions have masks
    return Fates(
        added=b[np.delete(rest_b, moved_b)],
        removed=a[np.delete(rest_a, moved_a)],
        kept=b[np.sort(kept_b)],
        moved=b[rest_b[moved_b]],
        moved_from=a[rest_a[moved_a]],
        remasked=after[has_other_classes],
    )


def _pair(words: Sequence[UInt64s], num_a: int) -> tuple[Int64s, Int64s]:
    """Return the (k,) positions in A and in B of the items that pair: the i-th copy in A with the i-th copy in B.

    Example: _pair([[7, 7, 5, 5, 7]], 2) -> ([0], [2]): of A = [7, 7] and B = [5, 5, 7]

    Args:
        words: (n,) arrays; items are equal if all their words are. Those of A come first.
        num_a: how many of the n items are of A.
    """
    order = np.lexsort(words)  # stable: among copies, those of A come first
    is_first = np.zeros(len(order), dtype=bool)  # whether an item is the first of its equals
    is_first[:1] = True
    for word in words:
        ordered = word[order]
        is_first[1:] |= ordered[1:] != ordered[:-1]
    starts, group = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    is_a = order < num_a
    num_of_a = np.add.reduceat(is_a, starts, dtype=np.int64)
    num_of_b = np.diff(starts, append=len(order)) - num_of_a
    rank = np.arange(len(order)) - starts[group]
    at = np.flatnonzero(is_a & (rank < num_of_b[group]))
    return order[at], order[at + num_of_a[group[at]]] - num_a


def _by_key(side: Documents, num_parts: int, advance: Advance) -> Iterator[Rows]:
    """Yield the documents of a version in parts: equally long ranges of keys.

    Args:
        side: the documents.
        num_parts: how many parts.
        advance: called with the number of rows that were read.
    """
    ends = [equal_part(part, num_parts)[1] for part in range(num_parts)]
    splits = [_cut(side.batches(split), ends, advance) for split in range(len(side.splits))]
    for _ in ends:
        yield _joined(list(map(next, splits)))


def _cut(batches: Iterator[Rows], ends: Sequence[int], advance: Advance) -> Iterator[Rows]:
    """Yield the documents of a split below each of these keys, which ascend, without those before."""
    rest = _NO_ROWS
    for end in ends:
        parts = [rest]
        while not len(parts[-1]) or int(parts[-1]["key"][-1]) < end:
            if (batch := next(batches, None)) is None:
                break
            advance(len(batch))
            parts.append(batch)
        rows = np.concatenate(parts)
        count = int(np.searchsorted(rows["key"], np.uint64(end - 1), side="right"))
        yield rows[:count]
        rest = rows[count:]


def _by_content(side: Documents, num_parts: int, advance: Advance) -> Iterator[Rows]:
    """Yield the documents of a version in parts, ranges of contents, reading all tables for each; as _by_key."""
    for part in range(num_parts):
        found = []
        for batch in chain.from_iterable(map(side.batches, range(len(side.splits)))):
            top = (batch["content"][:, 0] >> np.uint64(32)).astype(np.int64)  # in [0, 2**32)
            found.append(batch[top * num_parts >> 32 == part])
            advance(len(found[-1]))
        yield _joined(found)


def _joined(parts: Sequence[Rows]) -> Rows:
    return np.concatenate([_NO_ROWS, *parts])


# ---- specs, tokenizers and inputs


@dataclass(frozen=True)
class Change:
    """A difference: `kind` is "spec", "source", "tokenizer" or "input"; None on the side that does not have the key.

    A source that only one side has is one change of kind "source"; options of a shared source are of kind "spec".
    """

    kind: str
    key: str
    old: object
    new: object


def changes(a: Manifest, b: Manifest, inputs_a: Sequence[InputEntry], inputs_b: Sequence[InputEntry]) -> list[Change]:
    """Return the differences from A to B, sorted by key: spec, then sources, tokenizer and inputs."""
    sources_a, sources_b = _source_options(a), _source_options(b)
    shared = sources_a.keys() & sources_b.keys()
    return [
        *_differences("spec", _spec(a, shared), _spec(b, shared)),
        *(change for change in _differences("source", sources_a, sources_b) if change.key not in shared),
        *_differences("tokenizer", _tokenizer(a), _tokenizer(b)),
        *_differences("input", _fingerprints(inputs_a), _fingerprints(inputs_b)),
    ]


def _differences(kind: str, old: Mapping[str, object], new: Mapping[str, object]) -> list[Change]:
    keys = sorted({*old, *new})
    return [Change(kind, key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def _spec(manifest: Manifest, shared: Collection[str]) -> dict[str, object]:
    """Return the spec by dotted key; of the sources, their names, and the options of those that both sides have."""
    spec = {key: value for key, value in manifest.spec.items() if key not in ("dataset", "sources", "tokenizer")}
    sources = _source_options(manifest)
    options = [_flat(f"sources.{name}", sources[name]) for name in shared if sources[name]]
    return dict(chain(_flat("", spec | {"sources": list(sources)}), *options))


def _source_options(manifest: Manifest) -> dict[str, object]:
    """Return the options of each source by name; a store may hold a manifest that no build wrote."""
    found = manifest.spec.get("sources")
    items = [item for item in found if isinstance(item, dict) and "name" in item] if isinstance(found, list) else []
    return {str(item["name"]): {key: value for key, value in item.items() if key != "name"} for item in items}


def _tokenizer(manifest: Manifest) -> dict[str, object]:
    return {**dict(_flat("", manifest.tokenizer_definition)), **fields_of(manifest.tokenizer)}


def _fingerprints(inputs: Sequence[InputEntry]) -> dict[str, object]:
    return {f"{entry.source}: {entry.path}": entry.fingerprint for entry in inputs}


def _flat(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of nested objects."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else key, part)
    else:
        yield prefix, value
