"""Mixtures: shares in every prefix, whole weights, stages, the streams of members, and refusals."""

from __future__ import annotations

import json
import pickle
import random
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
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
from tokenloom.reader.streams import order
from tokenloom.reader.streams.order import EpochLayout, Order, lay_out
from tokenloom.reader.streams.schedule import MAX_POSITIONS, TOTAL_WEIGHT, Schedule, whole_weights
from tokenloom.reader.streams.stream import MixtureFingerprint
from tokenloom.storage.formats.records import sign

_LIMITS = {"large": 2, "small": 7}
_RUN = settings(max_examples=count(25, 1000), deadline=None)


@pytest.fixture(scope="module")
def sets(folder: Path) -> dict[str, TokenDataset]:
    """Three datasets; a test reads the smallest for several epochs."""
    references = {
        "large": make_store(folder / "mix_large", (900, 700), seed=1),
        "small": make_store(folder / "mix_small", (150,), seed=2),
        "third": make_store(folder / "mix_third", (400, 300), seed=3),
    }
    return {name: TokenDataset(reference, seq_len=16) for name, reference in references.items()}


def stores_of(sets: dict[str, TokenDataset]) -> dict[str, str]:
    """Name the store of each dataset."""
    return {name: str(Path(data.reference).parent) for name, data in sets.items()}


def counts_of(turns: NDArray[np.int64], num_members: int) -> NDArray[np.int64]:
    """Return how many of the first k turns each member has, for every k: (n + 1, num_members)."""
    is_member = turns[:, None] == np.arange(num_members)
    return np.concatenate([np.zeros((1, num_members), dtype=np.int64), np.cumsum(is_member, axis=0)])


# ---- weights


_SHARES = st.lists(
    st.one_of(st.integers(0, 60), st.floats(-12, 0).map(lambda exponent: 10**exponent)), min_size=1, max_size=40
).filter(any)
_STARTS = st.integers(0, MAX_POSITIONS - 1000)


@_RUN
@given(_SHARES, _STARTS, st.randoms())
def test_every_prefix_is_within_two_samples_of_the_weights(
    weights: list[float], start: int, random: random.Random
) -> None:
    schedule = Schedule([(0, weights)])
    shares = [Fraction(weight) / sum(map(Fraction, weights)) for weight in weights]
    for length in (start, *(start + random.randrange(1000) for _ in range(10))):
        counts = schedule.counts_before(length).tolist()
        assert sum(counts) == length
        assert all(abs(count - share * length) < 2 for count, share in zip(counts, shares, strict=True))
        assert all(not count for count, weight in zip(counts, weights, strict=True) if not weight)


@_RUN
@given(_SHARES, _STARTS)
@example([2, 1, 0], 2**20 - 150)  # two blocks of turns
@example([1, *[2.0**-k for k in range(1, 39)]], 2**39)  # deep, and few positions at its end
def test_ordinals_count_the_turns_of_a_member_and_lead_back_to_the_positions(weights: list[float], start: int) -> None:
    schedule = Schedule([(0, weights)])
    positions = np.arange(start, start + 300)
    turns, ordinals = schedule.turns(positions)
    before = schedule.counts_before(start)
    for member in np.unique(turns).tolist():
        own = ordinals[turns == member]
        assert own.tolist() == list(range(before[member], before[member] + len(own)))
        assert schedule.positions(member, own).tolist() == positions[turns == member].tolist()
    mixed = np.random.default_rng(start).permutation(300)
    assert [each.tolist() for each in schedule.turns(positions[mixed])] == [
        turns[mixed].tolist(),
        ordinals[mixed].tolist(),
    ]
    counts = before + np.bincount(turns, minlength=len(weights))
    assert counts.tolist() == schedule.counts_before(start + 300).tolist()


@pytest.mark.parametrize("num_members", [1000, 10_000])
def test_thousands_of_members_get_their_shares(num_members: int) -> None:
    weights = 10.0 ** np.random.default_rng(num_members).uniform(-9, 0, num_members)
    schedule = Schedule([(0, weights.tolist())])
    turns, _ = schedule.turns(np.arange(20_000))
    for length in (20_000, 12_345_678, MAX_POSITIONS):
        off = schedule.counts_before(length) - weights / weights.sum() * length
        assert np.abs(off).max() < 2
    assert np.bincount(turns, minlength=num_members).tolist() == schedule.counts_before(20_000).tolist()


