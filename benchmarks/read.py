"""Measure how fast TokenLoader makes batches, against the simplest loop over the same shards ("bare").

    python benchmarks/read.py [--rounds 7] [--folder DIR] [--full] [--tiny] [--drop-caches] [--output FILE.json]

The program creates a store of uint16 shards in a temporary folder (of --folder: the disk for cold reads). It measures
rates alternately with the bare loop (bare, ours, bare, ...) and divides each by the mean of the bare rates before and
after it, so ratios do not change when the speed of the machine drifts. The bare loop copies rows of T + 1 stored tokens
from warm maps into a new array of int64, batch by batch; labels are a view. Targets are printed next to the figures; a
missed target is not a failure. This module measures rates and waits, read_cold.py cold files and read_packing.py the
packing `best_fit`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from figures import Figure, print_table, write_json
from made_store import write_store
from read_cold import measure_cold
from read_packing import measure_packing
from read_sizes import BATCH, SEQ_LEN, TINY, Sizes
from tokenloom.reader import TokenDataset
from tokenloom.reader.loader import TokenLoader

Step = Callable[[], object]


class Maps(Dataset[Any]):
    """The shards as memory maps, with samples taken in the simplest way."""

    def __init__(self, data: TokenDataset) -> None:
        self.tokens = [
            np.frombuffer(data.shards[i].bytes[0 : 2 * data.shards[i].header.num_tokens], np.uint16)
            for i in range(len(data.counts))
        ]
        self.places = [(i, int(k) * SEQ_LEN) for i, n in enumerate(data.counts) for k in range(n)]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        shard, start = self.places[index]
        row = self.tokens[shard][start : start + SEQ_LEN + 1].astype(np.int64)
        return row[:-1], row[1:]


def bare_steps(maps: Maps) -> Step:
    """Return the bare loop: each call makes one batch of random samples."""
    order = np.random.default_rng(1).permutation(len(maps)).tolist()
    batches = itertools.cycle(
        [[maps.places[i] for i in order[k : k + BATCH]] for k in range(0, len(order) - BATCH + 1, BATCH)]
    )

    def step() -> object:
        rows = np.empty((BATCH, SEQ_LEN + 1), np.int64)
        for row, (shard, start) in zip(rows, next(batches), strict=True):
            row[:] = maps.tokens[shard][start : start + SEQ_LEN + 1]
        return rows[:, :-1], rows[:, 1:]

    return step


def limit_steps(maps: Maps) -> Step:
    """Return the limit of one core: a fancy index into a strided view of one map, and one cast."""
    tokens = maps.tokens[0]
    view = np.lib.stride_tricks.as_strided(tokens, ((len(tokens) - 1) // SEQ_LEN, SEQ_LEN + 1), (2 * SEQ_LEN, 2))
    order = np.random.default_rng(1).permutation(len(view))
    batches = itertools.cycle([order[k : k + BATCH] for k in range(0, len(order) - BATCH + 1, BATCH)])
    return lambda: view[next(batches)].astype(np.int64)


def loader_steps(reference: str, prefetch: int | None, order: str = "block", **options: Any) -> Step:
    """Return a step of a TokenLoader."""
    data = TokenDataset(reference, seq_len=SEQ_LEN, **options)
    loader = TokenLoader(data, BATCH, rank=0, world_size=1, prefetch=prefetch, order=order)
    return lambda: next(loader)


def torch_steps(dataset: Any) -> Step:
    """Return a step of torch's DataLoader over a map-style dataset, in process, shuffled."""
    batches = itertools.chain.from_iterable(
        itertools.repeat(DataLoader(dataset, batch_size=BATCH, shuffle=True, drop_last=True))
    )
    return lambda: next(batches)


def rate(step: Step, num_batches: int) -> float:
    """Return tokens per second; batches that a thread made ahead do not count."""
    for _ in range(min(num_batches, 64)):
        step()
    begin = time.perf_counter()
    for _ in range(num_batches):
        step()
    return num_batches * BATCH * SEQ_LEN / (time.perf_counter() - begin)


def ways_to_read(reference: str, data: TokenDataset, maps: Maps) -> list[tuple[str, str, Step]]:
    """Return name, target and step of each way that is compared with the bare loop."""
    fields = ("document_ids", "position_ids")
    return [
        ("limit: one gather, one cast", "", limit_steps(maps)),
        ("TokenLoader, prefetch=0", ">= 0.8", loader_steps(reference, 0)),
        ("TokenLoader, thread", ">= 1.0", loader_steps(reference, None)),
        ("prefetch=0, document and position ids", "", loader_steps(reference, 0, fields=fields)),
        ("thread, document and position ids", ">= 0.5", loader_steps(reference, None, fields=fields)),
        ("thread, best_fit", "", loader_steps(reference, None, packing="best_fit")),
        ("thread, order full", "", loader_steps(reference, None, order="full")),
        ("DataLoader of TokenDataset, in process", "", torch_steps(data)),
        ("DataLoader of plain maps, in process", "", torch_steps(maps)),
    ]


