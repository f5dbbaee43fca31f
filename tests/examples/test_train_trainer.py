"""examples/train_trainer.py with the real Trainer: its loss is that of our samples, and it resumes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tokenloom.examples.data_options import DataOptions

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch.utils.data"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore::UserWarning:transformers"),
]
SHORT = DataOptions(seq_len=128)
_QUIET: dict[str, Any] = {"use_cpu": True, "disable_tqdm": True, "logging_steps": 1, "data": SHORT}


def _losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_resumed_training_has_the_losses_of_uninterrupted_training(
    example: ModuleType, corpus: str, tmp_path: Path
) -> None:
    whole = _losses(example.train(corpus, tmp_path / "whole", steps=8, save_strategy="no", **_QUIET))
    example.train(corpus, tmp_path / "stopped", steps=3, save_steps=3, **_QUIET)
    then = _losses(example.train(corpus, tmp_path / "stopped", steps=8, resume=True, **_QUIET))
    assert then == pytest.approx(whole, abs=2e-4)