def test_turns_far_apart_are_counted_without_an_overflow() -> None:
    # Were they found together, the first one would be 2**23 - 2 after the block of the stage that begins at 1.
    schedule = Schedule([(0, [1, 1]), (1, [1, 1])])
    positions = np.array([2**23 - 1, 2**22])
    turns, ordinals = schedule.turns(positions)
    counts = [schedule.counts_before(position) for position in positions.tolist()]
    assert ordinals.tolist() == [count[turn] for count, turn in zip(counts, turns.tolist(), strict=True)]


@_RUN
@given(_SHARES)
def test_whole_weights_have_the_sum_2_to_42_and_are_their_own_whole_weights(weights: list[float]) -> None:
    whole = whole_weights(weights)
    assert sum(whole) == TOTAL_WEIGHT == 2**42
    assert whole_weights(whole) == whole
    exact = [Fraction(weight) / sum(map(Fraction, weights)) * TOTAL_WEIGHT for weight in weights]
    assert all(abs(w - x) < 1 for w, x in zip(whole, exact, strict=True))


def test_turns_are_pinned() -> None:
    # A state counts turns of this schedule; with another one it would read other samples.
    def turns(weights: list[float], start: int = 0) -> list[int]:
        members, _ = Schedule([(0, weights)]).turns(np.arange(start, start + 11))
        return [*members.tolist()]

    assert turns([2, 1]) == [0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1]
    assert turns([0.7, 0.3]) == [0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0]
    assert turns([1, 2, 3, 0]) == [2, 1, 2, 0, 2, 1, 2, 1, 2, 0, 2]
    assert turns([5, 5, 1]) == [0, 1, 0, 1, 0, 1, 2, 1, 0, 1, 0]
    assert turns([0.5, 1e-6, 0.3, 0.2], 2**40) == [1, 0, 2, 0, 3, 0, 2, 0, 2, 0, 3]


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
        assert (np.abs(off) < 2 * sum(weights)).all()


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


def test_members_share_one_limit_of_open_shards_after_pickling_too(sets: dict[str, TokenDataset]) -> None:
    mixture = Mixture({name: (data, 1) for name, data in sets.items()})
    TokenLoader(mixture, 1)
    for each in (mixture, pickle.loads(pickle.dumps(mixture))):  # noqa: S301  (our own bytes)
        limits = {id(data.shards.open_files) for data in each.datasets.values()}
        assert len(limits) == 1


def test_a_member_has_its_own_limit_of_open_shards_again_when_it_is_read_alone(sets: dict[str, TokenDataset]) -> None:
    data = [TokenDataset(sets[name].reference, seq_len=16, max_open_shards=most) for name, most in _LIMITS.items()]
    TokenLoader(Mixture({"a": (data[0], 1), "b": (data[1], 1)}), 1)
    assert [each.shards.open_files.limit for each in data] == [2, 2]
    TokenLoader(data[1], 1)
    assert [each.shards.open_files.limit for each in data] == [2, 7]


def test_what_is_prepared_first_is_what_any_member_needs_first(sets: dict[str, TokenDataset]) -> None:
    stream = TokenLoader(Mixture({"large": (sets["large"], 9), "third": (sets["third"], 1)}), 1).stream
    positions = np.arange(200)
    needed = []
    for number, own in zip(*stream.turns(positions), strict=True):
        data, order = [*stream.members.values()][number]
        needed.append((data, int(data.table.shards_of(order.samples(np.array([own])))[0])))
    assert stream.shards_of(positions) == [*dict.fromkeys(needed)]
    assert len({*needed}) == 4


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


