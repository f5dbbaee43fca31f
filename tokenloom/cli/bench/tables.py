"""Print the three tables of `tokenloom bench read`, each with a line per column that explains it."""

from __future__ import annotations

from tokenloom.cli.bench.figures import BenchResult, PerNode, Quantiles, WayFigures
from tokenloom.cli.output import Output
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


def show(result: BenchResult, out: Output) -> None:
    """Print the tables of a run."""
    ways = result.ways
    what = f"{result.packing}, order {result.order}, seq_len {result.seq_len}, batch {result.batch_size}"
    out.line(f"{result.reference} {result.split}: {what}")
    out.line(
        f"{counted(result.processes, 'process')}, {result.step_ms:g} ms of computing per step; "
        f"the split has {counted(result.shards, 'shard')}"
    )
    out.line()
    out.table(["way of feeding", *_FEEDING], [[way_name(result, way), *_speeds(way)] for way in ways])
    _explain(out, _FEEDING)
    out.line()
    out.table(["way of feeding", *_MEMORY], [[way_name(result, way), *_sizes(way)] for way in ways])
    _explain(out, _MEMORY)
    out.line()
    rows = [[way.way, node.nodes, *_node_cells(node)] for way in ways for node in way.per_node]
    out.table(["way of feeding", "nodes", *_SHARDS], rows)
    _explain(out, _SHARDS)


def _explain(out: Output, columns: dict[str, str]) -> None:
    """Print what each column means."""
    width = max(len(column) for column in columns)
    out.line()
    for column, meaning in columns.items():
        out.line(f"  {column:<{width}}  {meaning}")


def way_name(result: BenchResult, way: WayFigures) -> str:
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
