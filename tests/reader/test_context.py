"""Parts of batches for context parallel ranks, cu_seqlens of a fixed length, and rows of any global batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.reader.oracle import FIELDS, make_store
from tokenloom import context_shard
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    return make_store(folder / "context", (300, 90, 500))


def _together(parts: list[Any], layout: str) -> Any:
    """Return the (B, T) array of which these are the parts of all ranks."""
    if layout == "contiguous":
        return np.concatenate(parts, axis=1)
    half = parts[0].shape[1] // 2
    return np.concatenate([part[:, :half] for part in parts] + [part[:, half:] for part in parts[::-1]], axis=1)


@pytest.mark.parametrize("layout", ["headtail", "contiguous"])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_parts_of_all_ranks_together_are_the_batch(reference: str, packing: str, size: int, layout: str) -> None:
    batch = next(TokenLoader(TokenDataset(reference, seq_len=16, packing=packing, fields=FIELDS), 3))
    parts = [context_shard(batch, rank, size, layout) for rank in range(size)]
    for name in ("input_ids", "labels", "position_ids", "document_ids"):
        assert all(part[name].shape == (3, 16 // size) for part in parts)
        assert np.array_equal(_together([part[name] for part in parts], layout), batch[name])
        assert all(part[name].dtype == batch[name].dtype and part[name].is_contiguous() for part in parts)
    for part in parts:
        assert part["cu_seqlens"] is batch["cu_seqlens"]
        assert part["max_seqlen"] == batch["max_seqlen"]
        assert "num_targets" not in part
    assert sum(int((part["labels"] != -100).sum()) for part in parts) == batch["num_targets"]


def test_a_part_says_where_its_tokens_are(reference: str) -> None:
    batch = next(TokenLoader(TokenDataset(reference, seq_len=8), 2))
    part = context_shard(batch, 0, 2)
    assert part["position_ids"].tolist() == [[0, 1, 6, 7]] * 2
    assert "position_ids" not in batch
    part["labels"][:] = 0
    assert (batch["labels"] != 0).any()  # the part is a copy
    of_arrays = context_shard({name: np.asarray(batch[name]) for name in ("input_ids", "labels")}, 1, 2)
    assert isinstance(of_arrays["labels"], np.ndarray)
    assert of_arrays["position_ids"].tolist() == [[2, 3, 4, 5]] * 2
    assert np.array_equal(of_arrays["input_ids"], batch["input_ids"][:, 2:6])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 3), r"rows of 16 tokens can't be cut into 6 equal chunks for 3 .* 'headtail': use a seq_len that 6"),
        ((2, 2), "rank must be below 2"),
        ((0, 0), "size must be at least 1"),
        ((0, 2, "zigzag"), "layout must be one of headtail, contiguous"),
    ],
)
def test_a_part_that_is_not_there_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    batch = {"input_ids": torch.zeros(2, 16, dtype=torch.int64), "labels": torch.zeros(2, 16, dtype=torch.int64)}
    with pytest.raises(ValueError, match=message):
        context_shard(batch, *arguments)


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_cu_seqlens_of_a_fixed_length_end_with_empty_runs(reference: str, packing: str) -> None:
    def loader(**options: Any) -> TokenLoader:
        return TokenLoader(TokenDataset(reference, seq_len=16, packing=packing, fields=["cu_seqlens"], **options), 3)

    for exact, fixed, _ in zip(loader(), loader(cu_seqlens_length=49), range(5), strict=False):
        num_runs = len(exact["cu_seqlens"])
        assert fixed["cu_seqlens"].shape == (49,)
        assert fixed["cu_seqlens"].dtype == torch.int32
        assert fixed["cu_seqlens"][:num_runs].equal(exact["cu_seqlens"])
        assert (fixed["cu_seqlens"][num_runs:] == 48).all()
        assert fixed["max_seqlen"] == exact["max_seqlen"]
    needed = len(next(loader())["cu_seqlens"])
    assert len(next(loader(cu_seqlens_length=needed, max_open_shards=4))["cu_seqlens"]) == needed
    with pytest.raises(ValueError, match=rf"cu_seqlens_length=2 is .* this one has {needed}: pass at least"):
        next(TokenLoader(loader(cu_seqlens_length=2).source, 3, prefetch=0))
    assert loader().state_dict() == loader(cu_seqlens_length=2).state_dict()  # it changes no sample


def test_a_length_of_cu_seqlens_needs_the_field(reference: str) -> None:
    with pytest.raises(ValueError, match='pads the field "cu_seqlens": add it to fields'):
        TokenDataset(reference, seq_len=16, cu_seqlens_length=4)
    with pytest.raises(ValueError, match="cu_seqlens_length must be at least 2"):
        TokenDataset(reference, seq_len=16, fields=["cu_seqlens"], cu_seqlens_length=1)


def _same(one: Any, other: Any) -> bool:
    assert one.keys() == other.keys()
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_rows_of_any_step_are_those_that_ranks_get(reference: str) -> None:
    data = TokenDataset(reference, seq_len=16, fields=FIELDS)
    loaders = [TokenLoader(data, 2, rank=rank, world_size=3, drop_last=False, num_epochs=1) for rank in range(3)]
    at = loaders[1].batch_at
    num_steps = len(loaders[0])
    assert len(data) % 6  # the last step is padded
    for step in range(num_steps):
        of_ranks = [next(loader) for loader in loaders]
        assert _same(at(step), of_ranks[1])
        arrays = at(step, range(6), numpy=True)
        assert isinstance(arrays["input_ids"], np.ndarray)
        for rank, batch in enumerate(of_ranks):
            assert _same(at(step, range(rank, 6, 3)), batch)
            assert np.array_equal(arrays["labels"][rank::3], batch["labels"])
        assert arrays["num_targets"] == sum(batch["num_targets"] for batch in of_ranks)
    assert loaders[1].state_dict()["samples"] == len(data)  # it has not moved
    with pytest.raises(IndexError, match="past the last epoch"):
        at(num_steps)
    for rows in (range(7), range(-1, 2), range(0), range(3, 0, -1)):
        with pytest.raises(IndexError, match=r"rows must be an ascending range of \[0, 6\), not range"):
            at(0, rows)