def test_looking_ahead_over_many_epochs_lays_out_one_or_two(
    sets: dict[str, TokenDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts: list[int] = []

    def noted(orders: Sequence[Order], epochs: Sequence[int]) -> list[EpochLayout]:
        layouts.extend(epochs)
        return lay_out(orders, epochs)

    monkeypatch.setattr(order, "lay_out", noted)
    stream = TokenLoader(Mixture({"large": (sets["large"], 1), "small": (sets["small"], 1)}), 4).stream
    assert len(stream.shards_of(np.arange(2**14))) == 3
    assert len(layouts) <= 4  # the first epoch of each, and perhaps the second


# ---- state and amendments


def test_a_state_names_members_and_weights_and_refuses_others(sets: dict[str, TokenDataset]) -> None:
    members = {"a": (sets["large"], 0.75), "b": (sets["small"], 0.25)}
    state = TokenLoader(Mixture(members, [(90, {"a": 1, "b": 1})]), 3).state_dict() | {"samples": 100}
    TokenLoader(Mixture(members, [(90, {"a": 5, "b": 5})]), 3).load_state_dict(state)
    for stages, message in (
        ([(90, {"a": 1, "b": 3})], r"weights\.90\.a is 0\.5 in the state, 0\.25 in the loader"),
        (
            [(91, {"a": 1, "b": 1})],
            r"weights\.90 is .* in the state, None in the loader; weights\.91 is None in the state",
        ),
        ([], "weights.90 is .* None in the loader; TokenLoader.from_state opens the stream of a state$"),
    ):
        with pytest.raises(TokenloomError, match=f"belongs to a different stream: {message}"):
            TokenLoader(Mixture(members, stages), 3).load_state_dict(state)
        with pytest.raises(TokenloomError, match=r"the amendment changes what was read before sample 100: weights\.90"):
            TokenLoader(Mixture(members, stages), 3).load_state_dict(state, amend=True)
    swapped = {"a": (sets["small"], 0.75), "b": (sets["large"], 0.25)}
    with pytest.raises(TokenloomError, match=r"members\.a\.version is '\w+' in the state, '\w+' in the loader"):
        TokenLoader(Mixture(swapped, [(90, {"a": 1, "b": 1})]), 3).load_state_dict(state)
    other_order = dict(reversed(members.items()))
    with pytest.raises(TokenloomError, match=r"names is \['a', 'b'\] in the state, \['b', 'a'\] in the loader"):
        TokenLoader(Mixture(other_order, [(90, {"a": 1, "b": 1})]), 3).load_state_dict(state)
    later = Mixture(members, [(90, {"a": 1, "b": 1}), (100, {"a": 0, "b": 1})])
    with pytest.raises(TokenloomError, match=r"up to sample 100: load_state_dict\(state, amend=True\) continues"):
        TokenLoader(later, 3).load_state_dict(state)
    TokenLoader(later, 3).load_state_dict(state, amend=True)


def history_of(loader: TokenLoader) -> dict[str, Any]:
    fingerprint = loader.stream.fingerprint()
    assert isinstance(fingerprint, MixtureFingerprint)
    return fingerprint.history(float("inf"))


@_RUN
@given(st.data())
def test_the_past_of_an_amended_stream_is_that_of_the_state(sets: dict[str, TokenDataset], data: st.DataObject) -> None:
    """Amended twice, with members that join and end, it equals the mixture that has all stages from the start."""

    def weights_of(names: list[str]) -> dict[str, float]:
        weight = st.one_of(st.just(0), st.integers(1, 9), st.floats(1e-6, 1))
        drawn = data.draw(st.fixed_dictionaries(dict.fromkeys(names, weight)))
        return drawn if any(drawn.values()) else drawn | {names[0]: 1}

    first = weights_of(["large", "small"])
    planned = data.draw(st.integers(1, 300))
    mixture = Mixture({name: (sets[name], w) for name, w in first.items()}, [(planned, weights_of(["large", "small"]))])
    loader = TokenLoader(mixture, 1, seed=4)
    at = 0
    after = dict(zip(first, mixture.schedule.stages[1].weights, strict=True))
    stages: list[tuple[int, Mapping[str, float]]] = [(0, first), (planned, after)]
    for add in ({"third": sets["third"]}, {}):
        at += data.draw(st.integers(0, 200))
        state = json.loads(json.dumps(loader.state_dict() | {"samples": at}))
        known = Mixture.from_state(stores_of(sets), state)
        changed = weights_of([*known.datasets, *add])
        amended = TokenLoader(known.then(changed, add), 1, seed=4)
        if history_of(loader) != history_of(amended):
            with pytest.raises(TokenloomError):
                amended.load_state_dict(state)
        amended.load_state_dict(state, amend=True)
        stages = [stage for stage in stages if stage[0] < at] + [(at, changed)]
        if at:
            theirs, mine = (each.stream.window(np.arange(at), at).tokens(0, at) for each in (loader, amended))
            assert (theirs == mine).all()
        loader = amended
    names = list(known.datasets)
    (_, begin), *later = ((start, {name: weights.get(name, 0) for name in names}) for start, weights in stages)
    whole = Mixture({name: (sets[name], begin[name]) for name in names}, later)
    assert TokenLoader(whole, 1, seed=4).state_dict()["stream"] == loader.state_dict()["stream"]


def test_an_amended_run_continues_on_other_ranks_and_keeps_its_history(sets: dict[str, TokenDataset]) -> None:
    mixture = Mixture({"large": (sets["large"], 3), "small": (sets["small"], 1)})
    loader = TokenLoader(mixture, 4, seed=4)
    batches = [copied(next(loader)) for _ in range(9)]
    state = json.loads(json.dumps(loader.state_dict()))
    amended = Mixture.from_state(stores_of(sets), state).then({"third": 2, "small": 1}, add={"third": sets["third"]})
    ranks = [TokenLoader(amended, 3, seed=4, rank=rank, world_size=2) for rank in range(2)]
    for one in ranks:
        one.load_state_dict(state, amend=True)
    steps = [[copied(next(one)) for one in ranks] for _ in range(10)]
    stages = [(36, {"large": 0, "small": 1, "third": 2})]
    whole = Mixture({"large": (sets["large"], 3), "small": (sets["small"], 1), "third": (sets["third"], 0)}, stages)
    expected = TokenLoader(whole, 1, seed=4)
    for batch in batches:
        for row in batch["input_ids"]:
            assert (row == next(expected)["input_ids"][0]).all()
    for step in steps:
        for row in range(3):
            for batch in step:
                assert (batch["input_ids"][row] == next(expected)["input_ids"][0]).all()
    again = ranks[0].state_dict()
    assert again["samples"] == 36 + 60
    with pytest.raises(TokenloomError, match="different stream"):
        TokenLoader(mixture, 4, seed=4).load_state_dict(again)
    (resumed, continued) = TokenLoader.from_state(stores_of(sets), again, 2), expected
    assert (next(resumed)["input_ids"][1] == [next(continued), next(continued)][1]["input_ids"][0]).all()
    for one in (loader, *ranks, expected, resumed):
        one.close()


def test_amendments_that_change_the_past_or_name_no_member_are_refused(sets: dict[str, TokenDataset]) -> None:
    loader = TokenLoader(Mixture({"large": (sets["large"], 3), "small": (sets["small"], 1)}), 4)
    state = loader.state_dict() | {"samples": 50}
    mixture = Mixture.from_state(stores_of(sets), state)
    with pytest.raises(ValueError, match="from_sample must be at least 50, which the state has taken, not 49"):
        mixture.then({"large": 1}, from_sample=49)
    with pytest.raises(ValueError, match=r"add names \['small'\], which are members already"):
        mixture.then({"large": 1}, add={"small": sets["third"]})
    with pytest.raises(ValueError, match=r"weights name \['third'\], which are not members \['large', 'small'\]"):
        mixture.then({"third": 1})
    with pytest.raises(ValueError, match="the weights of large, small are all 0: give one of them a weight"):
        mixture.then({"large": 0})
    with pytest.raises(ValueError, match=r"the weight of 'small' must be a finite number, at least 0, or .* not -1"):
        mixture.then({"large": 1, "small": -1})
    other = TokenDataset(sets["third"].reference, seq_len=17)
    with pytest.raises(ValueError, match="must have the same seq_len: 'large' has 16, 'third' has 17"):
        mixture.then({"third": 1}, add={"third": other})
    removed = Mixture({"large": (sets["large"], 3)}, [(50, {"large": 1})])
    with pytest.raises(TokenloomError, match=r"before sample 50: members\.small is .* None in the loader"):
        TokenLoader(removed, 4).load_state_dict(state, amend=True)
    with pytest.raises(TokenloomError, match="of a dataset, not of a mixture"):
        Mixture.from_state(stores_of(sets)["large"], TokenLoader(sets["large"], 2).state_dict())


# ---- units, epochs and what was consumed


def test_weights_by_tokens_and_epochs_read_just_that(sets: dict[str, TokenDataset]) -> None:
    large, small = sets["large"], sets["small"]
    epochs = {"large": "1 epochs", "small": "2.5 epochs"}
    tokens = {"large": f"{large.num_tokens} tokens", "small": f"{2.5 * small.num_tokens} tokens"}
    for weights in (epochs, tokens):
        mixture = Mixture({name: (sets[name], weight) for name, weight in weights.items()})
        length = len(large) + int(2.5 * len(small))
        consumed = TokenLoader(mixture, 1).consumed(length)
        assert abs(consumed["large"].samples - len(large)) < 2
        assert abs(consumed["small"].epochs - 2.5) < 2 / len(small)
    later = Mixture({"large": (large, 1)}, [("1600 tokens", {"large": 1})])
    assert [stage.start for stage in later.schedule.stages] == [0, 100]


@pytest.mark.parametrize(
    "weight", ["2 epochs and", "many tokens", "3e9", "", "-1 epochs", "nan epochs", -1, None, 1j, [1], float("inf")]
)
def test_weights_that_are_none_are_refused_by_name(sets: dict[str, TokenDataset], weight: Any) -> None:
    message = f"the weight of 'large' must be a finite number, at least 0, or as .*, not {re.escape(repr(weight))}"
    with pytest.raises(ValueError, match=message):
        Mixture({"large": (sets["large"], weight), "small": (sets["small"], "1 epochs")})


def test_weights_of_numpy_are_numbers_and_units_and_weights_that_vanish_are_refused(
    sets: dict[str, TokenDataset],
) -> None:
    numbers: dict[str, Any] = {"large": (sets["large"], np.float32(0.5)), "small": (sets["small"], np.int64(3))}
    assert Mixture(numbers).schedule.stages[0].shares == pytest.approx([1 / 7, 6 / 7])
    with pytest.raises(ValueError, match="the weights of a stage must have one unit"):
        Mixture({"large": (sets["large"], "1 tokens"), "small": (sets["small"], "1 epochs")})
    with pytest.raises(ValueError, match="the weight of 'small', 1e-14, is below 1e-12 of the sum: raise it or use 0"):
        Mixture({"large": (sets["large"], 1), "small": (sets["small"], 1e-14)})


@pytest.mark.parametrize("start", ["3e9", "inf tokens", "nan tokens", "-5 tokens", "many tokens", "2 epochs"])
def test_starts_that_are_none_are_refused(sets: dict[str, TokenDataset], start: str) -> None:
    message = f'from_sample must be a number of samples, or "3e9 tokens", not {start!r}'
    with pytest.raises(ValueError, match=message):
        Mixture({"large": (sets["large"], 1)}, [(start, {"large": 1})])


def test_what_is_no_member_is_refused(sets: dict[str, TokenDataset]) -> None:
    for member in ((sets["large"],), (sets["large"], 1, 2), sets["large"], ("store", 1)):
        with pytest.raises(TypeError, match="a member of a mixture must be"):
            Mixture({"a": member})  # type: ignore[dict-item]
    mixture = Mixture({"large": (sets["large"], 1)})
    with pytest.raises(TypeError, match="a member of a mixture must be a TokenDataset with a name, not 'b': 'store'"):
        mixture.then({"b": 1}, add={"b": "store"})  # type: ignore[dict-item]
    state = TokenLoader(mixture, 1).state_dict()
    with pytest.raises(TokenloomError, match="no store of the members large: pass one store"):
        Mixture.from_state({}, state)
    alone = TokenLoader(sets["large"], 1).state_dict()
    with pytest.raises(TokenloomError, match="the state is of a dataset: pass its store as a text"):
        Mixture.from_state(stores_of(sets), alone)


def test_a_mixture_survives_another_process_and_stages_may_come_from_an_iterator(sets: dict[str, TokenDataset]) -> None:
    members = {"large": (sets["large"], 3), "small": (sets["small"], 1)}
    mixture = Mixture(members, iter([(40, {"large": 1, "small": 0})]))  # type: ignore[arg-type]
    assert [stage.start for stage in mixture.schedule.stages] == [0, 40]
    again = ForkingPickler.loads(ForkingPickler.dumps(mixture))
    assert TokenLoader(again, 1).state_dict() == TokenLoader(mixture, 1).state_dict()
    assert (
        next(TokenLoader(again, 4, prefetch=0))["input_ids"] == next(TokenLoader(mixture, 4, prefetch=0))["input_ids"]
    ).all()


def test_positions_that_no_stream_reaches_are_none(sets: dict[str, TokenDataset]) -> None:
    schedule = Schedule([(0, [1, 1e-12])])
    found = schedule.positions(1, np.array([0, 1000, 4 * 10**6, 9 * 10**6, 18 * 10**6]))
    assert (found[:3] >= 0).all() and (np.diff(found[:3]) > 0).all()
    assert found[3:].tolist() == [-1, -1]


def test_a_member_that_would_pass_its_epochs_is_named_with_the_sample(sets: dict[str, TokenDataset]) -> None:
    small = len(sets["small"])
    members = {"large": (sets["large"], 3), "small": (sets["small"], 1)}
    (passed,) = Mixture(members).schedule.positions(1, np.array([2 * small])).tolist()
    Mixture(members, max_epochs={"small": 2}, num_samples=passed)
    with pytest.raises(ValueError, match=f"'small' would pass 2 epochs at sample {passed} of {passed + 1}: lower"):
        Mixture(members, max_epochs={"small": 2}, num_samples=passed + 1)
    state = TokenLoader(Mixture(members), 1).state_dict() | {"samples": 10}
    mixture = Mixture.from_state(stores_of(sets), state)
    with pytest.raises(ValueError, match="'small' would pass 2 epochs at sample"):
        mixture.then({"small": 1}, max_epochs={"small": 2}, num_samples=passed)
    limited = Mixture(members, max_epochs={"small": 2}, num_samples=passed)
    state = json.loads(json.dumps(TokenLoader(limited, 1).state_dict() | {"samples": 10}))
    for known in (limited, limited.then({"large": 1}), Mixture.from_state(stores_of(sets), state)):
        with pytest.raises(ValueError, match="'small' would pass 2 epochs at sample"):
            known.then({"small": 1})
        with pytest.raises(ValueError, match="'small' would pass 2 epochs at sample"):
            known.then({"large": 3, "small": 1}, from_sample=10, num_samples=2 * passed)
        known.then({"small": 1}, max_epochs={"small": passed})
    TokenLoader(Mixture(members), 1).load_state_dict(state)  # limits are no part of the stream
    for most in (-1, 0, float("nan"), 1e30, None, "many"):
        with pytest.raises(ValueError, match=r"max_epochs of 'small' must be in \(0, 1e6\], not "):
            Mixture(members, max_epochs={"small": most}, num_samples=passed)  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="max_epochs needs num_samples"):
        Mixture(members, max_epochs={"small": 2})
    with pytest.raises(ValueError, match=r"max_epochs names \['other'\], which are not members"):
        Mixture(members, max_epochs={"other": 2}, num_samples=5)


@_RUN
@given(st.lists(st.integers(0, 9), min_size=1, max_size=3).filter(any), st.integers(0, 400), st.integers(0, 400))
def test_consumed_counts_what_is_read(
    sets: dict[str, TokenDataset], weights: list[float], start: int, samples: int
) -> None:
    names = list(sets)[: len(weights)]
    mixture = Mixture({name: (sets[name], 1) for name in names}, [(start + 1, dict(zip(names, weights, strict=True)))])
    loader = TokenLoader(mixture, 1)
    turns, _ = mixture.schedule.turns(np.arange(samples))
    for number, (name, read) in enumerate(loader.consumed(samples).items()):
        count, data = int((turns == number).sum()), sets[name]
        assert (read.samples, read.epochs) == (count, count / len(data))
        assert read.is_exact
        assert read.tokens == count * data.seq_len
    assert loader.consumed() == loader.consumed(0)


def test_a_dataset_alone_is_consumed_under_its_own_name(sets: dict[str, TokenDataset]) -> None:
    loader = TokenLoader(sets["small"], 2)
    next(loader)
    (read,) = loader.consumed().values()
    assert read == (2, 32, 2 / len(sets["small"]), True)
    loader.close()
    padded = TokenDataset(sets["small"].reference, seq_len=16, packing="document_padded")
    (part,) = TokenLoader(padded, 1).consumed(3).values()
    (whole,) = TokenLoader(padded, 1).consumed(2 * len(padded)).values()
    assert (part.is_exact, whole.is_exact, whole.tokens) == (False, True, 2 * padded.num_tokens)


def test_an_empty_member_has_no_weight_and_no_loader(sets: dict[str, TokenDataset]) -> None:
    with pytest.warns(UserWarning, match="no samples"):
        empty = TokenDataset(sets["small"].reference, seq_len=16, part=(0.5, 1))
    mixture = Mixture({"large": (sets["large"], 1), "none": (empty, 0)})
    assert mixture.describe(10).splitlines()[2].split()[:2] == ["none", "0"]
    with pytest.raises(ValueError, match=r"member 'none': .*no document is in it; read a larger part"):
        TokenLoader(mixture, 1)
    with pytest.raises(ValueError, match=r"2 epochs of 'none', which is empty: .*: no document is in it; read a"):
        Mixture({"large": (sets["large"], "1 epochs"), "none": (empty, "2 epochs")})
