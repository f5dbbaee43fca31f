"""examples/train_lightning.py with the real Lightning: a resumed fit continues with the very next sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from examples import train_lightning
from tokenloom import TokenLoader

# Lightning's own: how many workers its data loaders should have, that the folder is not empty, and torch it calls.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning"),
]


class Seen(lightning.Callback):
    """The inputs of every batch that was trained on, in order, and the loss of the last validation."""

    def __init__(self) -> None:
        self.batches: list[torch.Tensor] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: dict[str, torch.Tensor], index: int) -> None:
        """Keep a batch."""
        self.batches.append(batch["input_ids"].clone())


def _fit(reference: str, folder: Path, steps: int, every: int, resume: bool = False, **options: Any) -> tuple[Any, Any]:
    seen = Seen()
    callbacks = [ModelCheckpoint(folder, save_last=True, every_n_train_steps=every), seen]
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    options = {"limit_train_batches": 8, "limit_val_batches": 2, **quiet, **options}
    trainer = train_lightning.fit(reference, folder, steps, resume, callbacks=callbacks, **options)
    return seen.batches, trainer


@pytest.mark.parametrize("stop", [5, 8, 11])  # within an epoch of 8 batches, at its end, in the next one
def test_a_resumed_fit_continues_with_the_next_sample(corpus: str, tmp_path: Path, stop: int) -> None:
    first, _ = _fit(corpus, tmp_path, steps=stop, every=stop)
    then, trainer = _fit(corpus, tmp_path, steps=20, every=100, resume=True)
    data = train_lightning.Tokens(corpus)
    loader = data.train_dataloader()
    expected = [next(loader)["input_ids"] for _ in range(20)]
    loader.close()
    assert len(first) == stop
    assert torch.equal(torch.stack(first + then), torch.stack(expected))
    assert trainer.global_step == 20
    assert trainer.callback_metrics["validation_loss"] < 5


def test_without_a_limit_lightning_counts_a_prefetched_batch_in_its_checkpoint(corpus: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"limit_train_batches": 1.0, "limit_val_batches": 0}
    first, _ = _fit(corpus, tmp_path, steps=5, every=5, **options)
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    (state,) = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert len(first) == 5
    assert state["samples"] == 6 * train_lightning.BATCH_SIZE  # the pitfall that the example describes


def test_lightning_uses_the_loader_unchanged(corpus: str, tmp_path: Path) -> None:
    _, trainer = _fit(corpus, tmp_path, steps=1, every=1)
    assert isinstance(trainer.train_dataloader, TokenLoader)
    trainer.train_dataloader.close()