def measure_rates(reference: str, sizes: Sizes, rounds: int) -> list[Figure]:
    """Measure all ways on warm files, alternately with the bare loop."""
    data = TokenDataset(reference, seq_len=SEQ_LEN)
    maps = Maps(data)
    ways = ways_to_read(reference, data, maps)
    bare = bare_steps(maps)
    for tokens in maps.tokens:
        tokens.max()  # now everything is in memory
    found: dict[str, list[float]] = {name: [] for name, _, _ in ways}
    bares = [rate(bare, sizes.batches)]
    for _ in range(rounds):
        for name, _, step in ways:
            ours = rate(step, sizes.batches)
            bares.append(rate(bare, sizes.batches))
            found[name].append(2 * ours / (bares[-2] + bares[-1]))
    figures = [Figure("bare", "M tokens/s", [value / 1e6 for value in bares])]
    return figures + [Figure(name, "of bare", found[name], target) for name, target, _ in ways]


def measure_waits(reference: str, sizes: Sizes) -> list[Figure]:
    """Measure how long `next` takes for a consumer whose step takes 5 ms: asleep, or busy in Python.

    The bare loop shows the effect of cold caches on any code that runs every 5 ms on this machine.
    """
    figures = []
    maps = Maps(TokenDataset(reference, seq_len=SEQ_LEN))
    for name, compute in (("sleeps", sleep_5_ms), ("spins in Python", spin_5_ms)):
        waits, share = waits_of(bare_steps(maps), compute, sizes.waits)
        figures.append(Figure(f"consumer {name} 5 ms: the bare loop takes", "%", [share]))
        waits, share = waits_of(loader_steps(reference, None), compute, sizes.waits)
        for quantile, target in ((0.5, ""), (0.99, "<= 1"), (1.0, "")):
            value = float(np.quantile(waits, quantile) * 1e3)
            figures.append(Figure(f"consumer {name} 5 ms: next, quantile {quantile:g}", "ms", [value], target))
        figures.append(Figure(f"consumer {name} 5 ms: waits", "%", [share], "<= 1"))
    return figures


def waits_of(step: Step, compute: Callable[[], None], num_batches: int) -> tuple[NDArray[np.float64], float]:
    """Return the seconds of each of (num_batches,) steps, and their share of the total time in percent."""
    waits, walls = [], []
    for _ in range(num_batches + 50):
        begin = time.perf_counter()
        step()
        waits.append(time.perf_counter() - begin)
        compute()
        walls.append(time.perf_counter() - begin)
    kept = np.array(waits[50:])
    return kept, 100 * float(kept.sum()) / sum(walls[50:])


def sleep_5_ms() -> None:
    """Stand in for a GPU: this process does nothing."""
    time.sleep(0.005)


def spin_5_ms() -> None:
    """Compute in Python while holding its lock."""
    end = time.perf_counter() + 0.005
    while time.perf_counter() < end:
        pass


def measure_long_run(reference: str, sizes: Sizes) -> list[Figure]:
    """Compare the rate of the last tenth of many small batches with that of the first."""
    figures = []
    for name, prefetch in (("prefetch=0", 0), ("thread", None)):
        loader = TokenLoader(TokenDataset(reference, seq_len=16), BATCH, rank=0, world_size=1, prefetch=prefetch)
        for _ in range(200):
            next(loader)
        ends = [time.perf_counter()]
        for _ in range(10):
            for _ in range(sizes.long_batches // 10):
                next(loader)
            ends.append(time.perf_counter())
        seconds = np.diff(ends)
        loader.close()
        what = f"{name}: rate of the last tenth of {sizes.long_batches:,} batches"
        figures.append(Figure(what, "of the first's", [float(seconds[0] / seconds[-1])], ">= 1"))
    return figures


def measure(arguments: argparse.Namespace, folder: Path) -> list[Figure]:
    """Measure everything that the command line asks for."""
    sizes, rounds = (TINY if arguments.tiny else Sizes()), arguments.rounds
    os.environ["TOKENLOOM_CACHE"] = str(folder / "cache")
    reference = write_store(folder / "store", sizes.num_shards, sizes.shard_tokens)
    figures = measure_rates(reference, sizes, rounds)
    figures += measure_cold(reference, sizes, rounds, arguments.drop_caches)
    figures += measure_waits(reference, sizes)
    figures += measure_packing(folder, sizes, rounds)
    return figures + (measure_long_run(reference, sizes) if arguments.full else [])


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure how fast TokenLoader makes batches.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where to create the stores (default: the system's temporary folder)")
    parser.add_argument("--full", action="store_true", help="also measure a million batches in a row")
    parser.add_argument("--tiny", action="store_true", help="meaningless sizes, to try the program")
    parser.add_argument("--drop-caches", action="store_true", help="cold: drop the caches of the whole machine (root)")
    parser.add_argument("--output", help="a JSON file to write")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        figures = measure(arguments, Path(name))
    print_table(figures)
    if arguments.output:
        details = {"numpy": np.__version__, "torch": torch.__version__, "tiny": arguments.tiny}
        write_json(arguments.output, figures, **details)


if __name__ == "__main__":
    main()
