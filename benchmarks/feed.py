"""Measure whether a TokenLoader keeps training processes busy on this machine and a given store.

    python benchmarks/feed.py store/news [--step-ms 100] [--seconds 3] [--processes 4] [--seq-len 2048] [--batch-size 8]
        [--packing concat] [--order block] [--prefetch 2] [--output FILE.json]

Each process is one rank: it takes a batch, then sleeps for a step, as if it computed. The figures are those of
`TokenLoader.stats()`, one value per process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

from figures import Figure, print_table, write_json
from tokenloom.reader import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.prefetch import LoaderStats


def run_rank(options: argparse.Namespace, rank: int) -> LoaderStats:
    """Feed one rank for some seconds, and return what its loader measured."""
    data = TokenDataset(options.reference, seq_len=options.seq_len, packing=options.packing)
    given: dict[str, Any] = {"order": options.order, "rank": rank, "world_size": options.processes}
    with closing(TokenLoader(data, options.batch_size, prefetch=options.prefetch, **given)) as loader:
        end = time.perf_counter() + options.seconds
        while time.perf_counter() < end:
            next(loader)
            time.sleep(options.step_ms / 1e3)
        return loader.stats()


def figures_of(ranks: Sequence[LoaderStats]) -> list[Figure]:
    """Return the figures of all ranks."""
    return [
        Figure("waiting for batches", "of the time", [rank.idle_ratio for rank in ranks]),
        Figure("wait, median", "ms", [rank.wait_p50 * 1e3 for rank in ranks]),
        Figure("wait, 99 % below", "ms", [rank.wait_p99 * 1e3 for rank in ranks]),
        Figure("first batch", "ms", [rank.first_batch * 1e3 for rank in ranks]),
        Figure("rate of a process", "M tokens/s", [rank.tokens_per_second / 1e6 for rank in ranks]),
        Figure("rate of all", "M tokens/s", [sum(rank.tokens_per_second for rank in ranks) / 1e6]),
    ]


def main() -> None:
    """Run the ranks side by side, and print their figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("reference", metavar="STORE/DATASET[@VERSION]")
    for name, default in (("--step-ms", 100.0), ("--seconds", 3.0)):
        parser.add_argument(name, type=float, default=default)
    for name, count in (("--processes", 4), ("--seq-len", 2048), ("--batch-size", 8), ("--prefetch", 2)):
        parser.add_argument(name, type=int, default=count)
    parser.add_argument("--packing", default="concat")
    parser.add_argument("--order", default="block")
    parser.add_argument("--output")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        ranks = list(pool.map(partial(run_rank, options), range(options.processes)))
    figures = figures_of(ranks)
    print_table(figures)
    if options.output:
        write_json(options.output, figures, options=vars(options))


if __name__ == "__main__":
    main()
