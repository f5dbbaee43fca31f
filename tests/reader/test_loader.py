"""TokenLoader: the global sequence over any number of ranks, the contents of batches, their memory, ends and ranks."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
import torch.utils.dlpack

from tests.builders.synthetic_store import EOT
from tests.reader.mesh import Mesh
from tests.reader.oracle import (
    FIELDS,
    PACKINGS,
    Oracle,
    as_lists,
    assert_same,
    make_store,
)
from tokenloom.errors import TokenloomError
from tokenloom.reader.batch import document_mask, segments
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import EvaluationPass, TokenLoader
from tokenloom.reader.mixture import Mixture
from tokenloom.reader.streams.order import ORDERS, Order
from tokenloom.reader.streams.ranks import find_ranks

_WORLDS = (1, 2, 4, 8, 16)
_SHARDS = (300, 90, 500, 12, 210)


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    return make_store(folder / "loader", _SHARDS)


@pytest.fixture(scope="module")
def other(folder: Path) -> str:
    return make_store(folder / "loader_other", (250, 130), seed=5)


def positions_of(start: int, rank: int, world_size: int, batch_size: int) -> list[int]:
    """Return the positions of the global sequence that one rank takes in the step from `start` on."""
    step = range(start, start + batch_size * world_size)
    return [position for position in step if position % world_size == rank]


def expected_batch(oracle: Oracle, samples: list[int], positions: list[int]) -> dict[str, Any]:
    """Return the batch at these positions of a sequence; positions past its end are padding."""
    return oracle.batch([samples[p] if p < len(samples) else None for p in positions])


# ---- the global sequence, and the contents of batches


@pytest.mark.filterwarnings("ignore:a step of all ranks takes")  # more than an epoch has
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("order", ORDERS)
def test_ranks_together_read_the_global_sequence_for_any_world_size(reference: str, order: str, packing: str) -> None:
    data, oracle = TokenDataset(reference, seq_len=16, packing=packing), Oracle(reference, 16, packing)
    n = len(oracle)
    assert (len(data), n > 25) == (n, True)
    samples = Order(order, np.array(oracle.counts), 9).samples(np.arange(2 * n)).tolist()
    assert sorted(samples[:n]) == sorted(samples[n:]) == list(range(n))
    options: dict[str, Any] = {"order": order, "seed": 9, "num_epochs": 2, "drop_last": False, "prefetch": 0}
    for world_size in _WORLDS:
        step_samples = 3 * world_size
        for rank in range(world_size):
            loader = TokenLoader(data, 3, rank=rank, world_size=world_size, **options)
            batches = list(loader)
            assert len(batches) == len(loader) == -(-2 * n // step_samples)
            for step, batch in enumerate(batches):
                positions = positions_of(step * step_samples, rank, world_size, 3)
                assert as_lists(batch) == expected_batch(oracle, samples, positions), (world_size, rank, step)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("labels", ["shifted", "same"])
@pytest.mark.parametrize("mask_documents", [None, True, False])
@pytest.mark.parametrize("fields", [(), FIELDS, ("cu_seqlens",)])
def test_batches_follow_from_tokens_and_offsets_row_by_row(
    reference: str, packing: str, labels: str, mask_documents: bool | None, fields: tuple[str, ...]
) -> None:
    options: dict[str, Any] = {"packing": packing, "labels": labels, "fields": fields, "mask_documents": mask_documents}
    data, oracle = TokenDataset(reference, seq_len=12, **options), Oracle(reference, 12, **options)
    loader = TokenLoader(data, 5, order="sequential", num_epochs=1, drop_last=False, prefetch=4)
    batches = list(loader)
    assert len(batches) == -(-len(oracle) // 5) > 8
    for step, batch in enumerate(batches):
        assert as_lists(batch) == expected_batch(oracle, list(range(len(oracle))), positions_of(5 * step, 0, 1, 5))
    types = {"input_ids": torch.int64, "labels": torch.int64} | dict.fromkeys(fields, torch.int32)
    assert {name: value.dtype for name, value in batches[0].items() if torch.is_tensor(value)} == types
    assert ("max_seqlen" in batches[0]) == ("cu_seqlens" in fields)
    if "document_ids" in fields:  # these rows do contain padding and several documents
        ids = torch.cat([batch["document_ids"] for batch in batches[:-1]])
        assert bool((ids == -1).any()) == (packing in ("document_padded", "best_fit"))
        assert bool((ids == 2).any()) == (packing in ("concat", "best_fit"))


# ---- the memory of batches


def _kept(batch: dict[str, Any], how: str) -> Any:
    ids = batch["input_ids"]
    return {
        "batch": batch,
        "view": ids.view(-1)[3:],
        "numpy": ids.numpy(),
        "slice": ids[1:, 2:5],
        "numpy slice": batch["labels"].numpy()[0, 1:],
        "transposed": batch["position_ids"].T,
        "row": batch["document_ids"][0],
        "storage": ids.untyped_storage(),
        "dlpack": torch.utils.dlpack.from_dlpack(ids),
        "memoryview": memoryview(ids.numpy()),
    }[how]


_WAYS = ("batch", "view", "numpy", "slice", "numpy slice", "transposed", "row", "storage", "dlpack", "memoryview")


def _values(kept: Any) -> bytes:
    if isinstance(kept, dict):
        return b"".join(_values(value) for value in kept.values() if isinstance(value, torch.Tensor))
    if isinstance(kept, torch.UntypedStorage):
        return bytes(kept)
    if isinstance(kept, torch.Tensor):
        return kept.contiguous().numpy().tobytes()
    return bytes(kept) if isinstance(kept, memoryview) else np.ascontiguousarray(kept).tobytes()


@pytest.mark.parametrize("prefetch", [0, 16])
def test_the_parts_of_a_batch_that_a_consumer_keeps_never_change(reference: str, prefetch: int) -> None:
    data = TokenDataset(reference, seq_len=16, fields=FIELDS)
    loader = TokenLoader(data, 2, prefetch=prefetch)
    kept: list[tuple[Any, bytes]] = []
    for step in range(600):
        if step < 40 or step % 7 == 0:
            part = _kept(next(loader), _WAYS[step % len(_WAYS)])
            kept.append((part, _values(part)))
        else:
            next(loader)
    loader.close()
    for step, (part, values) in enumerate(kept):
        assert _values(part) == values, step


@pytest.mark.parametrize("prefetch", [0, 16])
def test_memory_is_reused_when_no_part_of_it_is_kept(reference: str, prefetch: int) -> None:
    data = TokenDataset(reference, seq_len=16)
    loader = TokenLoader(data, 2, prefetch=prefetch)
    places = [next(loader)["input_ids"].data_ptr() for _ in range(400)]
    loader.close()
    assert len(set(places)) <= 64


@pytest.mark.parametrize("prefetch", [0, 16])
def test_labels_can_be_changed_while_other_batches_wait_for_their_backward_pass(reference: str, prefetch: int) -> None:
    loader = TokenLoader(TokenDataset(reference, seq_len=8), 2, prefetch=prefetch)
    for _ in range(40):
        next(loader)  # from here on, several are made together
    table = torch.randn(5000, 4, requires_grad=True)
    first, second = next(loader), next(loader)
    loss = torch.nn.functional.embedding(first["input_ids"], table).sum()
    first["labels"][0, 0] = -100
    second["labels"][0, 0] = second["input_ids"][0, 0] = 0
    loss.backward()  # type: ignore[no-untyped-call]
    assert table.grad is not None


@pytest.mark.parametrize("prefetch", [0, 1, 16])
def test_no_batch_is_an_inference_tensor_even_if_it_is_made_in_inference_mode(reference: str, prefetch: int) -> None:
    loader = TokenLoader(TokenDataset(reference, seq_len=8, fields=("document_ids",)), 2, prefetch=prefetch)
    with torch.inference_mode():
        for _ in range(20):
            next(loader)
    for _ in range(40):
        assert not any(value.is_inference() for value in next(loader).values() if torch.is_tensor(value))


# ---- ends


@pytest.mark.parametrize("world_size", [1, 3, 4])
@pytest.mark.parametrize("drop_last", [True, False])
def test_all_ranks_take_the_same_number_of_steps_and_only_the_end_is_dropped_or_padded(
    reference: str, world_size: int, drop_last: bool
) -> None:
    data, oracle = TokenDataset(reference, seq_len=16), Oracle(reference, 16)
    n = len(oracle)
    options: dict[str, Any] = {"order": "sequential", "num_epochs": 1, "drop_last": drop_last}
    for batch_size in (1, 4, 7, n, n + 1):
        seen = []
        steps = n // (batch_size * world_size) if drop_last else -(-n // (batch_size * world_size))
        if not steps:
            with pytest.raises(
                ValueError, match=rf"{n} samples are too few for a step of {batch_size} samples on {world_size} ranks?:"
            ):
                TokenLoader(data, batch_size, rank=0, world_size=world_size, **options)
            continue
        for rank in range(world_size):
            loader = TokenLoader(data, batch_size, rank=rank, world_size=world_size, **options)
            batches = list(loader)
            assert len(batches) == len(loader) == steps
            for batch in batches:
                assert batch["input_ids"].shape == batch["labels"].shape == (batch_size, 16)
                is_padding = (batch["labels"] == -100).all(dim=1)
                assert (batch["input_ids"][is_padding] == EOT).all()
                seen += batch["input_ids"][~is_padding].tolist()
        whole = [oracle.sample(i)["input_ids"] for i in range(steps * batch_size * world_size if drop_last else n)]
        assert sorted(seen) == sorted(whole)


def test_an_endless_loader_has_no_length_and_a_finished_one_raises_an_error(reference: str) -> None:
    data = TokenDataset(reference, seq_len=16)
    with pytest.raises(TypeError, match="endless loader has no length: pass num_epochs"):
        len(TokenLoader(data, 2))
    loader = TokenLoader(data, 4, num_epochs=1)
    for _ in zip(range(5), loader, strict=False):
        pass
    assert len(list(loader)) == len(loader) - 5  # a second loop continues where the first one stopped
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(loader)
    with pytest.raises(TokenloomError, match=r"last epoch of this loader is over.*EvaluationPass"):
        iter(loader)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("world_size", [1, 4])
def test_an_evaluation_pass_returns_the_same_batches_each_time(reference: str, packing: str, world_size: int) -> None:
    data, oracle = TokenDataset(reference, seq_len=16, packing=packing), Oracle(reference, 16, packing)
    for rank in range(world_size):
        evaluation = EvaluationPass(data, 3, rank=rank, world_size=world_size)
        expected = [
            expected_batch(oracle, list(range(len(oracle))), positions_of(start, rank, world_size, 3))
            for start in range(0, len(oracle), 3 * world_size)
        ]
        assert len(evaluation) == len(expected)
        assert [as_lists(batch) for batch in evaluation] == expected
        for batch in evaluation:
            assert as_lists(batch) == expected[0]
            break
        first = iter(evaluation)
        next(first)
        assert [as_lists(batch) for batch in evaluation] == expected  # while another iteration is halfway
        assert [as_lists(batch) for batch in first] == expected[1:]


@pytest.mark.parametrize("packing", ["document", "best_fit"])
def test_a_closed_loader_continues_where_it_was(folder: Path, packing: str) -> None:
    # Closing cancelled shards that were being opened ahead.
    reference = make_store(folder / f"many_{packing}", [400] * 40, mean_tokens=4)
    data = TokenDataset(reference, seq_len=16, packing=packing)
    whole = TokenLoader(data, 2, prefetch=0, lanes=2)
    loader = TokenLoader(TokenDataset(reference, seq_len=16, packing=packing), 2, io_threads=1, lanes=2)
    for step in range(150):
        assert_same(next(loader), next(whole))
        if step % 3 == 0:
            loader.close()
    loader.close()


# ---- arguments


def test_arguments_out_of_range_are_refused(reference: str) -> None:
    data = TokenDataset(reference, seq_len=16)
    for options, message in (
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"io_threads": -1}, "io_threads must be at least 0, not -1"),
        ({"prefetch": -1}, "prefetch must be at least 0, not -1"),
        ({"compare_ranks": 0}, "compare_ranks must be a positive number of seconds, or None, not 0"),
        ({"num_epochs": 0}, "num_epochs must be at least 1, not 0"),
        ({"lanes": 0}, "lanes must be at least 1, not 0"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"order": "shuffled"}, "order must be one of block, full, sequential, not 'shuffled'"),
        ({"rank": 0}, "rank and world_size belong together"),
        ({"world_size": 2}, "rank and world_size belong together"),
        ({"rank": 2, "world_size": 2}, r"rank 2 of 2 \(arguments\)"),
        ({"rank": -1, "world_size": 2}, "rank must be at least 0, not -1"),
        ({"rank": 0, "world_size": 0}, "world_size must be at least 1, not 0"),
        ({"rank": 0, "world_size": 1, "mesh": object()}, "pass mesh, or rank and world_size, not both"),
    ):
        with pytest.raises(ValueError, match=message):
            TokenLoader(data, **{"batch_size": 2, **options})  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="no samples"):
        empty = TokenDataset(reference, seq_len=100_000)
    with pytest.raises(ValueError, match=r"seq_len=100000 cut none from 1,032 tokens; use a smaller seq_len"):
        TokenLoader(empty, 2)
    for wrong in ({"batch_size": 2.0}, {"prefetch": "4"}, {"num_epochs": 1.5}):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be an integer"):
            TokenLoader(data, **{"batch_size": 2, **wrong})  # type: ignore[arg-type]
    for source in (reference, [1, 2], data.iterable()):
        with pytest.raises(TypeError, match="the source must be a TokenDataset or a Mixture"):
            TokenLoader(source, 2)  # type: ignore[arg-type]


def test_a_step_of_more_samples_than_an_epoch_has_warns_that_it_repeats_some(reference: str) -> None:
    data = TokenDataset(reference, seq_len=16)
    TokenLoader(data, len(data))
    TokenLoader(data, len(data) + 1, num_epochs=1, drop_last=False)  # padded
    message = f"takes {2 * len(data)} samples, and there are {len(data)}: it repeats"
    with pytest.warns(UserWarning, match=message) as caught:
        TokenLoader(data, len(data), rank=0, world_size=2)
    assert [warning.filename for warning in caught] == [__file__]


def test_integers_of_numpy_are_accepted_and_the_state_stays_json(reference: str) -> None:
    import json

    data = TokenDataset(reference, seq_len=np.int64(16))  # type: ignore[arg-type]
    numbers = {name: np.int64(value) for name, value in {"seed": 3, "rank": 1, "world_size": 2, "lanes": 2}.items()}
    loader = TokenLoader(data, np.int64(3), num_epochs=np.int64(5), **numbers)  # type: ignore[arg-type]
    plain = TokenLoader(TokenDataset(reference, seq_len=16), 3, seed=3, rank=1, world_size=2, lanes=2, num_epochs=5)
    assert_same(next(loader), next(plain))
    assert json.dumps(loader.state_dict()) == json.dumps(plain.state_dict())


# ---- masks and segments


@pytest.fixture(scope="module")
def batch_with_documents(reference: str) -> dict[str, Any]:
    """A batch of best_fit with padding and several documents."""
    loader = TokenLoader(TokenDataset(reference, seq_len=32, packing="best_fit", fields=FIELDS), 6, prefetch=0)
    return next(batch for batch in loader if {-1, 2} <= {*batch["document_ids"].flatten().tolist()})


def test_a_token_attends_to_those_before_it_in_its_document(batch_with_documents: dict[str, Any]) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    ids = batch_with_documents["document_ids"]
    allowed = torch.tensor([[[k <= q and row[k] == row[q] for k in range(32)] for q in range(32)] for row in ids])
    mask = document_mask(ids)
    dense = mask.dense()
    assert (dense.shape, dense.dtype) == ((6, 1, 32, 32), torch.bool)
    assert torch.equal(dense[:, 0], allowed)
    assert dense.any(dim=-1).all(), "a row of attention without any key gives NaN"
    block_mask = create_block_mask(mask.mask_mod, 6, None, 32, 32, device="cpu", BLOCK_SIZE=8)
    blocks = allowed.view(6, 4, 8, 4, 8).any(dim=4).any(dim=2)
    assert torch.equal(block_mask.to_dense()[:, 0].bool(), blocks)


def test_segments_cut_all_rows_in_the_same_way_and_drop_values_that_hold_for_whole_rows(
    batch_with_documents: dict[str, Any],
) -> None:
    batch = batch_with_documents
    for number in (1, 2, 4, 32):
        parts = list(segments(batch, number))
        assert len(parts) == number
        for name in ("input_ids", "labels", "document_ids", "position_ids"):
            for i, part in enumerate(parts):
                width = 32 // number
                assert torch.equal(part[name], batch[name][:, i * width : (i + 1) * width])
        assert all("cu_seqlens" not in part and "max_seqlen" not in part for part in parts)
    for number in (3, 0, -1, 64):
        with pytest.raises(ValueError, match=f"32 tokens can't be cut into {number} equal segments"):
            list(segments(batch, number))


# ---- descriptions and statistics


def test_describe_names_shards_order_packing_ranks_and_shapes(reference: str, other: str) -> None:
    data = TokenDataset(reference, seq_len=16, packing="best_fit", fields=("document_ids",), labels="same")
    loader = TokenLoader(data, 3, seed=77, rank=1, world_size=4, lanes=2, prefetch=5)
    parts = [data.manifest["version"], "5 files", f"{data.num_tokens:,} tokens uint16", "split train", "document_ids"]
    parts += ["best_fit", f"{len(data):,} samples", "block, 2 lanes, seed 77", "rank 1 of 4 (from arguments)"]
    parts += ["g % 4 == 1", "(3, 17) uint16", "labels (same) (3, 16) int64", "5 made ahead by a thread"]
    text = loader.describe()
    assert [part for part in parts if part not in text] == []
    second = TokenDataset(other, seq_len=16, packing="best_fit", fields=("document_ids",), labels="same")
    mixture = Mixture({"web": (data, 3), "code": (second, 1)}, [(1000, {"web": 1, "code": 1})])
    text = TokenLoader(mixture, 3, prefetch=0).describe()
    for part in ("web", "code", "from sample 0: web 0.75, code 0.25", "from sample 1,000: web 0.5, code 0.5"):
        assert part in text
    assert "up to eight made when one is requested" in text


def test_stats_report_batches_waits_phases_and_memory(reference: str) -> None:
    data = TokenDataset(reference, seq_len=16, fields=FIELDS)
    loader = TokenLoader(data, 3, prefetch=0)
    empty = loader.stats()
    assert (empty.batches, empty.tokens_per_second, empty.wait_p99) == (0, 0.0, 0.0)
    for _ in range(20):
        next(loader)
    stats = loader.stats()
    assert stats.batches == 20
    assert 0 < stats.wait_p50 <= stats.wait_p99 and stats.first_batch > 0 and 0 < stats.idle_ratio <= 1
    assert all(stats.phases[name] > 0 for name in ("gather", "pack", "copy"))
    assert stats.memory["mapped"] == sum(entry.bytes for entry in data.shards.entries)
    assert stats.bottleneck in stats.phases  # a consumer that does nothing waits all the time
    for part in ("20 batches", "tokens/s", "waiting: mean", "gather", "mapped", f"bottleneck: {stats.bottleneck}"):
        assert part in str(stats)
    assert repr(data) in repr(loader)
    assert "at sample 60" in repr(loader)


# ---- ranks


def test_ranks_come_from_the_mesh_the_arguments_or_the_environment_or_default_to_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tokenloom")

    def found(*arguments: Any) -> tuple[int, int]:
        caplog.clear()
        ranks = find_ranks(*arguments)
        (record,) = caplog.records
        message = record.getMessage()
        assert message.startswith(f"data-parallel rank {ranks.rank} of {ranks.world_size}, from {ranks.origin}")
        return ranks.rank, ranks.world_size

    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert found(None, None) == (0, 1)
    assert "one process" in caplog.text
    monkeypatch.setenv("RANK", "5")
    with pytest.raises(ValueError, match="RANK='5' and WORLD_SIZE=None in the environment must both be integers"):
        find_ranks(None, None)
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert found(None, None) == (5, 8)
    assert "RANK and WORLD_SIZE" in caplog.text
    assert found(1, 2) == (1, 2)
    assert "from arguments" in caplog.text
    assert found(None, None, Mesh({"dp": 3}, 2)) == (2, 3)
    assert "from mesh" in caplog.text
    with pytest.raises(ValueError, match="dims are those of a mesh"):
        find_ranks(None, None, None, ["dp"])
    monkeypatch.setenv("RANK", "a")
    with pytest.raises(ValueError, match="RANK='a' and WORLD_SIZE='8' in the environment must both be integers"):
        find_ranks(None, None)
    monkeypatch.setenv("RANK", "8")
    with pytest.raises(ValueError, match=r"rank 8 of 8 \(RANK and WORLD_SIZE\)"):
        find_ranks(None, None)


@pytest.mark.parametrize("prefetch", [0, 4])
def test_another_device_gets_the_same_shapes(reference: str, prefetch: int) -> None:
    data = TokenDataset(reference, seq_len=16, fields=FIELDS)
    on_cpu, on_meta = TokenLoader(data, 3, prefetch=prefetch), TokenLoader(data, 3, prefetch=prefetch, device="meta")
    for _ in range(3):
        one, two = next(on_cpu), next(on_meta)
        assert one["max_seqlen"] == two["max_seqlen"]
        for name in ("input_ids", "labels", *FIELDS):
            assert (two[name].shape, two[name].dtype, two[name].device.type) == (
                one[name].shape,
                one[name].dtype,
                "meta",
            )
    on_cpu.close()
    on_meta.close()


def test_a_loader_that_its_own_thread_collects_ends_that_thread(
    reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector may run while that thread holds a lock of the pool, as here."""
    start, is_dropped = threading.Thread.start, threading.Event()

    def start_after_collecting(self: threading.Thread) -> None:
        if self.name.startswith("tokenloom-io"):
            is_dropped.wait()
            gc.collect()
        start(self)

    before = set(threading.enumerate())
    loader = TokenLoader(TokenDataset(reference, seq_len=8), 8, rank=0, world_size=1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_after_collecting)
        loader.start()
        (thread,) = set(threading.enumerate()) - before
        is_collected = weakref.ref(loader)
        loader.cycle = loader  # type: ignore[attr-defined]
        del loader
        is_dropped.set()
        thread.join(10)
    assert not thread.is_alive()
    assert is_collected() is None
