"""Train a small GPT on all processes that torchrun starts; stop it, and resume with more or fewer processes.

    torchrun --nproc-per-node 2 examples/train_ddp.py STORE/DATASET@TAG_OR_VERSION --checkpoints run1

The global batch, of --batch-size samples, is the same for any number of processes. Each process takes its share of it,
and the sequence of global batches does not depend on how many share it. The backend is Gloo on CPUs and NCCL on GPUs.
Every process reads the checkpoints.
"""

from __future__ import annotations

import argparse
import os
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

from tokenloom import EvaluationPass, TokenDataset, TokenLoader
from tokenloom.examples.data_options import DataOptions


class GPT(nn.Module):
    """A small GPT: token ids and labels, (B, T) int64 each -> mean cross entropy in nats."""

    def __init__(
        self, vocab_size: int, seq_len: int, width: int = 128, num_blocks: int = 4, num_heads: int = 4
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, num_heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(num_blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Return the loss; labels of -100 don't count."""
        seq_len = input_ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(seq_len, device=input_ids.device)
        x = self.tokens(input_ids) + self.positions(torch.arange(seq_len, device=input_ids.device))
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def join_process_group() -> torch.device:
    """Join the processes that torchrun started; return this one's device."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def save_checkpoint(folder: Path, step: int, checkpoint: dict[str, Any]) -> None:
    """Write a checkpoint atomically, so that its name always means a complete file."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"step-{step:08d}.part"
    torch.save(checkpoint, part)
    part.replace(part.with_suffix(".pt"))


def newest_checkpoint(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """Return the newest checkpoint, or None if there is none."""
    paths = sorted(folder.glob("step-*.pt"))
    return torch.load(paths[-1], map_location=device, weights_only=True) if paths else None


def own_batch(arguments: argparse.Namespace) -> int:
    """Return how many samples of a global batch this process takes."""
    batch_size: int = arguments.batch_size // dist.get_world_size()
    if batch_size * dist.get_world_size() != arguments.batch_size:
        raise SystemExit(f"--batch-size {arguments.batch_size} is not divisible by {dist.get_world_size()} processes")
    return batch_size


def make_loader(
    arguments: argparse.Namespace, data: TokenDataset, device: torch.device, checkpoint: dict[str, Any] | None
) -> TokenLoader:
    """Return a started loader of this process's share of the global batches, from the checkpoint onwards."""
    loader = TokenLoader(data, own_batch(arguments), seed=arguments.seed, device=device)
    if checkpoint is not None:
        loader.load_state_dict(checkpoint["loader"])
    loader.start()  # makes the first batches while the model is built and restored
    return loader


def make_model(
    arguments: argparse.Namespace, data: TokenDataset, device: torch.device, checkpoint: dict[str, Any] | None
) -> tuple[GPT, torch.optim.Optimizer]:
    """Return the model and its optimizer, restored from the checkpoint."""
    torch.manual_seed(arguments.seed)
    model = GPT(data.manifest["tokenizer"]["vocab_size"], data.seq_len).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    if checkpoint is not None:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    return model, optimizer


def train(arguments: argparse.Namespace, device: torch.device) -> None:
    """Train from the newest checkpoint, or from the start, up to the last step."""
    checkpoint = newest_checkpoint(arguments.checkpoints, device)
    data, (validation_data,) = DataOptions.of(arguments).open(arguments.reference, "validation")
    loader = make_loader(arguments, data, device, checkpoint)
    model, optimizer = make_model(arguments, data, device, checkpoint)
    parallel = DistributedDataParallel(model)
    first_step = checkpoint["step"] if checkpoint else 0
    for step, batch in zip(range(first_step + 1, arguments.steps + 1), loader, strict=False):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = parallel(batch["input_ids"], batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % arguments.log_every == 0:
            report(step, loss.detach(), loader)
        if dist.get_rank() == 0 and (step % arguments.save_every == 0 or step == arguments.steps):
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            save_checkpoint(arguments.checkpoints, step, states | {"step": step})
    loader.close()
    if validation_data is not None:
        evaluate(parallel, validation_data, arguments, device)


@torch.no_grad()
def evaluate(model: nn.Module, data: TokenDataset, arguments: argparse.Namespace, device: torch.device) -> None:
    """Print from rank 0 the mean loss over the first batches of a split, weighed by labels: padding has none."""
    sums = torch.zeros(2, device=device)
    for batch in islice(EvaluationPass(data, own_batch(arguments), device=device), arguments.evaluation_batches):
        if num_labels := int((batch["labels"] != -100).sum()):
            loss = model(batch["input_ids"], batch["labels"])
            sums += torch.stack([loss * num_labels, torch.full_like(loss, num_labels)])
    dist.all_reduce(sums)
    if dist.get_rank() == 0:
        print(f"validation loss {(sums[0] / sums[1]).item():.4f}", flush=True)


def report(step: int, loss: Tensor, loader: TokenLoader) -> None:
    """Print a line from rank 0: the loss, tokens per second of all ranks, and how long training waited for data."""
    world_size, stats = dist.get_world_size(), loader.stats()
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        speed = stats.tokens_per_second * world_size
        waiting = f"waiting {stats.idle_ratio:.1%}"
        print(
            f"step {step:>6}   loss {loss.item() / world_size:.4f}   {speed:>11,.0f} tokens/s   {waiting}", flush=True
        )


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Train a small GPT with torchrun.")
    DataOptions.add_to(parser)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="folder (default: checkpoints)")
    parser.add_argument("--steps", type=int, default=1000, help="the last step (default: 1000)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of AdamW (default: 1e-3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the order (default: 0)")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints (default: 100)")
    parser.add_argument("--log-every", type=int, default=10, help="steps between log lines (default: 10)")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse_arguments()
    train(options, join_process_group())
    dist.barrier()  # the first process to end closes connections that a slower one may still use
    dist.destroy_process_group()
