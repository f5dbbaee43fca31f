"""The figures of `tokenloom bench read`, computed from what the ranks measured.

`--json` prints their fields; people see three tables, each with a line per column that explains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenloom.cli.bench.rank import Measured, Task
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.wording import counted

_FEEDING = {
    "idle": "share of the time that a process waits for its next batch",
    "batch": "that wait in ms: median / 99th percentile / maximum",
    "step": "the wait and the computing together, in the same form",
    "first batch": "time from opening the dataset to the first batch, in the slowest process",
    "Mtokens/s": "million tokens per second of a process",
    "in all": "million tokens per second of all processes together",
    "flat out": "million tokens per second of a process that computes nothing between its batches",
    "of bare": "flat out, divided by the rate of a simple loop that copies rows in the same process",
}
_MEMORY = {
    "resident": "memory of a process and its workers; shared memory counts in each",
    "imports": "resident memory after the imports (torch among them), before anything is opened",
    "proportional": "resident memory, except that memory shared by n processes counts as one nth in each",
    "shared": "the part of the resident memory that more than one process maps",
    "processor": "processor time of a process and its workers, as a share of one core",
}
_SHARDS = {
    "shards": "shards that each node reads in the measured steps",
    "downloaded": "bytes that each node downloads into its cache; nothing if the store is a folder",
}


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of a time in milliseconds."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class PerNode:
    """What the ranks of each node used, up to the last step; `bytes_downloaded` is None for a local folder."""

    nodes: int
    shards: list[int]
    bytes_downloaded: list[int] | None


@dataclass(frozen=True)
class WayFigures:
    """The figures of one way of feeding. Rates of a process are means over the ranks; quantiles are over all steps."""

    way: str
    workers: int | None
    nodes: int
    steps: int
    tokens_per_second: float
    tokens_per_second_in_all: float
    flat_out_tokens_per_second: float
    bare_tokens_per_second: float
    flat_out_to_bare: float
    idle_ratio: float
    batch_ms: Quantiles
    step_ms: Quantiles
    first_batch_seconds: float
    memory_bytes: dict[str, float]  # empty without /proc
    cpu_share: float
    per_node: list[PerNode]


@dataclass(frozen=True)
class BenchResult(Result):
    """What was read, how, and the figures of each way of feeding."""

    reference: str
    shards: int
    samples: int
    split: str
    seq_len: int
    packing: str
    order: str
    batch_size: int
    processes: int
    step_ms: float
    ways: list[WayFigures]


def way_figures(way: Task, num_nodes: int, ranks: Sequence[Measured], node_counts: Sequence[int]) -> WayFigures:
    """Return the figures of one way of feeding.

    Args:
        way: what each rank did.
        num_nodes: nodes with a cache of their own.
        ranks: what the ranks measured, by rank.
        node_counts: numbers of nodes for which to report what each node used.
    """
    tokens = way.batch_size * way.seq_len
    rates = [tokens / rank.walls.mean() for rank in ranks]
    flats = [tokens / rank.flat.mean() for rank in ranks]
    waits, walls = np.concatenate([rank.waits for rank in ranks]), np.concatenate([rank.walls for rank in ranks])
    return WayFigures(
        way=way.way,
        workers=way.workers,
        nodes=num_nodes,
        steps=len(walls),
        tokens_per_second=float(np.mean(rates)),
        tokens_per_second_in_all=float(np.sum(rates)),
        flat_out_tokens_per_second=float(np.mean(flats)),
        bare_tokens_per_second=float(np.mean([rank.bare for rank in ranks])),
        flat_out_to_bare=float(np.mean([flat / rank.bare for flat, rank in zip(flats, ranks, strict=True)])),
        idle_ratio=float(waits.sum() / walls.sum()),
        batch_ms=_quantiles(waits),
        step_ms=_quantiles(walls),
        first_batch_seconds=max(rank.first_batch for rank in ranks),
        memory_bytes={name: float(np.mean([r.memory.get(name, 0) for r in ranks])) for name in ranks[0].memory},
        cpu_share=float(np.mean([rank.cpu_share for rank in ranks])),
        per_node=[_per_node(ranks, count) for count in node_counts],
    )


def _quantiles(seconds: Any) -> Quantiles:
    return Quantiles(*(1e3 * np.quantile(seconds, (0.5, 0.99, 1.0))).tolist())


def _per_node(ranks: Sequence[Measured], num_nodes: int) -> PerNode:
    node_ranks = len(ranks) // num_nodes
    nodes = [ranks[first : first + node_ranks] for first in range(0, len(ranks), node_ranks)]
    shards = [len(set().union(*(rank.shards for rank in node))) for node in nodes]
    downloaded = [max(rank.downloaded or 0 for rank in node) for node in nodes] if ranks[0].downloaded else None
    return PerNode(num_nodes, shards, downloaded)


def show(result: BenchResult, out: Output) -> None:
    """Print the tables of a run."""
    ways = result.ways
    what = f"{result.packing}, order {result.order}, seq_len {result.seq_len}, batch {result.batch_size}"
    out.line(f"{result.reference} {result.split}: {what}")
    out.line(
        f"{counted(result.processes, 'process')}, {result.step_ms:g} ms of computing per step; "
        f"the split has {counted(result.shards, 'shard')}"
    )
    speeds, sizes = ([[_way_name(result, way), *cells(way)] for way in ways] for cells in (_speeds, _sizes))
    shards = [[way.way, node.nodes, *_node_cells(node)] for way in ways for node in way.per_node]
    _print_table(out, ["way of feeding"], _FEEDING, speeds)
    _print_table(out, ["way of feeding"], _MEMORY, sizes)
    _print_table(out, ["way of feeding", "nodes"], _SHARDS, shards)


def _print_table(out: Output, first: list[str], columns: dict[str, str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table with some first columns, and what each of the others means."""
    width = max(len(column) for column in columns)
    out.line()
    out.table([*first, *columns], rows)
    out.line()
    for column, meaning in columns.items():
        out.line(f"  {column:<{width}}  {meaning}")


def _way_name(result: BenchResult, way: WayFigures) -> str:
    """Return the name of a way of feeding, with its number of nodes if the ways differ in it."""
    several = len({other.nodes for other in result.ways}) > 1
    return f"{way.way}, {counted(way.nodes, 'node')}" if several else way.way


def _speeds(way: WayFigures) -> list[str]:
    rates = (way.tokens_per_second, way.tokens_per_second_in_all, way.flat_out_tokens_per_second)
    return [
        f"{way.idle_ratio:.2%}",
        _joined(way.batch_ms),
        _joined(way.step_ms),
        f"{way.first_batch_seconds * 1e3:.0f} ms",
        *(f"{rate / 1e6:.3g}" for rate in rates),
        f"{way.flat_out_to_bare:.2f}",
    ]


def _joined(times: Quantiles) -> str:
    return "/".join(f"{value:.3g}" for value in (times.p50, times.p99, times.max))


def _sizes(way: WayFigures) -> list[str]:
    found = [way.memory_bytes.get(name) for name in ("rss", "rss_of_imports", "pss", "shared")]
    sizes = ["unknown" if size is None else f"{size / 1e6:.0f} MB" for size in found]
    return [*sizes, f"{way.cpu_share:.0%}"]


def _node_cells(node: PerNode) -> list[str]:
    sizes = node.bytes_downloaded
    downloaded = "nothing" if sizes is None else ", ".join(f"{size / 1e6:,.1f} MB" for size in sizes)
    return [", ".join(f"{number:,}" for number in node.shards), downloaded]
