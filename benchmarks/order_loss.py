"""Compare what a small model learns from real text in different orders of samples.

    python benchmarks/order_loss.py REFERENCE [--updates 2000] [--seeds 3] [--output FILE.json]

With the same seed, every run starts from the same weights and sees the same number of samples of the same version; only
the order differs. A difference between orders is meaningful if it is larger than the difference between seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor, nn

from tokenloom import EvaluationPass, TokenDataset, TokenLoader

SEQ_LEN, BATCH_SIZE, WIDTH, CONTEXT = 256, 16, 128, 8
ORDERS = ("block", "full", "sequential")


class SmallModel(nn.Module):
    """Predicts a token from the eight before it: (B, T) int64 ids -> (B, T, vocab_size)."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 32)
        self.context = nn.Conv1d(32, WIDTH, CONTEXT)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits."""
        embedded = nn.functional.pad(self.embedding(ids).transpose(1, 2), (CONTEXT - 1, 0))
        logits: Tensor = self.head(torch.relu(self.hidden(torch.relu(self.context(embedded).transpose(1, 2)))))
        return logits


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean cross entropy of a batch in nats per token."""
    return nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())


def train(reference: str, order: str, seed: int, updates: int) -> float:
    """Return the validation loss after `updates` batches in an order."""
    data = TokenDataset(reference, seq_len=SEQ_LEN)
    torch.manual_seed(seed)
    model = SmallModel(data.manifest["tokenizer"]["vocab_size"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _, batch in zip(range(updates), TokenLoader(data, BATCH_SIZE, seed=seed, order=order), strict=False):
        optimizer.zero_grad()
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        validation = EvaluationPass(TokenDataset(reference, split="validation", seq_len=SEQ_LEN), BATCH_SIZE)
        return mean(loss_of(model, batch).item() for _, batch in zip(range(200), validation, strict=False))


def main() -> None:
    """Print a table of losses by order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference")
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    losses: dict[str, list[float]] = {}
    for order in ORDERS:
        losses[order] = [train(arguments.reference, order, s, arguments.updates) for s in range(arguments.seeds)]
        spread = stdev(losses[order]) if arguments.seeds > 1 else 0.0
        print(f"{order:<12}{mean(losses[order]):.4f} +- {spread:.4f}   {[round(x, 4) for x in losses[order]]}")
    if arguments.output:
        arguments.output.write_text(json.dumps({"updates": arguments.updates, "losses": losses}, indent=1))


if __name__ == "__main__":
    main()
