"""Measure exports against `cp` and fsync of the same shards, in turn.

    python benchmarks/export.py [--mb 1000] [--rounds 5] [--workers N] [--folder DIR] [--tiny] [--output FILE.json]

Before each measurement what is read is read once, so that it is in memory, what the last one wrote is deleted, and the
disk is idle. `cp` copies the shards as they are; then each of its files is synced. Exports run in a process that has
run each format once. A rate counts the bytes of ids, and is divided by the mean of those of cp before and after.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from figures import Figure, print_table, write_json
from tokenloom.flows.export_steps import export_directly
from tokenloom.tasks.exporting.base import ExportOptions
from tokenloom.tasks.running.workers import chosen_num_workers

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.builders.synthetic_store import random_documents, write_store

RAW = ("megatron", "olmo", "llmc", "nanogpt", "datatrove")
_SHARD_TOKENS = 33_000_000
_MEAN_TOKENS = 960


def copy(shards: Sequence[Path], to: Path) -> None:
    """Copy the shards, and wait until they are on the device."""
    to.mkdir()
    subprocess.run(["cp", *map(str, shards), str(to)], check=True)
    subprocess.run(["sync", *map(str, to.iterdir()), str(to)], check=True)


def seconds_of(shards: Sequence[Path], to: Path, work: Callable[[], object]) -> float:
    """Return how long something takes that reads the shards, which are in memory, and writes a folder."""
    for path in shards:
        with path.open("rb") as file:
            while file.read(2**22):
                pass
    shutil.rmtree(to, ignore_errors=True)
    os.sync()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(folder: Path, num_shards: int, shard_tokens: int, rounds: int, workers: int) -> list[Figure]:
    """Measure each raw format between two copies, once more than is counted: the first time imports and starts much."""
    made = [random_documents(shard_tokens, _MEAN_TOKENS, seed, 50_257) for seed in range(num_shards)]
    reference = write_store(folder / "store", made)
    del made
    shards = sorted((folder / "store").glob("data/versions/*/train/*.tok"))
    megabytes = num_shards * shard_tokens * 2 / 1e6
    to = folder / "out"
    copies: list[float] = []
    rates: dict[str, list[float]] = {name: [] for name in RAW}
    shares: dict[str, list[float]] = {name: [] for name in RAW}
    for _ in range(1 + rounds):
        copies.append(megabytes / seconds_of(shards, to, partial(copy, shards, to)))
        for name in RAW:
            work = partial(export_directly, reference, name, str(to), ExportOptions([]), workers)
            rates[name].append(megabytes / seconds_of(shards, to, work))
            copies.append(megabytes / seconds_of(shards, to, partial(copy, shards, to)))
            shares[name].append(2 * rates[name][-1] / (copies[-2] + copies[-1]))
    figures = [Figure("cp and fsync", "MB/s", copies[1 + len(RAW) :])]
    for name in RAW:
        figures += [Figure(name, "MB/s", rates[name][1:]), Figure(name, "of cp", shares[name][1:], ">= 0.5")]
    return figures


def main() -> None:
    """Print the figures, and write them if a file is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--mb", type=int, default=1000, help="of ids; default: 1000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, help="worker processes; default: one per core")
    parser.add_argument("--folder", help="where all is made; default: the system's folder for temporary files")
    parser.add_argument("--tiny", action="store_true", help="small shards: does the program work?")
    parser.add_argument("--output", help="a JSON file for the figures")
    options = parser.parse_args()
    num_shards, tokens = (
        (2, 100_000) if options.tiny else (max(1, options.mb * 10**6 // (2 * _SHARD_TOKENS)), _SHARD_TOKENS)
    )
    workers = chosen_num_workers(options.workers)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = measure(Path(folder), num_shards, tokens, options.rounds, workers)
    print_table(figures)
    if options.output:
        write_json(options.output, figures, megabytes=num_shards * tokens * 2 / 1e6, workers=workers)


if __name__ == "__main__":
    main()
