"""What `tokenloom bench read` prints: three tables, each with a line that explains each of its columns."""

from __future__ import annotations

from tokenloom.cli.output import Json, print_line, print_table
from tokenloom.wording import counted

_FEEDING = {
    "idle": "share of the time that a process waits for its next batch",
    "batch": "that wait in ms: half are below the first, 99% below the second, the third is the longest",
    "step": "the wait and the computing together, in ms as above",
    "first batch": "from opening the dataset to the first batch, in the slowest process",
    "Mtokens/s": "million tokens a second of a process",
    "in all": "million tokens a second of all processes together",
    "flat out": "million tokens a second of a process that asks for the next batch at once, without computing",
    "of bare": "flat out, divided by the rate of a plain loop that copies rows in the same process",
}
_MEMORY = {
    "resident": "memory of a process and its workers; what they share counts in each",
    "imports": "resident after the imports, torch among them, before anything is opened",
    "proportional": "resident, but what n processes share counts as an nth in each",
    "shared": "the part of resident that more than one process maps",
    "processor": "processor time of a process and its workers, as a share of one core",
}
_SHARDS = {
    "shards": "shards that each node reads in the steps measured",
    "downloaded": "bytes that each node downloads into its cache; nothing from a store that is a folder",
}


def show(result: Json, quiet: bool) -> None:
    """Print the tables of a run."""
    ways = result["ways"]
    what = f"{result['packing']}, order {result['order']}, seq_len {result['seq_len']}, batch {result['batch_size']}"
    print_line(quiet, f"{result['reference']} {result['split']}: {what}")
    print_line(
        quiet,
        f"{counted(result['processes'], 'process')}, {result['step_ms']:g} ms of computing a step; "
        f"the split has {counted(result['shards'], 'shard')}\n",
    )
    print_table(quiet, ["way of feeding", *_FEEDING], [[way_name(result, way), *_speeds(way)] for way in ways])
    _explain(quiet, _FEEDING)
    print_line(quiet)
    print_table(quiet, ["way of feeding", *_MEMORY], [[way_name(result, way), *_sizes(way)] for way in ways])
    _explain(quiet, _MEMORY)
    print_line(quiet)
    rows = [[way["way"], cut["nodes"], *_of_nodes(cut)] for way in ways for cut in way["per_node"]]
    print_table(quiet, ["way of feeding", "nodes", *_SHARDS], rows)
    _explain(quiet, _SHARDS)


def _explain(quiet: bool, columns: dict[str, str]) -> None:
    """Print what each column means."""
    width = max(len(column) for column in columns)
    print_line(quiet)
    for column, meaning in columns.items():
        print_line(quiet, f"  {column:<{width}}  {meaning}")


def way_name(result: Json, way: Json) -> str:
    """Return the name of a way of feeding, with its number of nodes where the runs differ in it."""
    several = len({other["nodes"] for other in result["ways"]}) > 1
    return f"{way['way']}, {counted(way['nodes'], 'node')}" if several else str(way["way"])


def _speeds(way: Json) -> list[str]:
    batch, step = ("/".join(f"{value:.3g}" for value in way[name].values()) for name in ("batch_ms", "step_ms"))
    names = ("tokens_per_second", "tokens_per_second_in_all", "flat_out_tokens_per_second")
    rates = [f"{way[name] / 1e6:.3g}" for name in names]
    idle, first = f"{way['idle_ratio']:.2%}", f"{way['first_batch_seconds'] * 1e3:.0f} ms"
    return [idle, batch, step, first, *rates, f"{way['flat_out_to_bare']:.2f}"]


def _sizes(way: Json) -> list[str]:
    names = ("rss", "rss_of_imports", "pss", "shared")
    found = [way["memory_bytes"].get(name) for name in names]
    sizes = ["unknown" if size is None else f"{size / 1e6:.0f} MB" for size in found]
    return [*sizes, f"{way['cpu_share']:.0%}"]


def _of_nodes(cut: Json) -> list[str]:
    downloaded = cut["bytes_downloaded"]
    sizes = "nothing" if downloaded is None else ", ".join(f"{size / 1e6:,.1f} MB" for size in downloaded)
    return [", ".join(f"{number:,}" for number in cut["shards"]), sizes]
