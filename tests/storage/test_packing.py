"""Packing: the properties of each packing for any document lengths, and golden plans."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tokenloom.storage.packing.packings import PACKINGS, PackingShares, packing_named, shares_of

Pieces = list[list[tuple[int, int]]]  # of each sample, (start, end) of each piece in the shard

LENGTHS = st.lists(st.integers(0, 40), max_size=40)
SEQ_LENS = st.integers(1, 20)


def offsets_of(lengths: list[int]) -> NDArray[np.uint64]:
    return np.cumsum([0, *lengths]).astype(np.uint64)


def plan(packing: str, seq_len: int, lengths: list[int]) -> Pieces:
    """Return the pieces of all samples; check that the plan gives the same for a single sample as for many."""
    made = packing_named(packing).plan(seq_len, offsets_of(lengths))
    row_offsets, starts, sizes = made.pieces(np.arange(len(made)))
    assert row_offsets.dtype == starts.dtype == sizes.dtype == np.int64
    assert len(row_offsets) == len(made) + 1
    ends = (starts + sizes).tolist()
    found = [
        list(zip(starts.tolist()[a:b], ends[a:b], strict=True))
        for a, b in np.stack([row_offsets[:-1], row_offsets[1:]], 1)
    ]
    for row in {0, len(made) // 2, len(made) - 1} & set(range(len(made))):
        _, one_start, one_size = made.pieces(np.array([row]))
        assert list(zip(one_start.tolist(), (one_start + one_size).tolist(), strict=True)) == found[row]
    return found


def chunks_of(start: int, length: int, seq_len: int) -> tuple[Pieces, list[tuple[int, int]]]:
    """Return the full chunks of a document, each a sample, and its remainder, by definition."""
    full = [[(start + at, start + at + seq_len + 1)] for at in range(0, length - seq_len, seq_len)]
    rest = (start + len(full) * seq_len, start + length)
    is_covered = bool(full) and rest[1] - rest[0] == 1
    return full, [rest] if length and not is_covered else []


def naive_best_fit(sizes: list[int], capacity: int) -> list[list[int]]:
    """Return the items of each bin, placed one by one by comparing every bin."""
    bins: list[list[int]] = []
    state: list[tuple[int, int]] = []  # of each bin: its room, the time from which it has had it
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    for time, item in enumerate(order):
        fitting = [(room, since, b) for b, (room, since) in enumerate(state) if room >= sizes[item]]
        if fitting:
            room, _, chosen = min(fitting)
        else:
            room, chosen = capacity, len(bins)
            bins.append([])
            state.append((capacity, time))
        bins[chosen].append(item)
        state[chosen] = (room - sizes[item], time)
    return bins


def concat(seq_len: int, lengths: list[int]) -> Pieces:
    return [[(at, at + seq_len + 1)] for at in range(0, sum(lengths) - seq_len, seq_len)]


def cut(seq_len: int, lengths: list[int]) -> tuple[Pieces, list[tuple[int, int]]]:
    """Return the full chunks of all documents, and their remainders."""
    full: Pieces = []
    rests: list[tuple[int, int]] = []
    for start, length in zip(offsets_of(lengths).tolist(), lengths, strict=False):
        chunks, rest = chunks_of(start, length, seq_len)
        full += chunks
        rests += rest
    return full, rests


def document(seq_len: int, lengths: list[int]) -> Pieces:
    return cut(seq_len, lengths)[0]


def document_padded(seq_len: int, lengths: list[int]) -> Pieces:
    full, rests = cut(seq_len, lengths)
    return sorted([*full, *([(a, b)] for a, b in rests if b - a > 1)])


def best_fit(seq_len: int, lengths: list[int], multiple: int = 1) -> Pieces:
    full, rests = cut(seq_len, lengths)
    bins = naive_best_fit(taken(rests, seq_len, multiple), seq_len + 1)
    return sorted([*full, *([rests[i] for i in sorted(items)] for items in bins)])


def taken(pieces: list[tuple[int, int]], seq_len: int, multiple: int) -> list[int]:
    """Return how much of a sample each piece takes: full chunks all of it, others the next multiple."""
    return [b - a if b - a > seq_len else math.ceil((b - a) / multiple) * multiple for a, b in pieces]


def best_fit_drop(seq_len: int, lengths: list[int], multiple: int = 1) -> Pieces:
    return best_fit_of([length if length <= seq_len + 1 else 0 for length in lengths], seq_len, lengths, multiple)


def best_fit_keep_start(seq_len: int, lengths: list[int], multiple: int = 1) -> Pieces:
    return best_fit_of([min(length, seq_len + 1) for length in lengths], seq_len, lengths, multiple)


def best_fit_of(kept: list[int], seq_len: int, lengths: list[int], multiple: int) -> Pieces:
    """Return the samples if this many tokens are kept of each document, none of which is cut."""
    starts = offsets_of(lengths).tolist()
    items = [(start, start + n) for start, n in zip(starts, kept, strict=False) if n]
    bins = naive_best_fit(taken(items, seq_len, multiple), seq_len + 1)
    return sorted([items[i] for i in sorted(chosen)] for chosen in bins)


DEFINITIONS: dict[str, Callable[..., Pieces]] = {
    "concat": concat,
    "document": document,
    "document_padded": document_padded,
    "best_fit": best_fit,
    "best_fit_drop": best_fit_drop,
    "best_fit_keep_start": best_fit_keep_start,
}


def expected(packing: str, seq_len: int, lengths: list[int]) -> Pieces:
    """Return the samples by definition, in the order of their first token."""
    base, _, multiple = packing.partition("_pad")
    if multiple.isdecimal():
        return DEFINITIONS[base](seq_len, lengths, int(multiple))
    return DEFINITIONS[packing](seq_len, lengths)


@pytest.mark.parametrize("packing", PACKINGS)
@given(lengths=LENGTHS, seq_len=SEQ_LENS)
def test_samples_are_those_of_the_definition(packing: str, lengths: list[int], seq_len: int) -> None:
    samples = plan(packing, seq_len, lengths)
    assert samples == expected(packing, seq_len, lengths)
    assert len(samples) == packing_named(packing).count(seq_len, offsets_of(lengths))


@given(
    name=st.sampled_from([name for name in PACKINGS if name.startswith("best_fit")]),
    lengths=LENGTHS,
    multiple=st.integers(2, 9),
    times=st.integers(1, 5),
)
def test_padded_documents_are_packed_by_the_multiples_that_they_take(
    name: str, lengths: list[int], multiple: int, times: int
) -> None:
    packing, seq_len = f"{name}_pad{multiple}", multiple * times
    samples = plan(packing, seq_len, lengths)
    assert samples == expected(packing, seq_len, lengths)
    assert len(samples) == packing_named(packing).count(seq_len, offsets_of(lengths))
    for pieces in samples:
        sizes = taken(pieces, seq_len, multiple)
        assert sizes == [seq_len + 1] or sum(sizes) <= seq_len
    filled = sum(end - start for pieces in samples for start, end in pieces)
    shares = shares_of(packing_named(packing), seq_len, offsets_of(lengths))
    assert shares.padding_tokens == len(samples) * (seq_len + 1) - filled


@pytest.mark.parametrize("packing", PACKINGS)
@given(lengths=LENGTHS, seq_len=SEQ_LENS)
def test_shares_equal_those_counted_token_by_token(packing: str, lengths: list[int], seq_len: int) -> None:
    samples = plan(packing, seq_len, lengths)
    held = [{token for start, end in sample for token in range(start, end)} for sample in samples]
    cut = 0
    for start, length in zip(offsets_of(lengths).tolist(), lengths, strict=False):
        document = set(range(start, start + length))
        cut += bool(document) and not any(document <= sample for sample in held)
    slots = len(samples) * (seq_len + 1)
    filled = sum(len(sample) for sample in held)
    assert shares_of(packing_named(packing), seq_len, offsets_of(lengths)) == PackingShares(
        num_samples=len(samples),
        padding_tokens=slots - filled,
        slot_tokens=slots,
        cut_documents=cut,
        num_documents=len(lengths),
    )


def test_shares_add_up_over_shards() -> None:
    total = PackingShares(1, 2, 10, 1, 4) + PackingShares(1, 3, 10, 1, 1)
    assert total == PackingShares(2, 5, 20, 2, 5)
    assert (total.padding_share, total.cut_share) == (0.25, 0.4)
    empty = PackingShares(0, 0, 0, 0, 0)
    assert (empty.padding_share, empty.cut_share) == (0, 0)


# Changing these numbers would change the samples of every resumed reader, and contradict the counts in manifests.
GOLDEN: dict[str, Pieces] = {
    "concat": [[(0, 9)], [(8, 17)], [(16, 25)], [(24, 33)], [(32, 41)]],
    "document": [[(5, 14)], [(13, 22)], [(27, 36)]],
    "document_padded": [[(0, 5)], [(5, 14)], [(13, 22)], [(21, 23)], [(23, 26)], [(27, 36)], [(36, 38)], [(38, 43)]],
    "best_fit": [[(0, 5), (23, 26), (26, 27)], [(5, 14)], [(13, 22)], [(21, 23), (36, 38), (38, 43)], [(27, 36)]],
}


@pytest.mark.parametrize("packing", GOLDEN)
def test_golden_samples(packing: str) -> None:
    lengths = [5, 18, 3, 1, 9, 2, 5]
    assert plan(packing, 8, lengths) == GOLDEN[packing]
    offsets = offsets_of(lengths)
    offsets.flags.writeable = False  # as of a mapped shard
    assert packing_named(packing).count(8, offsets) == len(GOLDEN[packing])


def test_golden_counts_of_many_documents() -> None:
    lengths = (np.arange(5000, dtype=np.int64) * 7919) % 3001 + 1
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
    counts = {p: [packing_named(p).count(t, offsets) for t in (128, 2048)] for p in GOLDEN}
    assert counts == {
        "concat": [58638, 3664],
        "document": [56148, 1588],
        "document_padded": [61107, 6584],
        "best_fit": [58620, 3664],
    }
    made = packing_named("best_fit").plan(2048, offsets)
    starts = made.pieces(np.arange(len(made)))[1]
    assert xxhash.xxh3_64_hexdigest(starts.tobytes()) == "194bdd791c8ecf17"


def test_samples_can_be_longer_than_the_shard() -> None:
    longest = 2**31 - 1
    assert plan("best_fit", longest, [5, 3, 1]) == [[(0, 5), (5, 8), (8, 9)]]
    assert plan("document_padded", longest, [5, 3, 1]) == [[(0, 5)], [(5, 8)]]
    assert plan("document", longest, [5, 3, 1]) == plan("concat", longest, [5, 3, 1]) == []


def test_overlong_is_another_name_of_best_fit() -> None:
    assert packing_named("best_fit").name == packing_named("best_fit", "split").name == "best_fit"
    assert packing_named("best_fit", "drop").name == packing_named("best_fit_drop", "drop").name == "best_fit_drop"
    assert packing_named("best_fit", "keep_start").name == "best_fit_keep_start"
    for packing in ("concat", "document_padded", "best_fit_keep_start"):
        with pytest.raises(ValueError, match=f"overlong='drop' is of the packing best_fit, not of '{packing}'"):
            packing_named(packing, "drop")
    with pytest.raises(ValueError, match="overlong: one of split, drop, keep_start, not 'cut'"):
        packing_named("best_fit", "cut")
    with pytest.raises(ValueError, match=r"packing: one of concat, document, document_padded, best_fit.*not 'greedy'"):
        packing_named("greedy")


def test_shards_of_over_two_to_the_32_tokens_are_planned_by_the_same_definition() -> None:
    lengths = [2**31 + 7, 3, 2**30 + 1, 2**32, 2**29, 1, 2**30 - 5]
    assert plan("best_fit", 2**30, lengths) == expected("best_fit", 2**30, lengths)
