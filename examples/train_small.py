"""Train a small next-token model on a version, with only torch and tokenloom.

    python examples/train_small.py STORE/DATASET@TAG_OR_VERSION

A batch is 8 chunks of 5,120 tokens, each from one document. The model processes it in 10 segments of 512 tokens, with
one update each. It sees one token and predicts the next, with an embedding of 16 and two hidden layers of 150. On bytes
of Python sources the loss falls from about 5.5 to 2.6 nats, which is how much one byte reveals about the next.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from tokenloom import EvaluationPass, TokenDataset, TokenLoader, segments

SEQ_LEN, BATCH_SIZE, SEGMENTS = 5120, 8, 10
EVALUATE_EVERY = 50  # batches


class OneToken(nn.Sequential):
    """A model that sees one token at a time. Equal tokens have equal logits, so each distinct one is computed once."""

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits: (B, T) int64 ids -> (B, T, vocab_size)."""
        distinct, places = torch.unique(ids, return_inverse=True)
        return nn.functional.embedding(places, super().forward(distinct))  # type: ignore[no-untyped-call]


def make_model(vocab_size: int, seed: int) -> nn.Module:
    """Return the model, with the same initial weights for the same seed: (B, T) int64 ids -> (B, T, vocab_size)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return OneToken(
            nn.Embedding(vocab_size, 16),
            nn.Linear(16, 150),
            nn.ReLU(),
            nn.Linear(150, 150),
            nn.ReLU(),
            nn.Linear(150, vocab_size),
        )


def loss_of(model: nn.Module, batch: dict[str, Tensor], reduction: str = "mean") -> Tensor:
    """Return the cross entropy of a batch in nats, as mean or sum over tokens; labels of -100 don't count."""
    logits = model(batch["input_ids"])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction=reduction)


def train_on(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> float:
    """Make one update for each segment of a batch, in order; return the mean loss."""
    losses = []
    for segment in segments(batch, SEGMENTS):
        loss = loss_of(model, segment)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def evaluate(model: nn.Module, data: TokenDataset) -> float:
    """Return the mean loss over every sample of a split."""
    total, num_labels = 0.0, 0
    for batch in EvaluationPass(data, BATCH_SIZE):
        for segment in segments(batch, SEGMENTS):
            total += loss_of(model, segment, reduction="sum").item()
            num_labels += int((segment["labels"] != -100).sum())
    return total / num_labels


def train(
    reference: str,
    updates: int = 3000,
    seed: int = 0,
    print_line: Callable[[str], None] = print,
    packing: str = "document",
    track: Callable[[range], Iterable[int]] = iter,
) -> dict[str, dict[int, float] | float]:
    """Train on the split `train`; return {"train": {update: loss}, "validation": {update: loss}, "test": loss}.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        updates: Steps of SGD with learning rate 0.05, 8 x 512 tokens each, rounded up to whole batches of 10 steps.
        seed: Seed of the initial weights and the order of samples.
        print_line: Prints a line.
        packing: With "document", documents of fewer than 5,121 tokens give no chunk; "concat" takes any document.
        track: Passes on the batch numbers and shows progress, such as `rich.progress.track` or `tqdm`.
    """
    torch.set_num_threads(1)  # such a small model gains nothing from more threads, and loses if cores are shared
    train_data, validation_data, test_data = (
        TokenDataset(reference, split, SEQ_LEN, packing=packing) for split in ("train", "validation", "test")
    )
    model = make_model(train_data.manifest["tokenizer"]["vocab_size"], seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = TokenLoader(train_data, BATCH_SIZE, seed=seed)
    train_losses: dict[int, float] = {}
    validation_losses = {0: evaluate(model, validation_data)}
    recent: list[float] = []
    print_line("batches   updates   training   validation")
    print_line(f"{0:>7}   {0:>7}   {'':>8}   {validation_losses[0]:>10.3f}")
    num_batches = -(-updates // SEGMENTS)
    for number, batch in zip(track(range(1, num_batches + 1)), loader, strict=False):
        recent.append(train_on(model, optimizer, batch))
        if number % EVALUATE_EVERY == 0 or number == num_batches:
            update = number * SEGMENTS
            train_losses[update] = sum(recent) / len(recent)
            validation_losses[update] = evaluate(model, validation_data)
            print_line(f"{number:>7}   {update:>7}   {train_losses[update]:>8.3f}   {validation_losses[update]:>10.3f}")
            recent = []
    loader.close()
    test_loss = evaluate(model, test_data)
    print_line(f"test loss {test_loss:.3f}")
    return {"train": train_losses, "validation": validation_losses, "test": test_loss}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small next-token model on a version.")
    parser.add_argument("reference", help="STORE/DATASET@TAG_OR_VERSION")
    parser.add_argument("--updates", type=int, default=3000, help="training steps, 10 per batch (default: 3000)")
    arguments = parser.parse_args()
    train(arguments.reference, arguments.updates)
