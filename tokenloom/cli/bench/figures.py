"""The figures of `tokenloom bench read`, computed from what the ranks measured; `--json` prints these fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenloom.cli.bench.rank import Measured, Task
from tokenloom.cli.results import Result


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
