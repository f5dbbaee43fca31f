"""Train with Accelerate: prepare model and optimizer, and only register the loader for checkpoints.

    accelerate launch examples/train_accelerate.py STORE/DATASET@TAG_OR_VERSION [--resume]

Create the Accelerator first, so that the loader finds the process group and takes this rank's samples. The loader does
not need `accelerator.prepare`, which would not change it: it distributes and moves the samples itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from tokenloom import TokenDataset, TokenLoader

SEQ_LEN, BATCH_SIZE = 128, 8


def train(reference: str, folder: Path, steps: int, save_every: int = 100, resume: bool = False) -> list[float]:
    """Train up to a step and return the loss of each step of this process.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        folder: Folder of the checkpoint, which each save overwrites.
        steps: Last step, counted from the very first start.
        save_every: Steps between two checkpoints.
        resume: Continue from the checkpoint in `folder`.
    """
    accelerator = Accelerator()
    data = TokenDataset(reference, "train", SEQ_LEN)
    loader = TokenLoader(data, BATCH_SIZE, seed=0, device=accelerator.device)
    vocab_size = data.manifest["tokenizer"]["vocab_size"]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(vocab_size, 64), nn.GELU(), nn.Linear(64, vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(loader)
    if resume:
        accelerator.load_state(str(folder))

    losses: list[float] = []
    batch_samples = BATCH_SIZE * accelerator.num_processes
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
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small model with Accelerate.")
    parser.add_argument("reference", help="STORE/DATASET@TAG_OR_VERSION")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint"), help="folder (default: checkpoint)")
    parser.add_argument("--steps", type=int, default=1000, help="the last step (default: 1000)")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints (default: 100)")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    arguments = parser.parse_args()
    train(arguments.reference, arguments.checkpoint, arguments.steps, arguments.save_every, arguments.resume)
    Accelerator().end_training()
