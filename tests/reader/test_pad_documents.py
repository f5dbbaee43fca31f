"""Documents padded to a multiple, so that context parallel ranks can cut each of them in zigzag."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.synthetic_store import EOT, write_store
from tests.reader.oracle import FIELDS, Oracle, as_lists, make_store
from tests.reader.test_trace import Built, _build
from tokenloom.errors import TokenloomError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.mixture import Stream
from tokenloom.reader.ranks import DataRank, Steps
from tokenloom.reader.trace import ShardTokens, find_sightings

_ALL_FIELDS = ("classes", *FIELDS)
_OVERLONG = ["split", "drop", "keep_start"]


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    return make_store(folder / "padded", (300, 90, 500, 12), has_masks=True)


@pytest.fixture(scope="module")
def built(folder: Path) -> Built:
    return _build(folder / "padded_built", 3)


def zigzag(batch: dict[str, Any], rank: int, size: int) -> dict[str, Any]:
    """Return the tokens of a context parallel rank, (B * T / size,): of 2 * size chunks of each document, two.

    As TransformerEngine cuts packed sequences by `cu_seqlens_padded`.
    """
    taken = []
    for start, end in itertools.pairwise(batch["cu_seqlens"].tolist()):
        assert (end - start) % (2 * size) == 0
        chunks = np.arange(start, end).reshape(2 * size, -1)
        taken += [*chunks[rank], *chunks[2 * size - 1 - rank]]
    names = ("input_ids", "labels", "position_ids", "document_ids")
    return {name: batch[name].flatten()[taken] for name in names} | {"at": np.array(taken)}


@settings(deadline=None, max_examples=25)
@given(
    size=st.sampled_from([1, 2, 3, 4]),
    times=st.integers(1, 5),
    overlong=st.sampled_from(_OVERLONG),
    labels=st.sampled_from(["shifted", "same"]),
    seed=st.integers(0, 99),
)
def test_parts_of_all_ranks_are_the_batch_and_batches_are_those_of_the_definition(
    reference: str, size: int, times: int, overlong: str, labels: str, seed: int
) -> None:
    seq_len, multiple = 2 * size * times, 2 * size
    options: dict[str, Any] = {"labels": labels, "fields": _ALL_FIELDS}
    data = TokenDataset(
        reference, seq_len=seq_len, packing="best_fit", overlong=overlong, pad_documents=multiple, **options
    )
    oracle = Oracle(reference, seq_len, data.packing, **options)
    assert len(data) == len(oracle)
    loader = TokenLoader(data, 3, num_epochs=1, drop_last=False, seed=seed, prefetch=0)
    order = [*loader.stream.members[None].order.samples(np.arange(len(data))).tolist(), None, None]
    for step, batch in enumerate(loader):
        assert as_lists(batch) == oracle.batch(order[3 * step : 3 * step + 3])
        parts = [zigzag(batch, rank, size) for rank in range(size)]
        assert sorted(np.concatenate([part["at"] for part in parts]).tolist()) == list(range(3 * seq_len))
        for name in ("input_ids", "labels", "position_ids", "document_ids"):
            together = torch.empty_like(batch[name].flatten())
            for part in parts:
                together[part["at"]] = part[name]
            assert together.equal(batch[name].flatten())


def test_a_golden_batch(tmp_path: Path) -> None:
    tokens, lengths = np.arange(1, 18, dtype=np.uint16), np.array([3, 5, 9], np.uint32)
    tokens[np.cumsum(lengths) - 1] = EOT
    options: dict[str, Any] = {"packing": "best_fit", "pad_documents": 4, "fields": FIELDS}
    data = TokenDataset(write_store(tmp_path, [(tokens, lengths)], vocab_size=5000), seq_len=8, **options)
    (batch,) = TokenLoader(data, 3, order="sequential", num_epochs=1)
    x = -100
    assert as_lists(batch) == {
        "input_ids": [[1, 2, 0, 0, 0, 0, 0, 0], [4, 5, 6, 7, 0, 0, 0, 0], [9, 10, 11, 12, 13, 14, 15, 16]],
        "labels": [[2, 0, x, x, x, x, x, x], [5, 6, 7, 0, x, x, x, x], [10, 11, 12, 13, 14, 15, 16, 0]],
        "document_ids": [[0, 0, 0, 0, -1, -1, -1, -1], [0] * 8, [0] * 8],
        "position_ids": [[0, 1, 2, 3, 0, 1, 2, 3], [*range(8)], [*range(8)]],
        "cu_seqlens": [0, 4, 8, 16, 24],
        "max_seqlen": 8,
        "num_targets": 2 + 4 + 8,
    }


def test_a_state_is_refused_by_a_dataset_that_pads_otherwise(reference: str) -> None:
    def loader(**options: Any) -> TokenLoader:
        return TokenLoader(TokenDataset(reference, seq_len=24, packing="best_fit", overlong="drop", **options), 3)

    state = loader(pad_documents=8).state_dict()
    for other in ({}, {"pad_documents": 4}, {"pad_documents": 1}):
        with pytest.raises(TokenloomError, match="packing is 'best_fit_drop_pad8' in the state, 'best_fit_drop"):
            loader(**other).load_state_dict(state)
    assert loader().state_dict() == loader(pad_documents=1).state_dict()


def test_a_trace_says_where_each_document_is_in_its_row(built: Built) -> None:
    data = TokenDataset(built.reference, seq_len=48, packing="best_fit", pad_documents=8)
    stream, steps = Stream(data, "block", 0, None), Steps(DataRank(0, 1, "test"), 1, None)
    rng = random.Random(1)
    num_later = 0
    for index in rng.sample(range(len(data)), 40):
        ids = [*data[index]["input_ids"].tolist(), int(data[index]["labels"][-1])]
        (sample,) = data.trace(index)["samples"]
        for document in sample["documents"]:
            text = built.texts[document["source"], document["path"], document["row"]]
            whole = [*text.encode(), 255]
            start, end, begin = document["start"], document["end"], document["document_start"]
            assert ids[start:end] == whole[begin : begin + end - start]
            assert start % 8 == 0
            num_later += start > 0
        shard = data.shards_of(np.array([index]))[0]
        row = data.locate(np.array([index]))
        tokens = ShardTokens(int(shard), int(row.starts[0]), int(row.starts[0]) + 1)
        seen = find_sightings(stream, data.shards.manifest.version, "train", [tokens], steps, range(1))
        assert index in [each["sample"] for each in seen]
    assert num_later > 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad_documents": 5}, "best_fit_pad5 pads documents: seq_len must be a multiple of 5, not 24"),
        ({"pad_documents": 48}, "seq_len must be a multiple of 48, not 24"),
        ({"pad_documents": 0}, "pad_documents must be at least 1"),
        ({"pad_documents": 8, "packing": "concat"}, "pad_documents=8 is of the packing best_fit, not of 'concat'"),
        ({"pad_documents": 8, "mask_documents": False}, "pad_documents needs mask_documents"),
        ({"packing": "best_fit_pad7"}, "best_fit_pad7 pads documents: seq_len must be a multiple of 7, not 24"),
    ],
)
def test_what_can_not_be_padded_is_refused(reference: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenDataset(reference, seq_len=24, **{"packing": "best_fit", **options})
