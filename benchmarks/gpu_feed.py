"""Measure what feeding a GPU adds to a training step: batches of a TokenLoader, and of torch's DataLoader.

    python benchmarks/gpu_feed.py [--rounds 7] [--workers 4] [--tiny] [--output FILE.json]

A step multiplies matrices on the device for 2, 10 or 100 ms, and reads its batch. It is measured on one fixed batch
that lies on the device, on fresh batches of a TokenLoader, and on those of a DataLoader of the same dataset, which
copies them from pinned memory. The three ways alternate; each round takes about a second. --tiny tries the program on
any machine.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from figures import Figure, print_table, write_json
from made_store import write_store
from read_sizes import BATCH, SEQ_LEN
from tokenloom.reader import TokenDataset
from tokenloom.reader.loader import TokenLoader

STEPS_MS = (2, 10, 100)
FIXED, LOADER, DATALOADER = WAYS = ("fixed batch", "TokenLoader", "DataLoader")

Batch = dict[str, Any]
Step = Callable[[Batch], object]


def batches_of(reference: str, device: torch.device, workers: int) -> dict[str, Iterator[Batch]]:
    """Return endless batches on the device for each way."""
    data: Any = TokenDataset(reference, seq_len=SEQ_LEN)
    options: dict[str, Any] = {"pin_memory": device.type == "cuda", "persistent_workers": workers > 0}
    theirs = DataLoader(data, BATCH, shuffle=True, drop_last=True, num_workers=workers, **options)
    host = itertools.chain.from_iterable(itertools.repeat(theirs))
    moved = ({name: value.to(device, non_blocking=True) for name, value in batch.items()} for batch in host)
    ours = TokenLoader(data, BATCH, rank=0, world_size=1, device=device)
    return {FIXED: itertools.repeat(next(moved)), LOADER: ours, DATALOADER: moved}


def seconds_per_step(device: torch.device, step: Step, batches: Iterator[Batch], num_steps: int) -> float:
    """Return the seconds per step, from an idle device to an idle device."""
    synchronize(device)
    begin = time.perf_counter()
    for batch in itertools.islice(batches, num_steps):
        step(batch)
    synchronize(device)
    return (time.perf_counter() - begin) / num_steps


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def make_step(device: torch.device, num_products: int) -> Step:
    """Return a step that multiplies matrices and reads its batch."""
    side, dtype = (4096, torch.bfloat16) if device.type == "cuda" else (128, torch.float32)
    matrix = torch.randn(side, side, device=device, dtype=dtype) / side**0.5

    def step(batch: Batch) -> object:
        product = matrix
        for _ in range(num_products):
            product = matrix @ product
        return product.sum() + batch["input_ids"].sum() + batch["labels"].sum()

    return step


def measure(reference: str, device: torch.device, workers: int, rounds: int, round_ms: int) -> list[Figure]:
    """Measure all ways and steps."""
    ways = batches_of(reference, device, workers)
    hundred = make_step(device, 100)
    product_ms = 1e3 / 100 * min(seconds_per_step(device, hundred, ways[FIXED], 1) for _ in range(5))
    figures = []
    for step_ms in STEPS_MS:
        step = make_step(device, max(1, round(step_ms / product_ms)))
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(1 + rounds):  # the first one warms up
            for way in WAYS:
                seconds = seconds_per_step(device, step, ways[way], max(1, round_ms // step_ms))
                found[way].append(1e3 * seconds)
        figures += [Figure(f"step of {step_ms} ms: {way}", "ms", found[way][1:]) for way in WAYS]
    return figures


def added_percent(figures: list[Figure], way: str) -> float:
    """Return what a way adds to a step, at most, in percent of the step on a fixed batch."""
    medians = {figure.name: statistics.median(figure.values) for figure in figures}
    ratios = [medians[f"step of {ms} ms: {way}"] / medians[f"step of {ms} ms: {FIXED}"] for ms in STEPS_MS]
    return 100 * (max(ratios) - 1)


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure what feeding a GPU adds to a training step.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=4, help="processes of the DataLoader (default: 4)")
    parser.add_argument("--tiny", action="store_true", help="meaningless sizes, to try the program")
    parser.add_argument("--output", help="a JSON file to write")
    arguments = parser.parse_args()
    if not (torch.cuda.is_available() or arguments.tiny):
        print("gpu_feed.py needs a machine with CUDA; --tiny tries the program without it")
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shard_tokens, round_ms = (200_000, 20) if arguments.tiny else (50_000_000, 1000)
    with tempfile.TemporaryDirectory() as name:
        reference = write_store(Path(name), 2, shard_tokens)
        figures = measure(reference, device, arguments.workers, arguments.rounds, round_ms)
    print_table(figures)
    ours, theirs = (added_percent(figures, way) for way in (LOADER, DATALOADER))
    print(f"TokenLoader adds at most {ours:.2f} % to a step, torch's DataLoader {theirs:.2f} %.")
    if arguments.output:
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        write_json(arguments.output, figures, gpu=gpu, torch=torch.__version__, tiny=arguments.tiny)


if __name__ == "__main__":
    main()
