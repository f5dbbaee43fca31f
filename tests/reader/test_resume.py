"""States: a resumed loader continues bit for bit; wrong states are refused; a DataLoader reads the same stream."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.builders.synthetic_store import random_documents, write_store
from tests.counts import count
from tests.reader.oracle import FIELDS, PACKINGS, Oracle, as_lists, assert_same, copied, make_store
from tokenloom.errors import TokenloomError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.mixture import Mixture
from tokenloom.reader.streams import stream as stream_module
from tokenloom.reader.streams.order import Order
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions.tag_moves import move, newest_number

_ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    return make_store(folder / "resume", (300, 90, 500, 12, 210))


@pytest.fixture(scope="module")
def small(folder: Path) -> str:
    return make_store(folder / "resume_small", (120, 60), seed=8)


def through_json(state: Mapping[str, object]) -> dict[str, Any]:
    """Return a state as a job reads it back from a file."""
    found: dict[str, Any] = json.loads(json.dumps(state))
    return found


def staged_mixture(reference: str, small: str, **options: Any) -> Mixture:
    """Return a mixture whose weights change at sample 100."""
    sets = [TokenDataset(r, seq_len=8, **options) for r in (reference, small)]
    return Mixture({"web": (sets[0], 0.7), "code": (sets[1], 0.3)}, [(100, {"web": 1, "code": 3})])


# ---- resumed equals uninterrupted


@pytest.mark.parametrize("steps", [0, 7, 2_000])
@pytest.mark.parametrize("kind", ["concat", "best_fit", "mixture"])
def test_a_resumed_loader_continues_bit_for_bit(reference: str, small: str, kind: str, steps: int) -> None:
    def make() -> TokenLoader:
        if kind == "mixture":
            return TokenLoader(staged_mixture(reference, small), 2, seed=3)
        data = TokenDataset(reference, seq_len=8, packing=kind, fields=FIELDS)
        return TokenLoader(data, 2, seed=3, order="block", lanes=3)

    whole = make()
    for _ in range(steps):
        next(whole)
    state = through_json(whole.state_dict())
    assert state["samples"] == 2 * steps
    expected = [copied(next(whole)) for _ in range(60)]
    assert whole.state_dict()["samples"] == 2 * (steps + 60)
    whole.close()
    resumed = make()
    resumed.load_state_dict(state)
    used = make()  # a loader that has read elsewhere before
    for _ in range(5):
        next(used)
    used.load_state_dict(state)
    for batch in expected:
        assert_same(next(resumed), batch)
        assert_same(next(used), batch)
    assert resumed.state_dict() == used.state_dict() == whole.state_dict()
    resumed.close()
    used.close()


def rows_of(loaders: list[TokenLoader], steps: int) -> list[dict[str, Any]]:
    """Return the samples of the global sequence that the loaders of all ranks return in the next steps, in order."""
    rows: dict[int, dict[str, Any]] = {}
    world_size = len(loaders)
    for _ in range(steps):
        for loader in loaders:
            rank, start = loader.ranks.rank, loader.state_dict()["samples"]
            batch = as_lists(next(loader))
            mine = [g for g in range(start, start + len(batch["labels"]) * world_size) if g % world_size == rank]
            for i, g in enumerate(mine):
                assert g not in rows
                rows[g] = {name: batch[name][i] for name in ("input_ids", "labels")}
    assert sorted(rows) == list(range(min(rows), max(rows) + 1))
    return [rows[g] for g in sorted(rows)]


@pytest.mark.parametrize("order", ["block", "full", "sequential"])
@pytest.mark.parametrize("packing", PACKINGS)
def test_another_world_size_and_batch_size_continue_the_global_sequence(
    reference: str, order: str, packing: str
) -> None:
    oracle, data = Oracle(reference, 8, packing), TokenDataset(reference, seq_len=8, packing=packing)
    sequence = Order(order, np.array(oracle.counts), 3).samples(np.arange(600)).tolist()
    done, state = 0, None
    for world_size, batch_size, steps in ((4, 3, 3), (1, 5, 2), (3, 2, 4), (16, 1, 2), (2, 7, 3), (5, 3, 1)):
        loaders = []
        for rank in range(world_size):
            options: dict[str, Any] = {
                "seed": 3,
                "order": order,
                "rank": rank,
                "world_size": world_size,
                "prefetch": 2 * (rank == 0),
            }
            loader = TokenLoader(data, batch_size, **options)
            if state is not None:
                loader.load_state_dict(state)
            loaders.append(loader)
        rows = rows_of(loaders, steps)
        assert len(rows) == world_size * batch_size * steps
        assert rows == [oracle.sample(sequence[done + i]) for i in range(len(rows))]
        done += len(rows)
        states = [through_json(loader.state_dict()) for loader in loaders]
        assert all(s == states[0] for s in states)
        state = states[-1]
        assert state["samples"] == done
        for loader in loaders:
            loader.close()


def test_a_state_with_too_few_samples_left_for_the_new_batch_size_is_at_the_end(reference: str) -> None:
    data, oracle = TokenDataset(reference, seq_len=8), Oracle(reference, 8)
    n = len(oracle)
    first = TokenLoader(data, 10, num_epochs=1, order="sequential")
    for _ in range(5):
        next(first)
    state = first.state_dict()
    first.close()
    rest = TokenLoader(data, 7, num_epochs=1, order="sequential", drop_last=False)
    rest.load_state_dict(state)
    expected = [oracle.batch([i if i < n else None for i in range(s, s + 7)]) for s in range(50, n, 7)]
    assert [as_lists(batch) for batch in rest] == expected
    rest.load_state_dict(state | {"samples": n + 3})
    with pytest.raises(TokenloomError, match="last epoch of this loader is over"):
        iter(rest)


@pytest.mark.parametrize("kind", ["best_fit", "mixture"])
def test_a_state_alone_says_what_to_open(reference: str, small: str, kind: str) -> None:
    fields: Any = {"fields": ("document_ids",)}
    stores: Any = {"web": str(Path(reference).parent), "code": str(Path(small).parent)}
    if kind == "mixture":
        source: Any = staged_mixture(reference, small, **fields)
    else:
        source, stores = TokenDataset(reference, packing="best_fit", seq_len=8, **fields), stores["web"]
    loader = TokenLoader(source, 2, seed=2**55 + 1, order="full")
    for _ in range(40):
        next(loader)
    again = TokenLoader.from_state(stores, through_json(loader.state_dict()), 2, dataset=fields)
    for _ in range(30):
        assert_same(next(again), next(loader))
    assert again.state_dict() == loader.state_dict()
    again.close()
    loader.close()


# ---- refusals


def test_states_of_another_stream_are_refused_and_both_sides_are_named(
    reference: str, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = TokenDataset(reference, seq_len=8)
    state = TokenLoader(data, 2, seed=3).state_dict()
    mine, theirs = data.manifest["version"], TokenDataset(small, seq_len=8).manifest["version"]
    for loader, message in (
        (
            TokenLoader(TokenDataset(small, seq_len=8), 2, seed=3),
            f"version is '{mine}' in the state, '{theirs}' in the",
        ),
        (TokenLoader(TokenDataset(reference, seq_len=9), 2, seed=3), "seq_len is 8 in the state, 9 in the loader"),
        (TokenLoader(data, 2, seed=4), "seed is 3 in the state, 4 in the loader"),
        (TokenLoader(data, 2, seed=3, order="full"), "order is 'block' in the state, 'full' in the loader"),
        (TokenLoader(data, 2, seed=3, lanes=2), "lanes is 5 in the state, 2 in the loader"),
        (
            TokenLoader(TokenDataset(reference, seq_len=8, packing="best_fit"), 2, seed=3),
            "packing is 'concat' in the state, 'best_fit' in the loader",
        ),
    ):
        next(loader)
        before = loader.state_dict()
        with pytest.raises(TokenloomError, match=f"{message}.*; TokenLoader.from_state opens the stream of a state$"):
            loader.load_state_dict(through_json(state))
        assert loader.state_dict() == before  # a refused state changes nothing
        loader.close()
    monkeypatch.setattr(stream_module, "ORDER_VERSION", 2)
    with pytest.raises(TokenloomError, match=r"order_version is 1 in the state, 2 in the loader$"):
        TokenLoader(data, 2, seed=3).load_state_dict(state)


def test_a_state_loads_with_other_fields_and_batch_sizes_but_not_with_other_labels(reference: str) -> None:
    state = TokenLoader(TokenDataset(reference, seq_len=8), 2).state_dict()
    for options in ({"labels": "same"}, {"mask_documents": True}):
        other = TokenLoader(TokenDataset(reference, seq_len=8, **options), 2)
        with pytest.raises(TokenloomError, match=f"{next(iter(options))} is .* in the state"):
            other.load_state_dict(state)
    data = TokenDataset(reference, seq_len=8, fields=("position_ids",), mask_documents=False)
    loader = TokenLoader(data, 5, rank=2, world_size=3)
    loader.load_state_dict(state | {"samples": 30})
    assert loader.state_dict() == state | {"samples": 30}


_WEIGHTS = "stream.weights"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenloom_state": 2}, "tokenloom_state must be 1; a newer one needs a newer tokenloom"),
        *(({"samples": samples}, "samples must be ") for samples in (True, 2**63, -1, 1.5, None, "7")),
        ({"stream": []}, "stream must be an object"),
        ({"stream": {}}, "stream.dataset must be given"),
        ({"stream": {"members": 3}}, "stream.members must be an object"),
        *(
            ({"weights": weights}, _WEIGHTS)
            for weights in (
                [],
                [3],
                [[0]],
                [[0, [1]]],
                [[0, [1, 1.5]]],
                [[None, [1, 1]]],
                [[0, [1, 1], 2]],
                [[0, [0, 0]]],
                [[0, [-1, 2]]],
            )
        ),
    ],
)
def test_an_invalid_state_is_refused(reference: str, small: str, change: dict[str, Any], message: str) -> None:
    loader = TokenLoader(staged_mixture(reference, small), 2)
    state = through_json(loader.state_dict())
    (state["stream"] if "weights" in change else state).update(change)
    with pytest.raises(TokenloomError, match=f"not a loader state: {re.escape(message)}"):
        loader.load_state_dict(state)
    for what in (state, {}, json.dumps(state)):
        with pytest.raises(TokenloomError, match="not a loader state"):
            TokenLoader.from_state(str(Path(reference).parent), what, 2)  # type: ignore[arg-type]


def test_a_padded_end_counts_only_existing_samples(reference: str) -> None:
    data = TokenDataset(reference, seq_len=8)
    assert len(data) % 11
    loader = TokenLoader(data, 11, num_epochs=1, drop_last=False)
    for _ in loader:
        pass
    assert loader.state_dict()["samples"] == len(data)
    longer = TokenLoader(data, 11, num_epochs=2, drop_last=False)
    longer.load_state_dict(loader.state_dict())
    second_epoch = longer.stream.window(np.arange(len(data), len(data) + 11), 11).tokens(0, 11)
    assert next(longer)["input_ids"].tolist() == second_epoch[:, :-1].tolist()


def test_a_state_brings_its_labels_and_options_that_it_decides_are_refused(reference: str) -> None:
    loader = TokenLoader(TokenDataset(reference, seq_len=8, labels="same", mask_documents=True), 2, seed=4)
    next(loader)
    again = TokenLoader.from_state(str(Path(reference).parent), through_json(loader.state_dict()), 2)
    assert again.stream.format == loader.stream.format
    assert next(again)["labels"].tolist() == next(loader)["labels"].tolist()
    with pytest.raises(TypeError, match="multiple values for keyword argument 'seed'"):
        TokenLoader.from_state(str(Path(reference).parent), loader.state_dict(), 2, seed=4)  # type: ignore[call-arg]


def test_a_state_opens_the_version_it_names_after_the_tag_moved(tmp_path: Path) -> None:
    reference = write_store(tmp_path, [random_documents(600, 9.0, 1, 5000)], vocab_size=5000)
    old = TokenDataset(reference, seq_len=8)
    loader = TokenLoader(old, 2, seed=5, order="full", num_epochs=3)
    for _ in range(4):
        next(loader)
    state = through_json(loader.state_dict())
    write_store(tmp_path, [random_documents(700, 9.0, 2, 5000)], vocab_size=5000)
    new = TokenDataset(reference, seq_len=8)
    assert new.manifest["version"] != old.manifest["version"]
    with pytest.raises(TokenloomError, match="version is"):
        TokenLoader(new, 2, seed=5, order="full").load_state_dict(state)
    with pytest.warns(UserWarning, match="no tag names .* may delete it while you train"):
        again = TokenLoader.from_state(str(tmp_path), state, 2, num_epochs=3, dataset={"labels": "shifted"})
    for one, other in zip(loader, again, strict=True):
        assert_same(one, other)
    store = LocalStore(reference)
    move(store, "latest", old.manifest["version"], newest_number(store, "latest"), "back")
    TokenLoader(TokenDataset(reference, seq_len=8), 2, seed=5, order="full").load_state_dict(state)


# ---- DataLoader


def test_a_stream_and_its_pickle_give_the_same_batches_in_iterators_at_the_same_time(reference: str) -> None:
    stream = TokenDataset(reference, seq_len=8).iterable(batch_size=2, seed=1, num_epochs=1)
    again = pickle.loads(pickle.dumps(stream))  # noqa: S301  (our own bytes)
    alone = [copied(batch) for batch in stream]
    for batch, *others in zip(alone, stream, stream, again, strict=True):
        for other in others:
            assert_same(other, batch)


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize("start", [0, 6, 7, 60])
def test_an_iterable_without_workers_reads_the_stream_of_a_loader_from_any_start(
    reference: str, packing: str, start: int
) -> None:
    data = TokenDataset(reference, seq_len=8, packing=packing, fields=FIELDS)
    options: dict[str, Any] = {"seed": 1, "num_epochs": 2, "rank": 1, "world_size": 2, "drop_last": False}
    loader = TokenLoader(data, 3, **options)
    loader.load_state_dict(loader.state_dict() | {"samples": start})
    stream = data.iterable(batch_size=3, start=start, **options)
    for one, other in zip(stream, loader, strict=True):
        assert_same(one, other)


def test_an_iterable_of_single_samples_reads_the_stream_sample_by_sample(reference: str) -> None:
    data = TokenDataset(reference, seq_len=8, packing="best_fit", fields=FIELDS)
    rows = list(TokenLoader(data, 1, num_epochs=1))
    samples = list(data.iterable(num_epochs=1))
    assert len(samples) == len(rows) == len(data)
    for sample, row in zip(samples, rows, strict=True):
        assert set(sample) == {"input_ids", "labels", "document_ids", "position_ids"}  # cu_seqlens belongs to a batch
        for name, values in sample.items():
            assert torch.equal(values, row[name][0])


def test_arguments_of_an_iterable_out_of_range_are_refused(reference: str) -> None:
    data = TokenDataset(reference, seq_len=8)
    for options, message in (
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"start": -1}, "start must be at least 0, not -1"),
        ({"order": "x"}, "order must be one of"),
        ({"num_epochs": 1, "start": 10**9}, "0 samples are too few for a step"),
    ):
        with pytest.raises(ValueError, match=message):
            data.iterable(**options)


_WORKERS = """
import json, sys
import torch
from torch.utils.data import DataLoader
from tests.reader.test_faults import read_with_workers
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader

