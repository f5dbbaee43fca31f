"""Two versions are compared as multisets of (text, split), whatever their order, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.simulated_documents import expected_counts, simulated_documents
from tests.counts import count
from tokenloom.storage.comparison import FATES, ROW, Documents, Fates, Rows, Tally, compare

Document = tuple[int, str, str, int]  # text, split, source, tokens


def made_documents(
    documents: Sequence[Document],
    key_seed: int | None,
    batch_rows: int,
    splits: Sequence[str],
    input_sources: Sequence[str] = ("web", "books"),
    masked_sources: Sequence[str] = ("web", "books"),
) -> Documents:
    """Return a version of a few documents, read in small batches.

    A text is a small number. The classes of its tokens depend on its source; those of other sources have no mask.
    """

    def batches(split: int) -> Iterator[Rows]:
        rows = np.zeros(len(documents), ROW)
        for i, (text, name, source, num_tokens) in enumerate(documents):
            content = (text // 3 * _HIGH_STEP, text % 3)  # several contents share a high half, and a key
            key = text // 2 * _KEY_STEP if key_seed is not None else i * 7919 % 31
            classes = len(source) if source in masked_sources else 0
            rows[i] = (content, key, i, classes, num_tokens, input_sources.index(source), 0, splits.index(name))
        rows = rows[rows["split"] == split]
        rows = rows[np.argsort(rows["key"], kind="stable")]
        for start in range(0, len(rows), batch_rows):
            yield rows[start : start + batch_rows]

    return Documents(splits, input_sources, key_seed, len(documents), batches)


_HIGH_STEP = 2**61  # so that contents are in many parts
_KEY_STEP = 2**60  # and keys, too
_SPLITS = ("train", "validation", "test")
_SOURCES = ("web", "books")


def _documents(unique: bool) -> st.SearchStrategy[list[Document]]:
    text = st.integers(0, 20)
    item = st.tuples(text, st.sampled_from(_SPLITS), st.sampled_from(_SOURCES), st.integers(1, 9))
    return st.lists(item, max_size=40, unique_by=(lambda one: one[0]) if unique else None)


def compared(old: Documents, new: Documents, part_rows: int) -> tuple[list[Fates], Tally]:
    """Return what became of the documents; check that all rows were read once and counted."""
    tally, num_read = Tally(old, new), 0

    def advance(num_rows: int) -> None:
        nonlocal num_read
        num_read += num_rows

    pieces = list(compare(old, new, advance, part_rows))
    for fates in pieces:
        tally.add(fates)
    assert num_read == old.num_documents + new.num_documents
    return pieces, tally


def expected(old: Sequence[Document], new: Sequence[Document]) -> dict[str, Counter[int]]:
    """Return how many documents of each text have each fate, by definition."""
    found: dict[str, Counter[int]] = {fate: Counter() for fate in FATES}
    before, after = (Counter((text, split) for text, split, _, _ in side) for side in (old, new))
    for text in {text for text, _ in (*before, *after)}:
        kept = sum(min(before[text, split], after[text, split]) for split in _SPLITS)
        num_before, num_after = (sum(side[text, split] for split in _SPLITS) for side in (before, after))
        shared = min(num_before, num_after)
        counts = {"kept": kept, "moved": shared - kept, "added": num_after - shared, "removed": num_before - shared}
        for fate, number in counts.items():
            found[fate] += Counter({text: number})
    return found


def texts(rows: Rows) -> list[int]:
    high, low = rows["content"].T
    found: list[int] = (high // _HIGH_STEP * 3 + low).tolist()
    return found


def check(
    before: Sequence[Document], after: Sequence[Document], old: Documents, new: Documents, part_rows: int = 1
) -> Rows:
    """Check a comparison against the definition; return the documents with other classes."""
    pieces, tally = compared(old, new, part_rows)
    listed = {"removed": before, "moved_from": before, "added": after, "kept": after, "moved": after}
    rows = {name: np.concatenate([getattr(fates, name) for fates in pieces]) for name in Fates._fields}
    assert {fate: Counter(texts(rows[fate])) for fate in FATES} == expected(before, after)
    assert texts(rows["moved"]) == texts(rows["moved_from"])
    for name, side in (("removed", old), ("moved_from", old), ("added", new), ("kept", new), ("moved", new)):
        assert len(set(rows[name]["row"].tolist())) == len(rows[name])
        for row in rows[name]:
            document = listed[name][int(row["row"])]
            assert document[3] == row["num_tokens"]
            assert side.splits[row["split"]] == document[1]
    moves = Counter(
        (old.splits[a], new.splits[b])
        for a, b in zip(rows["moved_from"]["split"].tolist(), rows["moved"]["split"].tolist(), strict=True)
    )
    assert all(before != after for before, after in moves)
    names = tally.splits
    counted = {(names[i], names[j]): n for (i, j), n in np.ndenumerate(tally.moves[:, :, 0]) if n}
    assert counted == dict(moves)
    for i, fate in enumerate(FATES):
        for j, source in enumerate(tally.sources):
            side = old if fate == "removed" else new
            found = [row for row in rows[fate] if side.input_sources[row["input"]] == source]
            assert tally.by_source[i, j].tolist() == [len(found), sum(int(row["num_tokens"]) for row in found)]
    assert tally.num_remasked == len(rows["remasked"])
    return rows["remasked"]


@settings(max_examples=count(80, 5000), deadline=None)
@given(
    old=_documents(unique=True),
    new=_documents(unique=True),
    batches=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    order=st.permutations(_SPLITS),
    part_rows=st.integers(1, 30),
)
def test_versions_of_one_order_are_compared_as_the_definition_says(
    old: list[Document], new: list[Document], batches: tuple[int, int], order: list[str], part_rows: int
) -> None:
    made = made_documents(old, 7, batches[0], _SPLITS), made_documents(new, 7, batches[1], order, ("books", "web"))
    before = {text: (source, num_tokens) for text, _, source, num_tokens in old}
    other = {"web": "books", "books": "web"}
    others = [text for text, _, source, num_tokens in new if before.get(text) == (other[source], num_tokens)]
    assert sorted(texts(check(old, new, *made, part_rows))) == sorted(others)


def test_a_version_without_masks_has_no_document_with_other_classes() -> None:
    old, new = ([(1, "train", source, 3)] for source in ("web", "books"))
    for masked, num_remasked in ((("web", "books"), 1), (("web",), 0)):
        a, b = (made_documents(side, 7, 7, ("train",), masked_sources=masked) for side in (old, new))
        assert len(check(old, new, a, b)) == num_remasked


@settings(max_examples=count(80, 5000), deadline=None)
@given(
    old=_documents(unique=False),
    new=_documents(unique=False),
    seeds=st.sampled_from([(None, None), (1, 2), (None, 1)]),
    part_rows=st.integers(1, 30),
)
def test_versions_of_other_orders_are_compared_as_multisets(
    old: list[Document], new: list[Document], seeds: tuple[int | None, int | None], part_rows: int
) -> None:
    a, b = (made_documents(side, seed, 4, _SPLITS) for side, seed in zip((old, new), seeds, strict=True))
    check(old, new, a, b, part_rows)


@pytest.mark.parametrize("key_seed", [0, None])
def test_memory_does_not_grow_with_the_versions(key_seed: int | None) -> None:
    peaks = []
    for num_documents in (300_000, count(600_000, 6_000_000)):
        old, new = (simulated_documents(num_documents, is_new, key_seed) for is_new in (False, True))
        tally = Tally(old, new)
        tracemalloc.start()
        for fates in compare(old, new, lambda _: None, part_rows=2**17):
            tally.add(fates)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        found = dict(zip(FATES, tally.by_source[:, :, 0].sum(axis=1).tolist(), strict=True))
        assert found == expected_counts(num_documents)
    assert peaks[1] < 1.25 * peaks[0]  # parts end anywhere in a batch; all rows would be twice as much
    assert peaks[1] < 200e6
