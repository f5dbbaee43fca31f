"""Train with Accelerate: prepare model and optimizer, and only register the loader for checkpoints.

    accelerate launch examples/train_accelerate.py STORE/DATASET@TAG_OR_VERSION [--resume]

Create the Accelerator first, so that the loader finds the process group and takes this rank's samples. The loader does
not need `accelerator.prepare`, which would not change it: it distributes and moves the samples itself.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from tokenloom import EvaluationPass, TokenDataset, TokenLoader
from tokenloom.examples.data_options import DEFAULTS, DataOptions


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: nn.Module, data: TokenDataset, options: DataOptions) -> float:
    """Return the mean loss of all processes over the first batches of a split, weighed by labels: padding has none."""
    sums = torch.zeros(2, device=accelerator.device)
    for batch in islice(
        EvaluationPass(data, options.batch_size, device=accelerator.device), options.evaluation_batches
    ):
        logits, labels = model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten()
        sums[0] += nn.functional.cross_entropy(logits, labels, reduction="sum")
        sums[1] += (labels != -100).sum()
    total, num_labels = accelerator.reduce(sums).tolist()
    return float(total / num_labels)


def train(
    reference: str,
    folder: Path,
    steps: int,
    save_every: int = 100,
    resume: bool = False,
    options: DataOptions = DEFAULTS,
) -> list[float]:
    """Train up to a step and return the loss of each step of this process.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        folder: Folder of the checkpoint, which each save overwrites.
        steps: Last step, counted from the very first start.
        save_every: Steps between two checkpoints.
        resume: Continue from the checkpoint in `folder`.
        options: Which samples to read.
    """
    accelerator = Accelerator()
    data, (validation_data,) = options.open(reference, "validation")
    loader = TokenLoader(data, options.batch_size, seed=0, device=accelerator.device)
    vocab_size = data.manifest["tokenizer"]["vocab_size"]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(vocab_size, 64), nn.GELU(), nn.Linear(64, vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(loader)
    if resume:
        accelerator.load_state(str(folder))

    losses: list[float] = []
    batch_samples = options.batch_size * accelerator.num_processes
    first_step = loader.state_dict()["samples"] // batch_samples
    for step, batch in zip(range(first_step + 1, steps + 1), loader, strict=False):
        loss = nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
        if step % save_every == 0 or step == steps:
            accelerator.save_state(str(folder))
            accelerator.print(f"step {step:>6}   loss {losses[-1]:.4f}   waiting {loader.stats().idle_ratio:.1%}")
    loader.close()
    if validation_data is not None:
        accelerator.print(f"validation loss {evaluate(accelerator, model, validation_data, options):.4f}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small model with Accelerate.")
    DataOptions.add_to(parser)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint"), help="folder (default: checkpoint)")
    parser.add_argument("--steps", type=int, default=1000, help="the last step (default: 1000)")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints (default: 100)")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    arguments = parser.parse_args()
    given = DataOptions.of(arguments)
    train(arguments.reference, arguments.checkpoint, arguments.steps, arguments.save_every, arguments.resume, given)
    Accelerator().end_training()
