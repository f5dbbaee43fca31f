"""`tokenloom bench read`: how the training processes of a node get their batches, by way of feeding.

Every way runs in fresh spawned processes, one for each rank, that begin together: each takes a first batch, then a
batch and a sleep of the step's length again and again, then for a moment batches without a pause ("flat out"), then,
for comparison, rows copied and widened by the plainest loop ("bare"). All ranks do each of these at the same time.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenloom.cli.bench.plot import draw
from tokenloom.cli.bench.rank import Task, run_ranks
from tokenloom.cli.bench.tables import show
from tokenloom.cli.output import Json, print_line
from tokenloom.errors import SpecError, TokenloomError

if TYPE_CHECKING:
    from tokenloom.reader import TokenDataset


def bench_read(
    reference: str,
    split: str,
    seq_len: int,
    packing: str,
    order: str,
    batch_size: int,
    step_ms: float,
    steps: int | None,
    workers: list[int],
    processes: int,
    nodes: list[int],
    plot: str | None,
    quiet: bool,
) -> Json:
    """Measure every way of feeding; print tables, draw a plot if asked to.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        split: of the version.
        seq_len: T, at least 1.
        packing: as in TokenDataset.
        order: as in TokenLoader.
        batch_size: samples of a batch on one rank.
        step_ms: how long a rank computes, at least 0.
        steps: that count; None for as many as 3 seconds take, and at least 20.
        workers: numbers of workers of a torch DataLoader to compare with; 0 is one without.
        processes: ranks.
        nodes: numbers of nodes that the ranks are cut into; each divides `processes`.
        plot: an .svg file to write.
        quiet: print nothing.

    Raises:
        SpecError: an argument out of range.
        StoreError: there is no such version or split.
    """
    if wrong := [number for number in nodes if processes % number]:
        raise SpecError(f"--nodes {wrong[0]}: {processes} processes can't be cut into so many alike")
    if plot and (Path(plot).suffix != ".svg" or not Path(plot).absolute().parent.is_dir()):
        raise SpecError(f"--plot {plot}: write the name of an .svg file in a folder that is there")
    task = Task(reference, split, seq_len, packing, order, batch_size, step_ms / 1e3, steps, world_size=processes)
    task = replace(task, start_method=multiprocessing.get_start_method())
    with tempfile.TemporaryDirectory(prefix="tokenloom-bench-", ignore_cleanup_errors=True) as folder:
        data = _checked(replace(task, cache_folder=folder))
        task = replace(task, reference=data.reference)  # what @latest names may change
        runs = [(n, [n]) for n in nodes] if data.files.is_remote else [(nodes[0], nodes)]
        rows = [
            _measure(way, num_nodes, cuts, folder if data.files.is_remote else "")
            for num_nodes, cuts in runs
            for way in _ways(task, workers)
        ]
    result = {"reference": data.reference, "shards": len(data.counts), "samples": len(data)}
    result |= {name: getattr(task, name) for name in ("split", "seq_len", "packing", "order", "batch_size")}
    result |= {"processes": processes, "step_ms": step_ms, "ways": rows}
    show(result, quiet)
    if plot:
        Path(plot).write_text(draw(result), encoding="utf-8")
        print_line(quiet, f"\nwrote {plot}")
    return result


def _checked(task: Task) -> TokenDataset:
    """Open what is to be read; raises SpecError if the options do not fit, before any process starts."""
    from tokenloom.reader.streams import make_stream

    try:
        data = task.open()
        make_stream(data, task.order, 0, None)
    except TokenloomError:
        raise
    except ValueError as error:
        raise SpecError(str(error)) from error
    return data


def _ways(task: Task, workers: Sequence[int]) -> list[Task]:
    loaders = [replace(task, way="TokenLoader, prefetch=0", prefetch=0), replace(task, way="TokenLoader, thread")]
    names = {0: "DataLoader in process", 1: "DataLoader, 1 worker"}
    return loaders + [
        replace(task, way=names.get(number, f"DataLoader, {number} workers"), workers=number)
        for number in dict.fromkeys(workers)
    ]


def _measure(way: Task, num_nodes: int, cuts: Sequence[int], folder: str) -> Json:
    """Run one way on all ranks; with a `folder`, each node has a cache of its own in it, empty at the start."""
    ranks = [replace(way, rank=rank) for rank in range(way.world_size)]
    if not folder:
        measured = run_ranks(ranks)
        return _row(way, num_nodes, measured) | {"per_node": [_per_node(measured, cut) for cut in cuts]}
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as name:
        node_of = [rank * num_nodes // way.world_size for rank in range(way.world_size)]
        measured = run_ranks([replace(rank, cache_folder=f"{name}/{node_of[rank.rank]}") for rank in ranks])
    return _row(way, num_nodes, measured) | {"per_node": [_per_node(measured, num_nodes)]}


def _row(way: Task, num_nodes: int, ranks: Sequence[Json]) -> Json:
    """Return the figures of one way: rates of a process are means over the ranks, quantiles are over all steps."""
    tokens = way.batch_size * way.seq_len
    rates, flats = ([tokens / rank[name].mean() for rank in ranks] for name in ("walls", "flat"))
    waits, walls = (np.concatenate([rank[name] for rank in ranks]) for name in ("waits", "walls"))
    memory = {name: float(np.mean([rank["memory"].get(name, 0) for rank in ranks])) for name in ranks[0]["memory"]}
    return {
        "way": way.way,
        "workers": way.workers,
        "nodes": num_nodes,
        "steps": len(walls),
        "tokens_per_second": float(np.mean(rates)),
        "tokens_per_second_in_all": float(np.sum(rates)),
        "flat_out_tokens_per_second": float(np.mean(flats)),
        "bare_tokens_per_second": float(np.mean([rank["bare"] for rank in ranks])),
        "flat_out_to_bare": float(np.mean([flat / rank["bare"] for flat, rank in zip(flats, ranks, strict=True)])),
        "idle_ratio": float(waits.sum() / walls.sum()),
        "batch_ms": _quantiles(waits),
        "step_ms": _quantiles(walls),
        "first_batch_seconds": max(rank["first_batch"] for rank in ranks),
        "memory_bytes": memory,
        "cpu_share": float(np.mean([rank["cpu_share"] for rank in ranks])),
    }


def _quantiles(seconds: Any) -> dict[str, float]:
    found = 1e3 * np.quantile(seconds, (0.5, 0.99, 1.0))
    return dict(zip(("p50", "p99", "max"), found.tolist(), strict=True))


def _per_node(ranks: Sequence[Json], num_nodes: int) -> Json:
    """Return what the ranks of each node touched up to the last step, together."""
    size = len(ranks) // num_nodes
    nodes = [ranks[first : first + size] for first in range(0, len(ranks), size)]
    shards = [len(set().union(*(rank["shards"] for rank in node))) for node in nodes]
    downloaded = [max(rank["downloaded"] for rank in node) for node in nodes] if ranks[0]["downloaded"] else None
    return {"nodes": num_nodes, "shards": shards, "bytes_downloaded": downloaded}
