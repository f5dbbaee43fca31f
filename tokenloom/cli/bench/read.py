"""`tokenloom bench read`: measure how the training processes of a node get their batches, for each way of feeding.

Each way runs in new spawned processes, one per rank, which start together. A rank takes a first batch, then alternates
between a batch and a sleep of the step's length, then takes batches without a pause ("flat out"), and finally, for
comparison, copies and widens rows in the simplest loop ("bare"). All ranks do each of these simultaneously.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokenloom.cli.argument_types import add_reference, integer_in, number_up_to, positive
from tokenloom.cli.bench.figures import BenchResult, WayFigures, show, way_figures
from tokenloom.cli.bench.rank import Task, run_ranks
from tokenloom.cli.loader_arguments import as_usage_errors
from tokenloom.cli.output import Output
from tokenloom.errors import SpecError

if TYPE_CHECKING:
    from tokenloom.reader import TokenDataset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments; those that `run` does not name have the names of Task's fields."""
    add_reference(parser)
    add = parser.add_argument
    add("--split", default="train", help="the split (default: train)")
    add("--seq-len", type=positive, default=2048, metavar="T", help="tokens per sample (default: 2048)")
    add("--packing", default="concat", metavar="NAME", help="as in TokenDataset (default: concat)")
    add("--order", default="block", metavar="NAME", help="as in TokenLoader (default: block)")
    add("--batch-size", type=positive, default=8, metavar="B", help="samples per batch of a process (default: 8)")
    add(
        "--step-ms", type=number_up_to(1e6), default=100.0, metavar="MS", help="computing time of a step (default: 100)"
    )
    add(
        "--steps",
        dest="num_steps",
        type=positive,
        metavar="N",
        help="steps to measure (default: as many as take 3 seconds)",
    )
    add(
        "--workers",
        type=_counts,
        default=[0, 2],
        metavar="N,...",
        help="numbers of workers of the torch DataLoaders to compare with (default: 0,2)",
    )
    add(
        "--processes",
        dest="world_size",
        type=positive,
        default=4,
        metavar="P",
        help="training processes (default: 4)",
    )
    add("--nodes", type=_positives, default=[1], metavar="N,...", help="nodes they are divided into (default: 1)")


def _counts(text: str) -> list[int]:
    return [integer_in(0, 512)(item) for item in text.split(",") if item.strip()]


def _positives(text: str) -> list[int]:
    return [positive(item) for item in text.split(",")]


def run(workers: list[int], nodes: list[int], out: Output, **reading: Any) -> BenchResult:
    """Measure every way of feeding, and print tables.

    Args:
        workers: numbers of workers of a torch DataLoader to compare with; 0 loads in the process itself.
        nodes: numbers of nodes that the ranks are divided into; each divides their number.
        out: prints the result.
        reading: the fields of Task that say what all ranks read, and how.

    Raises:
        SpecError: an argument is out of range.
        StoreError: the version or split does not exist.
    """
    task = Task(**reading, start_method=multiprocessing.get_start_method())
    if wrong := [number for number in nodes if task.world_size % number]:
        raise SpecError(f"--nodes {wrong[0]}: {task.world_size} processes can't be divided evenly among them")
    result = _measure_all(task, workers, nodes)
    show(result, out)
    return result


def _measure_all(task: Task, workers: list[int], nodes: list[int]) -> BenchResult:
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-", ignore_cleanup_errors=True) as folder:
        data = _opened(replace(task, cache_folder=folder))
        task = replace(task, reference=data.reference)  # @latest may move while we measure
        runs = [(n, [n]) for n in nodes] if data.files.is_remote else [(nodes[0], nodes)]
        ways = [
            _measure(way, num_nodes, node_counts, folder if data.files.is_remote else "")
            for num_nodes, node_counts in runs
            for way in feeding_ways(task, workers)
        ]
    return BenchResult(
        reference=data.reference,
        shards=len(data.counts),
        samples=len(data),
        split=task.split,
        seq_len=task.seq_len,
        packing=task.packing,
        order=task.order,
        batch_size=task.batch_size,
        processes=task.world_size,
        step_ms=task.step_ms,
        ways=ways,
    )


def _opened(task: Task) -> TokenDataset:
    """Open the dataset; raise SpecError if the options do not fit it, before any process starts."""
    from tokenloom.reader.streams import make_stream

    with as_usage_errors():
        data = task.open()
        make_stream(data, task.order, 0, None)
        return data


def feeding_ways(task: Task, workers: Sequence[int]) -> list[Task]:
    """Return a task for each way of feeding: two TokenLoaders, and DataLoaders with these numbers of workers."""
    loaders = [replace(task, way="TokenLoader, prefetch=0", prefetch=0), replace(task, way="TokenLoader, thread")]
    names = {0: "DataLoader in process", 1: "DataLoader, 1 worker"}
    return loaders + [
        replace(task, way=names.get(number, f"DataLoader, {number} workers"), workers=number)
        for number in dict.fromkeys(workers)
    ]


def _measure(way: Task, num_nodes: int, node_counts: Sequence[int], folder: str) -> WayFigures:
    """Run one way on all ranks. With a `folder`, each node gets its own empty cache in it."""
    ranks = [replace(way, rank=rank) for rank in range(way.world_size)]
    if not folder:
        return way_figures(way, num_nodes, run_ranks(ranks), node_counts)
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as name:
        node_of = [rank * num_nodes // way.world_size for rank in range(way.world_size)]
        measured = run_ranks([replace(rank, cache_folder=f"{name}/{node_of[rank.rank]}") for rank in ranks])
    return way_figures(way, num_nodes, measured, node_counts)
