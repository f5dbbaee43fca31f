"""Train a small next-token model on a version, with only torch and tokenloom.

    python examples/train_small.py STORE/DATASET@TAG_OR_VERSION

The model sees one token and predicts the next, with an embedding of 16 and two hidden layers of 150. On bytes of Python
sources the loss falls from about 5.5 to 2.6 nats, which is how much one byte reveals about the next. Samples of more
than 512 tokens are processed in segments of 512, with one update each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from tokenloom import EvaluationPass, TokenDataset, TokenLoader, segments
from tokenloom.examples.data_options import DEFAULTS, DataOptions

SEGMENT = 512  # tokens
EVALUATE_EVERY = 50  # batches


class OneToken(nn.Sequential):
    """A model that sees one token at a time. Equal tokens have equal logits, so each distinct one is computed once."""

    def forward(self, ids: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:  # type: ignore[override]
        """Return the cross entropy in nats, as mean or sum over (B, T) tokens; labels of -100 don't count."""
        distinct, places = torch.unique(ids, return_inverse=True)
        logits: Tensor = super().forward(distinct)  # type: ignore[no-untyped-call]
        log_shares = logits.log_softmax(-1)  # (num_distinct, vocab_size)
        counted = labels != -100
        loss: Tensor = -log_shares[places[counted], labels[counted]].sum()
        return loss / counted.sum() if reduction == "mean" else loss


def make_model(vocab_size: int, seed: int) -> nn.Module:
    """Return the model, with the same initial weights for the same seed."""
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
    """Return the loss of a batch in nats, as mean or sum over tokens."""
    loss: Tensor = model(batch["input_ids"], batch["labels"], reduction)
    return loss


def segments_of(batch: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the segments of a batch: of 512 tokens if that divides its samples, else the batch."""
    num_segments, rest = divmod(batch["input_ids"].shape[1], SEGMENT)
    return segments(batch, 1 if rest else num_segments)


def train_on(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> list[float]:
    """Make one update for each segment of a batch, in order; return the losses."""
    losses = []
    for segment in segments_of(batch):
        loss = loss_of(model, segment)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def evaluate(model: nn.Module, data: TokenDataset | None, options: DataOptions) -> float:
    """Return the mean loss over the first batches of a split, whose documents are in random order; nan without one."""
    if data is None:
        return float("nan")
    total, num_labels = 0.0, 0
    for batch in islice(EvaluationPass(data, options.batch_size), options.evaluation_batches):
        for segment in segments_of(batch):
            total += loss_of(model, segment, reduction="sum").item()
            num_labels += int((segment["labels"] != -100).sum())
    return total / num_labels


def train(
    reference: str,
    updates: int = 3000,
    seed: int = 0,
    print_line: Callable[[str], None] = print,
    options: DataOptions = DEFAULTS,
    track: Callable[[range], Iterable[int]] = iter,
) -> dict[str, dict[int, float] | float]:
    """Train on the split `train`; return {"train": {update: loss}, "validation": {update: loss}, "test": loss}.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        updates: Steps of SGD with learning rate 0.05, rounded up to whole batches.
        seed: Seed of the initial weights and the order of samples.
        print_line: Prints a line.
        options: Which samples to read.
        track: Passes on the batch numbers and shows progress, such as `rich.progress.track` or `tqdm`.
    """
    train_data, (validation_data, test_data) = options.open(reference, "validation", "test")
    vocab_size = train_data.manifest["tokenizer"]["vocab_size"]
    if vocab_size < 1000:
        torch.set_num_threads(1)  # so small a model gains nothing from more threads, and loses if cores are shared
    model = make_model(vocab_size, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = TokenLoader(train_data, options.batch_size, seed=seed)
    num_batches = -(-updates // max(1, train_data.seq_len // SEGMENT))
    train_losses: dict[int, float] = {}
    validation_losses = {0: evaluate(model, validation_data, options)}
    update, recent = 0, list[float]()
    print_line("batches   updates   training   validation")
    print_line(f"{0:>7}   {0:>7}   {'':>8}   {validation_losses[0]:>10.3f}")
    for number, batch in zip(track(range(1, num_batches + 1)), loader, strict=False):
        losses = train_on(model, optimizer, batch)
        update, recent = update + len(losses), recent + losses
        if number % EVALUATE_EVERY == 0 or number == num_batches:
            train_losses[update] = sum(recent) / len(recent)
            validation_losses[update] = evaluate(model, validation_data, options)
            print_line(f"{number:>7}   {update:>7}   {train_losses[update]:>8.3f}   {validation_losses[update]:>10.3f}")
            recent = []
    loader.close()
    test_loss = evaluate(model, test_data, options)
    print_line(f"test loss {test_loss:.3f}")
    return {"train": train_losses, "validation": validation_losses, "test": test_loss}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small next-token model on a version.")
    DataOptions.add_to(parser)
    parser.add_argument("--steps", type=int, default=1000, help="updates (default: 1000)")
    arguments = parser.parse_args()
    train(arguments.reference, arguments.steps, options=DataOptions.of(arguments))