def key(batch):
    return [batch[name].tolist() for name in ("input_ids", "labels", "document_ids")]

def check(reference, context, persistent, in_order, packing):
    data = TokenDataset(reference, seq_len=8, packing=packing, fields=("document_ids",))
    options = dict(num_workers=3, multiprocessing_context=context, persistent_workers=persistent, in_order=in_order)
    stream = data.iterable(batch_size=2, seed=4, start=10, num_epochs=2)
    workers = DataLoader(stream, batch_size=None, **options)
    for _ in range(2 if persistent else 1):
        loader = TokenLoader(data, 2, seed=4, num_epochs=2)
        loader.load_state_dict(loader.state_dict() | {"samples": 10})
        expected, found = [key(b) for b in loader], [key(b) for b in workers]
        assert len(found) == len(expected) > 20
        assert (found == expected) if in_order else (sorted(found) == sorted(expected)), "iterable"
    alone = [key(b) for b in DataLoader(data, batch_size=4)]
    mapped = [key(b) for b in DataLoader(data, batch_size=4, **options)]
    assert (mapped == alone) if in_order else (sorted(mapped) == sorted(alone)), "map-style"
    assert sum(len(ids) for ids, _, _ in alone) == len(data)

if __name__ == "__main__":
    for arguments in json.loads(sys.argv[1]):
        check(*arguments)
        print("equal")
    read_with_workers(sys.argv[2])
