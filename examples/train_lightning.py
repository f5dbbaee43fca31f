"""Train with Lightning, which automatically saves and restores the position in the data, even mid-epoch.

    python examples/train_lightning.py STORE/DATASET@TAG_OR_VERSION [--resume]

Create the loader in `train_dataloader`, where the process group exists. The loader is endless, and
`limit_train_batches` sets how many batches Lightning treats as an epoch. Without that limit, Lightning takes one batch
ahead, and every checkpoint and every epoch would lose that batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Never

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from tokenloom import EvaluationPass, TokenLoader
from tokenloom.examples.data_options import DEFAULTS, DataOptions

EPOCH_BATCHES = 100


class Tokens(lightning.LightningDataModule):
    """Training batches from the position of a checkpoint, and a pass over the split `validation`.

    Lightning saves the state of whatever `train_dataloader` returns, if it has state_dict and load_state_dict.
    """

    def __init__(self, reference: str, options: DataOptions = DEFAULTS) -> None:
        super().__init__()
        self.batch_size = options.batch_size
        self.train_data, (self.validation_data,) = options.open(reference, "validation")

    def train_dataloader(self) -> TokenLoader:
        """Return this rank's endless batches."""
        return TokenLoader(self.train_data, self.batch_size, seed=0)

    def val_dataloader(self) -> EvaluationPass | list[Never]:
        """Return this rank's share of the validation split, identical each time; no loader if it has no samples."""
        return EvaluationPass(self.validation_data, self.batch_size) if self.validation_data is not None else []


class NextToken(lightning.LightningModule):
    """A model that sees one token and predicts the next."""

    def __init__(self, vocab_size: int, lr: float = 1e-2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.model = nn.Sequential(nn.Embedding(vocab_size, 64), nn.GELU(), nn.Linear(64, vocab_size))

    def _loss(self, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Tensor:
        """Return the loss of a batch."""
        loss = self._loss(batch)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        """Log the mean loss over all labels except those of padding, -100."""
        num_labels = int((batch["labels"] != -100).sum())
        if num_labels:
            self.log("validation_loss", self._loss(batch), batch_size=num_labels, prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def fit(
    reference: str, folder: Path, steps: int, resume: bool = False, data: DataOptions = DEFAULTS, **options: Any
) -> lightning.Trainer:
    """Train up to a step, optionally from the last checkpoint in `folder`; return the trainer, made with `options`."""
    lightning.seed_everything(0)
    tokens = Tokens(reference, data)
    model = NextToken(tokens.train_data.manifest["tokenizer"]["vocab_size"])
    checkpoints = ModelCheckpoint(folder, save_last=True, every_n_train_steps=50)
    chosen: dict[str, Any] = {"limit_train_batches": EPOCH_BATCHES, "limit_val_batches": data.evaluation_batches}
    chosen |= {"callbacks": [checkpoints], "logger": False}
    trainer = lightning.Trainer(max_steps=steps, max_epochs=-1, **chosen | options)
    trainer.fit(model, datamodule=tokens, ckpt_path=str(folder / "last.ckpt") if resume else None)
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small model with Lightning.")
    DataOptions.add_to(parser)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="folder (default: checkpoints)")
    parser.add_argument("--steps", type=int, default=1000, help="the last step (default: 1000)")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    arguments = parser.parse_args()
    fit(arguments.reference, arguments.checkpoints, arguments.steps, arguments.resume, DataOptions.of(arguments))
