"""examples/train_trainer.py with the real Trainer: its loss is that of our samples, and it resumes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.counts import full_only
from tokenloom import TokenDataset
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


@full_only
def test_the_first_loss_is_that_of_the_first_samples(example: ModuleType, corpus: str, tmp_path: Path) -> None:
    trainer = example.train(
        corpus, tmp_path, steps=10, train_sampling_strategy="sequential", save_strategy="no", **_QUIET
    )
    data = TokenDataset(corpus, seq_len=128)  # labels shifted by us
    samples = [data[i] for i in range(SHORT.batch_size)]
    inputs, labels = (torch.from_numpy(np.stack([s[name] for s in samples])) for name in ("input_ids", "labels"))
    with torch.no_grad():
        logits = example.make_model(data)(input_ids=inputs).logits
    # The model shifts the labels itself, so it never sees the label of the last input.
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, :-1].flatten())
    losses = _losses(trainer)
    assert losses[0] == pytest.approx(expected.item(), abs=2e-4)
    assert losses[-1] < losses[0] - 1
    assert trainer.state.log_history[-1]["eval_loss"] < losses[0] - 1


def test_resumed_training_has_the_losses_of_uninterrupted_training(
    example: ModuleType, corpus: str, tmp_path: Path
) -> None:
    whole = _losses(example.train(corpus, tmp_path / "whole", steps=8, save_strategy="no", **_QUIET))
    example.train(corpus, tmp_path / "stopped", steps=3, save_steps=3, **_QUIET)
    then = _losses(example.train(corpus, tmp_path / "stopped", steps=8, resume=True, **_QUIET))
    assert then == pytest.approx(whole, abs=2e-4)
