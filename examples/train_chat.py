"""Train a small GPT on conversations: it learns what the assistant writes, and attention stays inside documents.

    python examples/train_chat.py STORE/DATASET@TAG_OR_VERSION [--compare]

Samples are packed (`best_fit`): several conversations share a row, and each sees only itself. The loss is the mean over
the learned tokens of the batch, which may be none. With --compare, a second model with the same initial weights learns
the same documents in the same steps in plain torch: one document a row, padded, read from the files of the version with
NumPy as docs/reference/format.md says. Both then compute in float64, and both losses are printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tokenloom import EvaluationPass, TokenDataset, TokenLoader, document_mask
from tokenloom.examples.data_options import DEFAULTS, DataOptions
from tokenloom.storage import open_shard
from tokenloom.storage.formats.classes import learned_classes

REPORT_EVERY = 20  # steps
NUM_HEADS = 2


class GPT(nn.Module):
    """A small GPT that computes logits only where a token is learned."""

    def __init__(self, vocab_size: int, seq_len: int, width: int = 64, num_blocks: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, NUM_HEADS, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(num_blocks)
        )
        self.head = nn.Linear(width, vocab_size)

    def forward(self, ids: Tensor, positions: Tensor, attends: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the cross entropies in nats; labels of -100 don't count.

        Args:
            ids, positions, labels: (B, T).
            attends: (B or 1, T, T) bool, True where row attends to column.
        """
        x = self.tokens(ids) + self.positions(positions)
        forbidden = ~attends.expand(len(ids), -1, -1).repeat_interleave(NUM_HEADS, 0)
        for block in self.blocks:
            x = block(x, forbidden)
        learned = labels != -100
        return F.cross_entropy(self.head(x[learned]), labels[learned], reduction="sum")


def make_model(vocab_size: int, seq_len: int, seed: int) -> GPT:
    """Return the model, with the same initial weights for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT(vocab_size, seq_len)


class Training:
    """A model and its optimizer."""

    def __init__(self, data: TokenDataset, seed: int) -> None:
        self.model = make_model(data.manifest["tokenizer"]["vocab_size"], data.seq_len, seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)

    def learn(self, total: Tensor, num_targets: int) -> float:
        """Make one update; return the mean loss, nan for a batch without targets, which changes nothing."""
        if not num_targets:
            return float("nan")
        loss = total / num_targets
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item()


def packed_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the loss of a batch, summed over its learned tokens."""
    attends = document_mask(batch["document_ids"]).dense()[:, 0]
    total: Tensor = model(batch["input_ids"], batch["position_ids"], attends, batch["labels"])
    return total


def padded_loss(model: nn.Module, documents: Iterable[tuple[NDArray[np.int64], NDArray[np.bool_]]]) -> Tensor:
    """Return the same loss in plain torch: each document alone in its row, padded at its end."""
    rows = [(torch.from_numpy(ids), torch.from_numpy(is_target)) for ids, is_target in documents]
    length = max(len(ids) for ids, _ in rows) - 1
    inputs = torch.zeros(len(rows), length, dtype=torch.int64)
    labels = torch.full((len(rows), length), -100)
    for row, (ids, is_target) in enumerate(rows):
        inputs[row, : len(ids) - 1] = ids[:-1]
        labels[row, : len(ids) - 1] = torch.where(is_target[1:], ids[1:], -100)
    causal = torch.ones(1, length, length, dtype=torch.bool).tril()
    total: Tensor = model(inputs, torch.arange(length).expand(len(rows), -1), causal, labels)
    return total


