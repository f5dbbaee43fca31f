"""Documents padded to a multiple, so that context parallel ranks can cut each of them in zigzag."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reader.oracle import FIELDS, Oracle, as_lists, make_store
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader

_ALL_FIELDS = ("classes", *FIELDS)
_OVERLONG = ["split", "drop", "keep_start"]


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    return make_store(folder / "padded", (300, 90, 500, 12), has_masks=True)


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
