"""examples/train_accelerate.py with the real Accelerate: a restored run continues, on one process or two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tokenloom.examples.data_options import DataOptions

SHORT = DataOptions(seq_len=128, evaluation_batches=2)
_ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning:accelerate")]


@pytest.fixture(autouse=True)
def _fresh_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from accelerate.state import AcceleratorState, GradientState

    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def test_a_restored_run_continues_with_the_next_batch(example: ModuleType, corpus: str, tmp_path: Path) -> None:
    whole = example.train(corpus, tmp_path / "whole", steps=12, options=SHORT)
    first = example.train(corpus, tmp_path / "stopped", steps=5, options=SHORT)
    then = example.train(corpus, tmp_path / "stopped", steps=12, resume=True, options=SHORT)
    assert (len(first), len(then)) == (5, 7)
    assert first + then == pytest.approx(whole, abs=1e-6)
    assert whole[-1] < whole[0] - 0.5
