"""Streams that options write otherwise have one fingerprint, and read the same; streams that differ never share one."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.chats import chat_spec, conversation
from tests.builders.datasets import build, make_spec, write_jsonl
from tests.counts import count
from tokenloom.errors import TokenloomError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.mixture import Mixture
from tokenloom.reader.streams.stream import Stream, make_state
from tokenloom.storage.formats.classes import ROLES

_T, _NUM_BATCHES = 16, 50
_ASSISTANT = ("text", "assistant", "reasoning", "tool_call")
_RUN = settings(max_examples=count(25, 500), deadline=None)
Options = dict[str, Any]
Draw = Callable[[Sequence[Any]], Any]


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    """A version with conversations of every role and with texts, in several shards."""
    rows = []
    for i in range(60):
        call = {"function": {"name": "find", "arguments": {"number": i}}}
        first, last = (conversation(f"ask {i} {j}", f"answer {j} " * (1 + i % 4))["messages"] for j in range(2))
        called = {"role": "assistant", "content": "", "reasoning_content": f"think {i}", "tool_calls": [call]}
        output = {"role": "tool", "content": f"found {i}", "name": "find"}
        system = {"role": "system", "content": "be short"}
        rows.append({"messages": [system, *first, last[0], called, output, last[1]]})
    spec = chat_spec(folder / "equal", rows, splits={"train": 1.0}, shard_tokens=3000)
    texts = write_jsonl(folder / "equal" / "texts.jsonl", [f"text {i} " * (i % 9) + "end" for i in range(80)])
    source = {"kind": "jsonl", "path": str(texts), "name": "texts"}
    spec = spec.model_validate(spec.model_dump() | {"sources": [*spec.model_dump()["sources"], source]})
    return f"{spec.store}/data@{build(spec).version}"


# ---- streams of a dataset


@st.composite
def streams(draw: st.DrawFn) -> Options:
    """Draw what determines a stream, each in one way to write it."""
    roles = st.sets(st.sampled_from(ROLES), min_size=1).map(lambda names: tuple(sorted(names)))
    packings = ["concat", "document", "document_padded", "best_fit", "best_fit_drop", "best_fit_pad4"]
    packing = draw(st.sampled_from(packings))
    options: Options = {
        "seq_len": draw(st.sampled_from([_T, 2 * _T])),
        "packing": packing,
        "labels": draw(st.sampled_from(["shifted", "same"])),
        "learn": draw(st.one_of(st.sampled_from(["assistant", "last", "all"]), roles)),
        "mask_documents": packing == "best_fit_pad4" or draw(st.booleans()),
        "part": draw(st.sampled_from([None, (0.0, 0.75), (0.25, 1.0), (0.25, 0.75)])),
        "source": draw(st.sampled_from([None, "chats", "texts"])) if packing.startswith("document") else None,
        "order": draw(st.sampled_from(["block", "full", "sequential"])),
        "seed": draw(st.integers(0, 2)),
        "lanes": draw(st.sampled_from([1, 2, 3])),
    }
    return options


def _learn_otherwise(learn: Any, draw: Draw) -> Any:
    named = {"assistant": _ASSISTANT, "all": ROLES}
    if isinstance(learn, str) and (learn not in named or draw([False, True])):
        return learn
    roles = list(named.get(learn, learn))
    policy = next((name for name, members in named.items() if set(members) == set(roles)), None)
    written = [roles, roles[::-1], tuple(roles), set(roles), frozenset(roles), [*roles, roles[0]], dict.fromkeys(roles)]
    return draw([*written, *[policy] * (policy is not None)])


def _part_otherwise(part: Any, draw: Draw) -> Any:
    if part is None:
        return draw([None, (0, 1), [0.0, 1.0], np.array([0, 1]), (Fraction(0), True)])
    return draw([part, list(part), np.array(part), tuple(map(Fraction, part)), tuple(map(np.float32, part))])


def _packing_otherwise(name: str, draw: Draw) -> Options:
    written: dict[str, list[Options]] = {
        "best_fit": [{"overlong": "split"}, {"pad_documents": 1}, {"overlong": "split", "pad_documents": np.int8(1)}],
        "best_fit_drop": [{"overlong": "drop"}, {"overlong": "drop", "pad_documents": 1}],
        "best_fit_pad4": [{"pad_documents": 4}, {"pad_documents": np.uint16(4), "overlong": "split"}],
    }
    others = [{"packing": "best_fit"} | more for more in written.get(name, [])]
    found: Options = draw([{"packing": name}, *others])
    return found


def written_otherwise(options: Options, reference: str, draw: Draw) -> tuple[Any, Options, Options, str | None]:
    """Write a stream in another way; return the reference, the options of dataset and loader, and the source."""
    name, _, version = reference.partition("@")
    packing, order = options["packing"], options["order"]
    learn, part = _learn_otherwise(options["learn"], draw), _part_otherwise(options["part"], draw)
    data = {"seq_len": draw([int, np.int64, np.uint8])(options["seq_len"]), "learn": learn, "part": part}
    data |= _packing_otherwise(packing, draw) | {"labels": options["labels"]}
    fields: list[tuple[str, ...]] = [(), ("classes",), ("document_ids", "position_ids", "document_ids")]
    data |= {"fields": draw(fields), "mask_documents": draw([bool, int, np.bool_])(options["mask_documents"])}
    if packing.startswith("document"):
        data["mask_documents"] = draw([None, True, False])
    elif options["mask_documents"] == (packing.startswith("best_fit") or "document_ids" in data["fields"]):
        data["mask_documents"] = draw([None, options["mask_documents"]])
    data |= {"access": draw(["mmap", "pread"]), "max_open_shards": draw([1, 512]), "verify": draw(["open", "full"])}
    if options["labels"] == "shifted" and draw([False, True]):
        del data["labels"]
    loader = {"order": order, "seed": draw([int, np.int64, np.uint8])(options["seed"])}
    loader |= {"lanes": draw([int, np.int32])(options["lanes"]), "io_threads": draw([0, 1]), "prefetch": 0}
    if order == "sequential":
        loader["seed"] = draw([0, 5, 2**50])
    if order != "block":
        loader["lanes"] = draw([None, 1, 4])
    references = [reference, Path(reference), name, f"{name}@latest", f"{name}/../data@{version}"]
    return draw(references), data, loader, options["source"]


def opened(reference: Any, data: Options, loader: Options, source: str | None) -> TokenLoader:
    """Open the loader of a stream."""
    dataset = TokenDataset(reference, **data)
    return TokenLoader(dataset if source is None else dataset.of_source(source), 3, device="numpy", **loader)


def plainly_opened(reference: str, options: Options) -> TokenLoader | None:
    """Open the loader of a stream as it was drawn; None if it has no samples."""
    of_loader = {name: options[name] for name in ("order", "seed", "lanes")}
    data = {name: value for name, value in options.items() if name not in of_loader and name != "source"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return opened(reference, data, of_loader | {"prefetch": 0, "io_threads": 0}, options["source"])
        except ValueError as error:
            assert "no samples" in str(error)
            return None


def first_batches(loader: TokenLoader) -> list[list[Any]]:
    """Return inputs and labels of the first batches."""
    batches = [*itertools.islice(loader, _NUM_BATCHES)]
    loader.close()
    return [[batch["input_ids"].tolist(), batch["labels"].tolist()] for batch in batches]


def state_text(loader: TokenLoader) -> str:
    """Return the state of a loader, as a job writes it."""
    return json.dumps(loader.state_dict(), sort_keys=True)


@_RUN
@given(streams(), st.data())
def test_a_stream_that_is_written_otherwise_has_the_same_fingerprint_and_batches(
    reference: str, options: Options, data: st.DataObject
) -> None:
    plain = plainly_opened(reference, options)
    if plain is None:
        return

    def draw(choices: Sequence[Any]) -> Any:
        return choices[data.draw(st.integers(0, len(choices) - 1))]

    other = opened(*written_otherwise(options, reference, draw))
    assert state_text(other) == state_text(plain)
    next(plain)
    expected = [next(plain)["input_ids"].tolist() for _ in range(2)]
    other.load_state_dict(json.loads(state_text(opened_at(reference, options, 3))))
    assert [next(other)["input_ids"].tolist() for _ in range(2)] == expected
    other.load_state_dict({**plain.state_dict(), "samples": 0})
    plain.load_state_dict({**plain.state_dict(), "samples": 0})
    assert first_batches(other) == first_batches(plain)


def opened_at(reference: str, options: Options, samples: int) -> TokenLoader:
    """Open a stream as it was drawn, after some samples."""
    loader = plainly_opened(reference, options)
    assert loader is not None
    loader.load_state_dict({**loader.state_dict(), "samples": samples})
    return loader


@_RUN
@given(streams(), streams(), st.data())
def test_streams_that_read_other_batches_have_other_fingerprints(
    reference: str, one: Options, other: Options, data: st.DataObject
) -> None:
    changed = data.draw(st.sets(st.sampled_from(sorted(one)), min_size=1, max_size=2), label="changed")
    together = {"packing", "mask_documents", "source"}  # not every packing allows each of the others
    changed |= together if changed & together else set()
    loaders = [plainly_opened(reference, options) for options in (one, one | {name: other[name] for name in changed})]
    if loaders[0] is None or loaders[1] is None:
        return
    first, second = map(first_batches, (loader for loader in loaders if loader is not None))
    if first != second:
        states = [json.loads(state_text(loader)) for loader in loaders if loader is not None]
        assert states[0]["stream"] != states[1]["stream"]
        with pytest.raises(TokenloomError, match="the state belongs to a different stream"):
            loaders[0].load_state_dict(states[1])


def test_a_role_is_not_the_policy_of_its_name(reference: str) -> None:
    policy, role = (TokenDataset(reference, seq_len=_T, learn=learn) for learn in ("assistant", ["assistant"]))
    loaders = [TokenLoader(data, 3, device="numpy", prefetch=0) for data in (policy, role)]
    assert loaders[0].stream.fingerprint() != loaders[1].stream.fingerprint()
    assert first_batches(loaders[0]) != first_batches(loaders[1])


def test_the_only_source_of_a_version_is_the_version(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [f"text {i} " * 9 for i in range(30)])
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(path), "name": "only"}])
    data = TokenDataset(f"{spec.store}/data@{build(spec).version}", seq_len=_T, packing="document_padded")
    loaders = [TokenLoader(one, 3, device="numpy", prefetch=0) for one in (data, data.of_source("only"))]
    assert state_text(loaders[0]) == state_text(loaders[1])
    assert first_batches(loaders[0]) == first_batches(loaders[1])


# ---- streams of a mixture


@pytest.fixture(scope="module")
def members(reference: str) -> dict[str, TokenDataset]:
    parts = {"a": (0.0, 0.5), "b": (0.5, 0.8), "c": (0.8, 1.0)}
    return {name: TokenDataset(reference, seq_len=_T, packing="best_fit", part=part) for name, part in parts.items()}


def _number_otherwise(number: int, scale: int, draw: Draw) -> Any:
    scaled = number * scale
    return draw([scaled, float(scaled), np.float32(scaled), np.int16(scaled), Fraction(scaled)])


def mixture_of(members: dict[str, TokenDataset], weights: list[list[int]], starts: list[int], **limits: Any) -> Mixture:
    """Return the mixture whose stages have these weights."""
    first = {name: (data, weight) for (name, data), weight in zip(members.items(), weights[0], strict=True)}
    stages = [(start, dict(zip(members, later, strict=True))) for start, later in zip(starts, weights[1:], strict=True)]
    return Mixture(first, stages, **limits)


_weights = st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any)
_mixtures = st.tuples(_weights, st.lists(st.tuples(st.integers(1, 60), _weights), max_size=2, unique_by=lambda s: s[0]))


@_RUN
@given(_mixtures, st.sampled_from(["block", "full", "sequential"]), st.integers(0, 2), st.data())
def test_a_mixture_that_is_written_otherwise_has_the_same_fingerprint_and_batches(
    members: dict[str, TokenDataset], mixture: Any, order: str, seed: int, data: st.DataObject
) -> None:
    def draw(choices: Sequence[Any]) -> Any:
        return choices[data.draw(st.integers(0, len(choices) - 1))]

    first, later = mixture[0], sorted(mixture[1])
    limits: Options = draw([{}, {"max_epochs": {"a": 100, "b": 50}, "num_samples": 200}])
    plain = mixture_of(members, [first, *(weights for _, weights in later)], [start for start, _ in later], **limits)
    stages = []
    for start, weights in later:
        scale = draw([1, 2, 3])
        written = {name: _number_otherwise(w, scale, draw) for name, w in zip(members, weights, strict=True)}
        reordered = dict(draw([list(written.items()), list(written.items())[::-1]]))
        stages.append((draw([start, np.int64(start), f"{start * _T} tokens", f"{start * _T:.1f} tokens"]), reordered))
    scale = draw([1, 2, 4])
    texts = {name: f"{w * scale} epochs" for name, w in zip(members, first, strict=True)}
    epochs = {name: w * scale * len(members[name]) for name, w in zip(members, first, strict=True)}
    if draw([False, True]):
        plain = mixture_of(members, [list(epochs.values()), *(w for _, w in later)], [s for s, _ in later], **limits)
        start_weights: Any = texts
    else:
        start_weights = {name: _number_otherwise(w, scale, draw) for name, w in zip(members, first, strict=True)}
    if limits:
        limits = {"max_epochs": {"b": 50.0, "a": np.int32(100)}, "num_samples": np.int64(200)}
    elif draw([False, True]):
        limits = {"max_epochs": {}, "num_samples": None}
    other = Mixture(
        {name: (members[name], start_weights[name]) for name in members}, draw([tuple, list])(stages), **limits
    )
    lanes = None if order == "block" else draw([None, 1, 4])
    other_seed: Any = 9 if order == "sequential" else np.int64(seed)
    streams = [Stream(plain, order, seed, None), Stream(other, order, other_seed, lanes)]
    states = [json.dumps(make_state(stream.fingerprint(), 30), sort_keys=True) for stream in streams]
    assert states[0] == states[1]
    positions = np.arange(3 * _NUM_BATCHES)
    one, two = (stream.turns(positions) for stream in streams)
    assert all((a == b).all() for a, b in zip(one, two, strict=True))
    loaders = [TokenLoader(plain, 3, order=order, seed=seed, device="numpy", prefetch=0)]
    loaders.append(TokenLoader(other, 3, order=order, seed=other_seed, lanes=lanes, device="numpy", prefetch=0))
    loaders[0].load_state_dict(json.loads(states[1]))
    loaders[1].load_state_dict(json.loads(states[0]))
    assert first_batches(loaders[0]) == first_batches(loaders[1])


@_RUN
@given(_mixtures, _mixtures)
def test_mixtures_that_read_other_batches_have_other_fingerprints(
    members: dict[str, TokenDataset], one: Any, other: Any
) -> None:
    found = []
    for first, later in (one, other):
        stages = sorted(later)
        mixture = mixture_of(members, [first, *(weights for _, weights in stages)], [start for start, _ in stages])
        loader = TokenLoader(mixture, 3, device="numpy", prefetch=0)
        found.append((loader.state_dict()["stream"], first_batches(loader)))
    if found[0][1] != found[1][1]:
        assert found[0][0] != found[1][0]
