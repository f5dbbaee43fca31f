"""Train a small next-token model on a version, with nothing but torch and TokenDataset.

    python examples/train_small.py STORE/DATASET@TAG_OR_VERSION

The model sees one token and guesses the next: an embedding of 16, two hidden layers of 150. On bytes of Python
sources the loss falls from about 5.5 to 2.6 nats, which is what one byte tells about the next.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tokenloom import TokenDataset

SEQ_LEN, BATCH_SIZE = 512, 8
EVALUATION_BATCHES = 50


def make_model(vocab_size: int, seed: int) -> nn.Module:
    """Return the model, with the same first weights for the same seed: (B, T) int64 ids -> (B, T, vocab_size)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Embedding(vocab_size, 16),
            nn.Linear(16, 150),
            nn.ReLU(),
            nn.Linear(150, 150),
            nn.ReLU(),
            nn.Linear(150, vocab_size),
        )


def batches(data: TokenDataset, seed: int) -> Iterator[dict[str, Tensor]]:
    """Yield shuffled batches for ever: {"input_ids", "labels"}, each (8, 512) int64."""
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(data, BATCH_SIZE, shuffle=True, generator=generator, drop_last=True)  # type: ignore[arg-type, var-annotated]
    while True:
        yield from loader


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean cross entropy of a batch in nats a token."""
    return nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())


@torch.no_grad()
def evaluate(model: nn.Module, data: TokenDataset) -> float:
    """Return the mean loss over the same batches each time."""
    losses = [loss_of(model, batch).item() for batch in itertools.islice(batches(data, 1), EVALUATION_BATCHES)]
    return sum(losses) / len(losses)


def train(
    reference: str, updates: int = 3000, seed: int = 0, tell: Callable[[str], None] = print
) -> dict[str, dict[int, float] | float]:
    """Train on the split `train`; return {"train": {update: loss}, "validation": {update: loss}, "test": loss}.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        updates: steps of SGD with learning rate 0.05, batch 8 x 512 tokens.
        seed: of the first weights and of the order of samples.
        tell: prints a line.
    """
    splits = {name: TokenDataset(reference, split=name, seq_len=SEQ_LEN) for name in ("train", "validation", "test")}
    model = make_model(splits["train"].manifest["tokenizer"]["vocab_size"], seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train_losses: dict[int, float] = {}
    validation_losses: dict[int, float] = {}
    stream = batches(splits["train"], seed)
    recent: list[float] = []
    tell("update   training   validation")
    for update in range(updates + 1):
        loss = loss_of(model, next(stream))
        recent.append(loss.item())
        if update % 500 == 0 or update == updates:
            train_losses[update] = sum(recent) / len(recent)
            validation_losses[update] = evaluate(model, splits["validation"])
            tell(f"{update:>6}   {train_losses[update]:>8.3f}   {validation_losses[update]:>10.3f}")
            recent = []
        if update < updates:
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    test_loss = evaluate(model, splits["test"])
    tell(f"test loss {test_loss:.3f}")
    return {"train": train_losses, "validation": validation_losses, "test": test_loss}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small next-token model on a version.")
    parser.add_argument("reference", help="STORE/DATASET@TAG_OR_VERSION")
    parser.add_argument("--updates", type=int, default=3000)
    arguments = parser.parse_args()
    train(arguments.reference, arguments.updates)