"""


@pytest.mark.slow
def test_workers_of_a_dataloader_read_the_stream_of_a_loader_and_name_a_damaged_shard(
    reference: str, tmp_path: Path
) -> None:
    # In a separate interpreter: a fork of this one would inherit the threads of other tests' servers, and where asyncio
    # ran before, each worker of torch takes 5 s to end.
    script = tmp_path / "workers.py"
    script.write_text(_WORKERS)
    reduced = [("fork", False, False, "best_fit")]
    full = [
        (context, persistent, in_order, PACKINGS[i])
        for context in multiprocessing.get_all_start_methods()
        for i, (persistent, in_order) in enumerate(itertools.product((True, False), repeat=2))
    ]
    cases = [[reference, *case] for case in (reduced, full)[count(0, 1)]]
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(cases), str(tmp_path)],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=count(150, 1800),
        check=False,
    )
    assert done.stdout.splitlines() == ["equal"] * len(cases), done.stderr


def test_samplers_of_torch_accept_a_dataset(reference: str) -> None:
    data = TokenDataset(reference, seq_len=8)
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=4, rank=2, shuffle=False)  # type: ignore[arg-type,var-annotated]
    loader: DataLoader[Any] = DataLoader(data, batch_size=3, sampler=sampler)  # type: ignore[arg-type]
    rows = [row for batch in loader for row in batch["input_ids"].tolist()]
    oracle = Oracle(reference, 8)
    assert rows[:5] == [oracle.sample(i)["input_ids"] for i in range(2, 22, 4)]
