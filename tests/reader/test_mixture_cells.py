"""A mixture of 200 cells in the shape of a published run of 18 T tokens: planned in stages, and amended in the middle.

cells.json has, for 40 topics of 5 levels of quality each, the tokens of the cells in millions, the weights with which
the run began, and the two sets of weights from step 108,000 of 390,251 on and for its last fifth:
github.com/marin-community/marin, issue 8435, pull requests 8427 and 9162. Here a cell has a thousandth of its tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.builders.synthetic_store import write_sparse_store
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.mixture import Mixture

_T = 2048
_RUN = int(18e9) // _T  # samples
_AMENDED, _LAST = _RUN * 108_000 // 390_251, _RUN * 4 // 5
_PAGE = Path(__file__).parents[2] / "docs" / "guides" / "mixtures.md"
_NAMES = [f"c{topic:02}q{level}" for topic in range(40) for level in range(5)]


@pytest.fixture(scope="module")
def cells() -> dict[str, NDArray[np.float64]]:
    read = json.loads(Path(__file__).with_name("cells.json").read_text())
    return {name: np.array(values).ravel() for name, values in read.items()}


@pytest.fixture(scope="module")
def datasets(folder: Path, cells: dict[str, Any]) -> dict[str, TokenDataset]:
    """Sparse files, which take no disk: only their lengths matter for a plan."""
    found = {}
    for name, millions in zip(_NAMES, cells["tokens"].tolist(), strict=True):
        reference = write_sparse_store(folder / "cells" / name, 1, round(millions * 1000), round(millions * 1000))
        found[name] = TokenDataset(reference, seq_len=_T)
    return found


def test_each_cell_is_read_as_often_as_planned(datasets: dict[str, TokenDataset], cells: dict[str, Any]) -> None:
    weights = [dict(zip(_NAMES, cells[name].tolist(), strict=True)) for name in ("first", "second", "third")]
    first, second, third = weights
    begun = Mixture({name: (data, first[name]) for name, data in datasets.items()}, [(_LAST, third)])
    loader = TokenLoader(begun, 8)
    state = loader.state_dict() | {"samples": _AMENDED}
    stores = {name: str(Path(data.reference).parent) for name, data in datasets.items()}
    amended = Mixture.from_state(stores, state).then(second).then(third, from_sample=_LAST)
    with pytest.raises(ValueError, match=r"member 'c04q1' would pass 1.5 epochs at sample 7,485,123 of 8,789,062"):
        Mixture.from_state(stores, state).then(second, max_epochs=dict.fromkeys(_NAMES, 1.5), num_samples=_RUN)
    loader = TokenLoader(amended, 8)
    loader.load_state_dict(state, amend=True)
    lengths = np.diff([0, _AMENDED, _LAST, _RUN])
    shares = [np.array([*each.values()]) / sum(each.values()) for each in weights]
    expected = sum(length * share for length, share in zip(lengths, shares, strict=True))
    consumed = loader.consumed(_RUN)
    samples = np.array([consumed[name].samples for name in _NAMES])
    assert np.abs(samples - expected).max() < 6  # two for each stage
    epochs = np.array([consumed[name].epochs for name in _NAMES]).reshape(40, 5)
    rows = [" | ".join(f"{value:.2f}" for value in row) for row in epochs]
    assert "\n".join(f"| {topic} | {row} |" for topic, row in enumerate(rows)) in _PAGE.read_text(encoding="utf-8")