class PlainDocuments:
    """The documents of the batches of a loader, from the files of a version in a local store."""

    def __init__(self, loader: TokenLoader, data: TokenDataset, learn: str) -> None:
        self._loader, self._learned = loader, learned_classes(learn)
        folder, _, version = data.reference.rpartition("@")
        self._folder = Path(folder) / "versions" / version
        self._shard = cache(self._open)

    def of_step(self, step: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """Yield the ids of each document of a batch, as far as it is in the sample, and which of them are learned."""
        for sample in self._loader.trace(step, chars=0)["samples"]:
            tokens, classes, starts = self._shard(sample["shard"])
            for document in sample["documents"]:
                start = starts[document["content"]] + document["document_start"]
                end = start + document["end"] - document["start"]
                if end - start > 1:  # the last token of a sample is only a label
                    yield tokens[start:end].astype(np.int64), self._learned[classes[start:end]]

    def _open(self, name: str) -> tuple[NDArray[np.unsignedinteger], NDArray[np.uint8], dict[str, int]]:
        path = self._folder / name
        table = pa.ipc.open_file(pa.memory_map(str(path.with_suffix(".docs")))).read_all()
        contents = [content.hex() for content in table["content"].to_pylist()]
        starts = dict(zip(contents, table["start"].to_pylist(), strict=True))
        return open_shard(path).tokens, np.memmap(path.with_suffix(".mask"), np.uint8, "r"), starts


@torch.no_grad()
def evaluate(model: nn.Module, data: TokenDataset | None, options: DataOptions) -> float:
    """Return the mean loss over the learned tokens of a split's first batches; nan without any."""
    total, num_targets = 0.0, 0
    for number, batch in enumerate(EvaluationPass(data, options.batch_size) if data else ()):
        if number == options.evaluation_batches:
            break
        total += packed_loss(model, batch).item()
        num_targets += int((batch["labels"] != -100).sum())
    return total / num_targets if num_targets else float("nan")


def train(
    reference: str,
    steps: int = 200,
    learn: str = "assistant",
    seed: int = 0,
    print_line: Callable[[str], None] = print,
    options: DataOptions = DEFAULTS,
    compare: bool = False,
) -> dict[str, list[float]]:
    """Train on the split `train`; return {"packed": a loss for each step, "padded": the same in plain torch}.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION, with conversations; of a local store for `compare`.
        steps: updates of AdamW, one a batch.
        learn: which tokens are learned; see TokenDataset.
        seed: Seed of the initial weights and the order of samples.
        print_line: Prints a line.
        options: Which samples to read.
        compare: whether to train a second model in plain torch, and both in float64.
    """
    fields = ["document_ids", "position_ids"]
    data, (validation,) = options.open(reference, "validation", learn=learn, fields=fields)
    loader = TokenLoader(data, options.batch_size, seed=seed)
    packed, padded, plain = Training(data, seed), Training(data, seed), PlainDocuments(loader, data, learn)
    if compare:
        packed.model.double(), padded.model.double()
    losses: dict[str, list[float]] = {"packed": [], "padded": []}
    print_line("  step    packed" + "    padded" * compare + "   validation")
    for step, batch in zip(range(steps), loader, strict=False):
        losses["packed"].append(packed.learn(packed_loss(packed.model, batch), batch["num_targets"]))
        if compare:
            documents = list(plain.of_step(step))
            num_targets = sum(int(is_target[1:].sum()) for _, is_target in documents)
            losses["padded"].append(padded.learn(padded_loss(padded.model, documents), num_targets))
        if step % REPORT_EVERY == REPORT_EVERY - 1 or step == steps - 1:
            shown = "".join(f"{found[-1]:>10.6f}" for found in losses.values() if found)
            print_line(f"{step + 1:>6}{shown}{evaluate(packed.model, validation, options):>13.3f}")
    loader.close()
    if compare:
        difference = np.nanmax(np.abs(np.subtract(losses["packed"], losses["padded"])))
        print_line(f"the losses of all steps are equal within {difference:.1e}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small GPT on conversations.")
    DataOptions.add_to(parser)
    parser.set_defaults(packing="best_fit")
    parser.add_argument("--steps", type=int, default=200, help="updates (default: 200)")
    parser.add_argument("--learn", default="assistant", choices=["assistant", "last", "all"])
    parser.add_argument("--compare", action="store_true", help="also train in plain torch, and compare the losses")
    arguments = parser.parse_args()
    train(
        arguments.reference,
        arguments.steps,
        arguments.learn,
        options=DataOptions.of(arguments),
        compare=arguments.compare,
    )
