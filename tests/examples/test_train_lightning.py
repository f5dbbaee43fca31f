"""examples/train_lightning.py with the real Lightning: a resumed fit continues with the very next sample."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tokenloom.examples.data_options import DataOptions

SHORT = DataOptions(seq_len=128)

# Lightning's own: how many workers its data loaders should have, that the folder is not empty, and torch it calls.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning"),
]


@pytest.fixture
def fit(example: ModuleType, corpus: str, tmp_path: Path) -> Callable[..., tuple[list[torch.Tensor], Any]]:
    """Fit up to a step; returns the inputs of every batch, in order, and the trainer."""
    from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint

    def run(steps: int, every: int, resume: bool = False, **options: Any) -> tuple[list[torch.Tensor], Any]:
        seen: list[torch.Tensor] = []
        watch = LambdaCallback(
            on_train_batch_start=lambda trainer, module, batch, index: seen.append(batch["input_ids"].clone())
        )
        callbacks = [ModelCheckpoint(tmp_path, save_last=True, every_n_train_steps=every), watch]
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        options = {"limit_train_batches": 8, "limit_val_batches": 2, **quiet, **options}
        return seen, example.fit(corpus, tmp_path, steps, resume, SHORT, callbacks=callbacks, **options)

    return run


@pytest.mark.parametrize("stop", [5, 8, 11])  # within an epoch of 8 batches, at its end, in the next one
def test_a_resumed_fit_continues_with_the_next_sample(fit: Any, example: ModuleType, corpus: str, stop: int) -> None:
    first, _ = fit(steps=stop, every=stop)
    then, trainer = fit(steps=20, every=100, resume=True)
    data = example.Tokens(corpus, SHORT)
    loader = data.train_dataloader()
    expected = [next(loader)["input_ids"] for _ in range(20)]
    loader.close()
    assert len(first) == stop
    assert torch.equal(torch.stack(first + then), torch.stack(expected))
    assert trainer.global_step == 20
    assert trainer.callback_metrics["validation_loss"] < 5
