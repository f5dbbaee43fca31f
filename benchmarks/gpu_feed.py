"""Measure what feeding a GPU costs: training steps on a TokenLoader's batches, against steps on one fixed batch.

    python benchmarks/gpu_feed.py [--rounds 7] [--steps 100] [--compile] [--output FILE.json]
    python benchmarks/gpu_feed.py --device cpu --tiny      to try the program without CUDA

The models are below: GPT-2 with 124 M parameters, and one whose step takes 10 to 20 ms; bf16 autocast, AdamW.
Rounds are interleaved (fixed, fed, fixed, fed, ...) and timed with CUDA events. A ratio is one round's fed time over
the mean of the fixed times before and after it. Batches on the device are compared with those on the CPU, element by
element. torch.profiler counts the bytes that go to the device. Targets are printed next to the figures; a missed target
is not a failure.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from figures import Figure, print_table, write_json
from made_store import write_store
from tokenloom.reader import TokenDataset
from tokenloom.reader.loader import TokenLoader

ROWS_OF_LOGITS = 50_304  # made_store.VOCAB, rounded up to a size that suits GPUs
ALL_FIELDS = ("cu_seqlens", "document_ids", "position_ids")

Batch = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """A model and its batches."""

    name: str
    layers: int
    heads: int
    width: int
    seq_len: int
    batch_size: int


SIZES = [Size("GPT-2 124M", 12, 12, 768, 1024, 16), Size("small", 6, 8, 512, 1024, 16)]
TINY_SIZES = [Size("tiny", 1, 2, 16, 32, 2)]


class Layer(nn.Module):
    """One transformer layer: causal attention, then an MLP, each on the normalized sum of everything before it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norms = nn.ModuleList([nn.LayerNorm(size.width), nn.LayerNorm(size.width)])
        self.attend = nn.Linear(size.width, 3 * size.width)
        self.project = nn.Linear(size.width, size.width)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(approximate="tanh"), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, width) to the same shape."""
        batch_size, seq_len, width = x.shape
        parts = self.attend(self.norms[0](x)).view(batch_size, seq_len, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch_size, seq_len, width))
        added: Tensor = x + self.mlp(self.norms[1](x))
        return added


class Model(nn.Module):
    """GPT-2: embeddings of tokens and positions, layers, logits with the weights of the token embedding."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(ROWS_OF_LOGITS, size.width)
        self.places = nn.Embedding(size.seq_len, size.width)
        self.layers = nn.Sequential(*(Layer(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of (B, T) ids and labels."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        logits = functional.linear(self.norm(self.layers(x)), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)


class Training:
    """A model, its optimizer, and a step."""

    def __init__(self, size: Size, device: torch.device, use_compile: bool) -> None:
        torch.manual_seed(0)
        self.device = device
        model = Model(size).to(device)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
        self.model: Callable[..., Tensor] = torch.compile(model) if use_compile else model

    def step(self, batch: Batch) -> Tensor:
        """Train on a batch; return the loss, still on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self.model(batch["input_ids"], batch["labels"])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()


def make_loader(reference: str, size: Size, device: torch.device, **options: Any) -> TokenLoader:
    """Return a loader; options of a dataset go to the dataset."""
    names = ("packing", "labels", "fields")
    data = TokenDataset(reference, seq_len=size.seq_len, **{k: v for k, v in options.items() if k in names})
    rest = {k: v for k, v in options.items() if k not in names}
    return TokenLoader(data, size.batch_size, rank=0, world_size=1, device=device, **rest)


def seconds_a_step(device: torch.device, step: Callable[[], object], num_steps: int) -> float:
    """Return the seconds per step, by the device's own clock or, without one, by the wall clock."""
    if device.type != "cuda":
        begin = time.perf_counter()
        for _ in range(num_steps):
            step()
        return (time.perf_counter() - begin) / num_steps
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    first.record()
    for _ in range(num_steps):
        step()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last)) / 1e3 / num_steps


def measure_steps(reference: str, size: Size, device: torch.device, arguments: argparse.Namespace) -> list[Figure]:
    """Time steps on one fixed batch and on fresh batches, alternately."""
    training = Training(size, device, arguments.compile)
    loader = make_loader(reference, size, device)
    batch = next(loader)
    for _ in range(max(3, arguments.steps // 10)):
        training.step(batch)
        training.step(next(loader))
    fixed = [seconds_a_step(device, lambda: training.step(batch), arguments.steps)]
    fed, waits = [], []
    for _ in range(arguments.rounds):
        before = seconds_waited(loader)
        fed.append(seconds_a_step(device, lambda: training.step(next(loader)), arguments.steps))
        waits.append(100 * (seconds_waited(loader) - before) / (fed[-1] * arguments.steps))
        fixed.append(seconds_a_step(device, lambda: training.step(batch), arguments.steps))
    loader.close()
    ratios = [2 * value / (a + b) for value, a, b in zip(fed, fixed, fixed[1:], strict=False)]
    return [
        Figure(f"{size.name}: step on a fixed batch", "ms", [1e3 * value for value in fixed]),
        Figure(f"{size.name}: step on fresh batches", "ms", [1e3 * value for value in fed]),
        Figure(f"{size.name}: fresh to fixed", "", ratios, "<= 1.005"),
        Figure(f"{size.name}: host waits in next", "% of time", waits, "<= 1"),
        Figure(f"{size.name}: tokens", "M/s", [size.batch_size * size.seq_len / value / 1e6 for value in fed]),
    ]


def seconds_waited(loader: TokenLoader) -> float:
    """Return how long `next` took in total, without the first batch."""
    stats = loader.stats()
    return stats.wait_mean * (stats.batches - 1)


def measure_bytes(reference: str, size: Size, device: torch.device, folder: Path) -> list[Figure]:
    """Count the bytes per token that go to the device, as the profiler sees them."""
    if device.type != "cuda":
        return []
    loader = make_loader(reference, size, device, prefetch=0)
    next(loader)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    num_batches = 50
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(num_batches):
            next(loader)
        torch.cuda.synchronize(device)
    loader.close()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    copies = [event for event in events if "Memcpy HtoD" in event.get("name", "")]
    num_bytes = sum(event["args"].get("bytes", 0) for event in copies)
    tokens = num_batches * size.batch_size * size.seq_len
    counted = [num_bytes / tokens]
    target = f"<= {2 * (size.seq_len + 1) / size.seq_len:.4f}"
    pinned = sum("Pinned" in event["name"] for event in copies)
    return [
        Figure("host to device", "bytes per token", counted, target),
        Figure("copies from pinned memory", "% of copies", [100 * pinned / max(1, len(copies))], "100"),
    ]


def count_differences(reference: str, size: Size, device: torch.device, num_batches: int) -> list[Figure]:
    """Compare batches on the device with those on the CPU: packings, labels, fields, with and without a thread."""
    ways: list[dict[str, Any]] = [
        {"packing": packing, "labels": labels, "fields": fields, "prefetch": prefetch}
        for packing in ("concat", "best_fit", "document_padded")
        for labels in ("shifted", "same")
        for fields in ((), ALL_FIELDS)
        for prefetch in (0, None)
    ]
    values, different = 0, 0
    for options in ways:
        here = make_loader(reference, size, torch.device("cpu"), **options)
        there = make_loader(reference, size, device, **options)
        for _ in range(num_batches):
            ours, theirs = next(there), next(here)
            different += set(ours) != set(theirs)
            for name, expected in theirs.items():
                found = ours[name]
                is_tensor = isinstance(expected, Tensor)
                values += expected.numel() if is_tensor else 1
                same = torch.equal(found.cpu(), expected) if is_tensor else found == expected
                different += not same or (is_tensor and found.dtype != expected.dtype)
        here.close()
        there.close()
    return [
        Figure("values on the device compared with the CPU's", "", [float(values)]),
        Figure("arrays that differ", "", [float(different)], "0"),
    ]


def main() -> int:
    """Run the benchmark that the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure what feeding a GPU costs.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100, help="steps per round (default: 100)")
    parser.add_argument("--compile", action="store_true", help="train with torch.compile")
    parser.add_argument("--tiny", action="store_true", help="meaningless sizes, to try the program")
    parser.add_argument("--output", help="a JSON file to write")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("gpu_feed.py needs a machine with CUDA; --device cpu --tiny tries the program without it")
        return 0
    sizes = TINY_SIZES if arguments.tiny else SIZES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference = write_store(folder / "store", 2, 20_000 if arguments.tiny else 50_000_000)
        figures = count_differences(reference, sizes[-1], device, 3 if arguments.tiny else 50)
        figures += measure_bytes(reference, sizes[-1], device, folder)
        for size in sizes:
            figures += measure_steps(reference, size, device, arguments)
    print_table(figures, digits=5)
    if arguments.output:
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        details = {"gpu": gpu, "torch": torch.__version__, "compile": arguments.compile}
        write_json(arguments.output, figures, **details)
    return 0


if __name__ == "__main__":
    sys.exit(main())
