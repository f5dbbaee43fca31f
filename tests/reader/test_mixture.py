"""Mixtures: shares in every prefix, exact and rounded weights, stages, the streams of members, and refusals."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.builders.synthetic_store import random_documents, write_store
from tests.counts import count
from tests.reader.oracle import assert_same, copied, make_store
from tokenloom.errors import TokenloomError
from tokenloom.reader.batch import segments
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import EvaluationPass, TokenLoader
from tokenloom.reader.mixture import Mixture
from tokenloom.reader.order import MAX_PERIOD, Schedule, turn_table, whole_weights
from tokenloom.storage.formats.records import sign

_RUN = settings(max_examples=count(60, 1000), deadline=None)
_WEIGHTS = st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(any)


@pytest.fixture(scope="module")
def sets(folder: Path) -> dict[str, TokenDataset]:
    """Three datasets; a test reads the smallest for several epochs."""
    references = {
        "large": make_store(folder / "mix_large", (900, 700), seed=1),
        "small": make_store(folder / "mix_small", (150,), seed=2),
        "third": make_store(folder / "mix_third", (400, 300), seed=3),
    }
    return {name: TokenDataset(reference, seq_len=16) for name, reference in references.items()}


def counts_of(turns: NDArray[np.int64], num_members: int) -> NDArray[np.int64]:
    """Return how many of the first k turns each member has, for every k: (n + 1, num_members)."""
    is_member = turns[:, None] == np.arange(num_members)
    return np.concatenate([np.zeros((1, num_members), dtype=np.int64), np.cumsum(is_member, axis=0)])


# ---- weights


@_RUN
@given(_WEIGHTS, st.integers(0, 3))
def test_every_prefix_is_within_one_sample_of_the_weights(weights: list[int], periods: int) -> None:
    whole, total = whole_weights(weights), sum(weights)
    assert [Fraction(w, sum(whole)) for w in whole] == [Fraction(w, total) for w in weights]
    length = sum(whole) * (periods + 1)
    turns, _ = Schedule([(0, weights)]).turns(np.arange(length))
    counts = counts_of(turns, len(weights))
    off = counts * total - np.arange(length + 1)[:, None] * np.array(weights)  # multiplied by total: exact integers
    assert (np.abs(off) < total).all()
    assert not counts[-1][np.array(weights) == 0].any()
    assert not off[-1].any()  # after whole periods: exact


@_RUN
@given(_WEIGHTS, st.integers(0, 10**15))
def test_ordinals_count_the_turns_of_a_member_from_0_and_positions_can_come_in_any_order(
    weights: list[int], far: int
) -> None:
    schedule = Schedule([(0, weights)])
    turns, ordinals = schedule.turns(np.arange(300))
    seen = [0] * len(weights)
    for turn, ordinal in zip(turns.tolist(), ordinals.tolist(), strict=True):
        assert ordinal == seen[turn]
        seen[turn] += 1
    turns, ordinals = schedule.turns(np.arange(far, far + sum(weights)))
    before = [int(ordinals[turns == member][0]) for member in np.unique(turns)]
    assert sum(before) == far  # each earlier position was the turn of one member


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.7, 0.3], [7, 3]),
        ([7, 3], [7, 3]),
        ([70, 30, 0], [7, 3, 0]),
        ([0.1, 0.2, 0.3], [1, 2, 3]),
        ([1e-5, 1.0 - 1e-5], [1, 99_999]),
        ([5], [1]),
        ([0, 2.5], [0, 1]),
        ([99_999, 1], [99_999, 1]),
        ([1e300, 1e300], [1, 1]),
    ],
)
def test_ratios_with_a_period_of_up_to_100_000_are_exact(weights: list[float], expected: list[int]) -> None:
    assert whole_weights(weights) == expected


@_RUN
@given(st.lists(st.floats(1e-9, 1e9), min_size=2, max_size=40))
def test_other_ratios_are_rounded_to_100_000_samples_and_every_positive_weight_gets_some(weights: list[float]) -> None:
    whole = whole_weights(weights)
    assert sum(whole) <= MAX_PERIOD
    assert min(whole) >= 1
    exact = [Fraction(repr(weight)) for weight in weights]
    off = [abs(Fraction(w, sum(whole)) - x / sum(exact)) for w, x in zip(whole, exact, strict=True)]
    *others, most = sorted(range(len(weights)), key=off.__getitem__)  # the last makes up for the others
    assert all(off[i] <= Fraction(1, MAX_PERIOD) for i in others)
    assert off[most] <= Fraction(len(weights), MAX_PERIOD)
    if off[most] > Fraction(1, MAX_PERIOD):
        assert exact[most] / sum(exact) >= max(exact) / sum(exact) - Fraction(1, MAX_PERIOD)


@pytest.mark.parametrize("weights", [[49_999, 50_000], [33_331, 33_333, 33_335], [1, 99_998], [3, 99_991]])
def test_a_whole_period_near_the_limit_stays_within_one_sample(weights: list[int]) -> None:
    table = turn_table(weights)
    counts = counts_of(table.astype(np.int64), len(weights))
    off = counts * sum(weights) - np.arange(len(table) + 1)[:, None] * np.array(weights)
    assert (np.abs(off) < sum(weights)).all()
    assert counts[-1].tolist() == weights


def test_turns_are_pinned() -> None:
    # A state counts turns of these tables; with another table it would read other samples.
    assert turn_table([2, 1]).tolist() == [0, 0, 1]
    assert turn_table([7, 3]).tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 0, 1]
    assert turn_table([1, 2, 3, 0]).tolist() == [2, 1, 2, 0, 1, 2]
    assert turn_table([5, 5, 1]).tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 2]


@pytest.mark.parametrize("weights", [[-1, 2], [0, 0], [float("nan"), 1], [float("inf"), 1], []])
def test_weights_that_are_not_shares_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be finite, at least 0, and not all 0"):
        whole_weights(weights)


# ---- stages


@_RUN
@given(st.lists(st.tuples(st.integers(1, 90), st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any))))
def test_each_stage_keeps_its_weights_and_members_continue_where_they_were(stages: list[tuple[int, list[int]]]) -> None:
    later = np.cumsum([length for length, _ in stages]).tolist()
    schedule = Schedule([(0, [1, 1, 1]), *((start, w) for start, (_, w) in zip(later, stages, strict=True))])
    length = (later[-1] if later else 0) + 100
    turns, ordinals = schedule.turns(np.arange(length))
    counts = counts_of(turns, 3)
    assert ordinals.tolist() == counts[np.arange(length), turns].tolist()
    for start, end, weights in zip([0, *later], [*later, length], [[1, 1, 1], *(w for _, w in stages)], strict=True):
        off = (counts[start : end + 1] - counts[start]) * sum(weights)
        off -= np.arange(end - start + 1)[:, None] * np.array(weights)
        assert (np.abs(off) < sum(weights)).all()


def test_stages_that_do_not_ascend_or_name_others_are_refused(sets: dict[str, TokenDataset]) -> None:
    members = {"a": (sets["large"], 1), "b": (sets["small"], 1)}
    for starts in ([0], [5, 5], [9, 3]):
        with pytest.raises(ValueError, match="the stages of weights must start at 0 and ascend"):
            Mixture(members, [(start, {"a": 1, "b": 1}) for start in starts])
    with pytest.raises(ValueError, match=r"the stage from sample 5 names \['a', 'c'\], not \['a', 'b'\]"):
        Mixture(members, [(5, {"a": 1, "c": 1})])
    with pytest.raises(ValueError, match="at least one member"):
        Mixture({})


# ---- members


def test_the_samples_of_a_member_are_those_of_its_own_stream_in_order(sets: dict[str, TokenDataset]) -> None:
    weights = {"large": 3, "small": 2, "third": 1}
    later = {"large": 0, "small": 1, "third": 4}
    mixture = Mixture({name: (sets[name], weights[name]) for name in weights}, [(200, later)])
    turns, _ = mixture.schedule.turns(np.arange(400))
    loader = TokenLoader(mixture, 1, seed=6)
    alone = {name: TokenLoader(data, 1, seed=6) for name, data in sets.items()}
    for turn in turns.tolist():
        assert_same(next(loader), next(alone[list(weights)[turn]]))
    assert np.bincount(turns[:200]).tolist() == [100, 67, 33]
    assert len(sets["small"]) < 20  # so that several epochs were read
    assert np.bincount(turns[200:], minlength=3).tolist() == [0, 40, 160]
    for one in (loader, *alone.values()):
        one.close()


def test_a_mixture_is_endless(sets: dict[str, TokenDataset]) -> None:
    mixture = Mixture({"large": (sets["large"], 1)})
    with pytest.raises(ValueError, match="a mixture has no epochs: leave out num_epochs"):
        TokenLoader(mixture, 2, num_epochs=1)
    with pytest.raises(TypeError):
        len(TokenLoader(mixture, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seq_len": 17}, "must have the same seq_len: 'a' has 16, 'b' has 17"),
        ({"packing": "document"}, "must have the same packing: 'a' has concat, 'b' has document"),
        ({"labels": "same"}, "must have the same labels: 'a' has shifted, 'b' has same"),
        ({"fields": ("document_ids",), "mask_documents": False}, "must have the same fields"),
        ({"mask_documents": True}, "must have the same mask_documents: 'a' has False, 'b' has True"),
    ],
)
def test_members_that_differ_are_refused_and_both_are_named(
    sets: dict[str, TokenDataset], options: dict[str, object], message: str
) -> None:
    reference = sets["small"].reference
    second = TokenDataset(reference, **{"seq_len": 16, **options})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        Mixture({"a": (sets["large"], 1), "b": (second, 1)})


def test_members_of_different_tokenizers_are_refused(sets: dict[str, TokenDataset], tmp_path: Path) -> None:
    reference = write_store(tmp_path, [random_documents(300, 9.0, 1, 5000)], vocab_size=5000)
    version = json.loads(next(tmp_path.glob("data/versions/*/manifest.json")).read_text())
    version["tokenizer"]["fingerprint"] = "e" * 64
    del version["checksum"]
    Path(reference, "versions", version["version"], "manifest.json").write_bytes(sign(version))
    label = r"made \(made\), 5,000 ids, fingerprint "
    with pytest.raises(ValueError, match=f"same tokenizer: 'a' has {label}f{{8}}..., 'b' has {label}e{{8}}...; build"):
        Mixture({"a": (sets["large"], 1), "b": (TokenDataset(reference, seq_len=16), 1)})


@pytest.mark.parametrize("prefetch", [0, 4])
def test_the_field_member_says_which_dataset_each_sample_is_of(sets: dict[str, TokenDataset], prefetch: int) -> None:
    options: dict[str, Any] = {"seq_len": 16, "fields": ["member"]}
    marked = {name: TokenDataset(data.reference, **options) for name, data in sets.items()}
    weights = {"large": 3, "small": 2, "third": 1}
    mixture = Mixture({name: (marked[name], weights[name]) for name in weights})
    turns, _ = mixture.schedule.turns(np.arange(7 * 40))
    loader = TokenLoader(mixture, 7, prefetch=prefetch)
    plain = TokenLoader(Mixture({name: (sets[name], weights[name]) for name in weights}), 7)
    batches = [copied(next(loader)) for _ in range(40)]
    assert np.concatenate([batch.pop("member") for batch in batches]).tolist() == turns.tolist()
    for batch in batches:
        assert_same(batch, next(plain))  # labels too: the field does not mask any
    assert list(mixture.datasets) == list(weights)
    for one in (loader, plain):
        one.close()


def test_samples_without_a_mixture_have_the_member_0_and_padding_has_minus_1(sets: dict[str, TokenDataset]) -> None:
    data = TokenDataset(sets["small"].reference, seq_len=16, packing="document", fields=["member"])
    members = torch.cat([batch["member"] for batch in EvaluationPass(data, 4)])
    assert members.tolist() == [0] * len(data) + [-1] * (-len(data) % 4)
    assert "member" not in data[0]
    first = next(iter(EvaluationPass(data, 4)))
    assert [part["member"].tolist() for part in segments(first, 2)] == [[0] * 4] * 2


# ---- state


def test_a_state_names_members_and_weights_and_refuses_others(sets: dict[str, TokenDataset]) -> None:
    members = {"a": (sets["large"], 0.75), "b": (sets["small"], 0.25)}
    state = TokenLoader(Mixture(members, [(90, {"a": 1, "b": 1})]), 3).state_dict()
    TokenLoader(Mixture(members, [(90, {"a": 5, "b": 5})]), 3).load_state_dict(state)
    for stages, message in (
        ([(90, {"a": 1, "b": 2})], r"weights is .*\[90, \[1, 1\]\].* in the state, .*\[90, \[1, 2\]\].* in the loader"),
        ([(91, {"a": 1, "b": 1})], r"weights is .*\[90.* in the state, .*\[91.* in the loader"),
        ([], "weights is "),
    ):
        with pytest.raises(TokenloomError, match=message):
            TokenLoader(Mixture(members, stages), 3).load_state_dict(state)
    swapped = {"a": (sets["small"], 0.75), "b": (sets["large"], 0.25)}
    with pytest.raises(TokenloomError, match=r"members\.a\.version is '\w+' in the state, '\w+' in the loader"):
        TokenLoader(Mixture(swapped, [(90, {"a": 1, "b": 1})]), 3).load_state_dict(state)
    other_order = dict(reversed(members.items()))
    with pytest.raises(TokenloomError, match=r"names is \['a', 'b'\] in the state, \['b', 'a'\] in the loader"):
        TokenLoader(Mixture(other_order, [(90, {"a": 1, "b": 1})]), 3).load_state_dict(state)
