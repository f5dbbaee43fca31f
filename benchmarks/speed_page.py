"""Write the tables of docs/comparison/speed.md from the results that the page names.

    python benchmarks/speed_page.py

A table stands between `<!-- KIND FILE -->` and `<!-- end -->`; KIND is build, chat, feed or marks, and FILE a result in
benchmarks/results/. To show another result, name it there. A test compares the page with what this program writes.
"""

from __future__ import annotations

import json
import re
import statistics
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from build_tools import BARE, BARE_GIGATOKEN, FIRST, OURS, REFERENCE
from tokenloom.wording import counted

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/comparison/speed.md"
NAMES = {
    OURS: "**tokenloom**",
    FIRST: "tokenloom, first build",
    REFERENCE: "tokenloom, reference",
    BARE: "only tiktoken",
    BARE_GIGATOKEN: "only gigatoken",
    "megatron-fast": "Megatron, fast",
    "hf": "datasets, tokenizers",
    "hf-tiktoken": "datasets, tiktoken",
    "litdata": "LitData",
    "datatrove": "datatrove",
}
_BLOCK = re.compile(r"<!-- (build|chat|feed|marks) (\S+) -->\n.*?<!-- end -->\n", re.DOTALL)

Values = dict[str, list[float]]


def spread(values: Sequence[float], digits: int | None = None) -> str:
    """Return the median and, of several values, their range: "5.63 (4.60 to 5.76)"; by default with three digits."""
    if digits is None:
        digits = 0 if min(values) >= 100 else 1 if min(values) >= 10 else 2
    median, low, high = (f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
    return f"{median} ({low} to {high})" if len(values) > 1 else median


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def build_lines(result: dict[str, Any], values: Values) -> Iterator[str]:
    """Yield what a result of build.py says: a table, the fastest first, and the versions."""
    names = sorted((name for name in NAMES if name in values), key=lambda name: -statistics.median(values[name]))
    yield (
        f"{result['tokenizer']}, {result['text_mb']:.0f} MB in {result['documents']:,} documents, {result['tokens']:,} "
        f"tokens, {result['workers']} workers on {result['cores']} cores, {result['rounds']} rounds, {result['date']}:"
    )
    yield ""
    yield from table(
        ["", "MB/s", "times", "MiB"],
        [[NAMES[name], spread(values[name]), _times(values, name), _memory(values, name)] for name in names],
    )
    yield ""
    versions = {f"{package} {number}" for used in result["versions"].values() for package, number in used.items()}
    yield from textwrap.wrap(f"Versions: {', '.join(sorted(versions))}; Python {result['python']}.", 120)


def _times(values: Values, name: str) -> str:
    if name == OURS:
        return ""
    if name == BARE_GIGATOKEN:
        return spread([ours / theirs for ours, theirs in zip(values[OURS], values[name], strict=True)])
    return spread(values[f"{OURS} / {name}"])


def _memory(values: Values, name: str) -> str:
    return f"{statistics.median(values[f'memory of a process: {name}']):,.0f}"


def chat_lines(result: dict[str, Any], values: Values) -> Iterator[str]:
    """Yield what a result of chat.py says."""
    templates = [
        name.removesuffix(": tokenloom") for name in values if name.endswith(": tokenloom") and "mem" not in name
    ]
    yield f"{result['conversations']:,} conversations, {result['workers']} workers, {result['date']}:"
    yield ""
    yield from table(
        ["template", "tokenloom, a second", "`datasets.map`, a second", "times"],
        [
            [
                name,
                *(
                    spread(values[f"{name}: {tool}"])
                    for tool in ("tokenloom", "datasets.map", "tokenloom / datasets.map")
                ),
            ]
            for name in templates
        ],
    )


def feed_lines(result: dict[str, Any], values: Values) -> Iterator[str]:
    """Yield what a result of gpu_feed.py says."""
    yield f"{result['gpu']}, torch {result['torch']}, {result['cores']} cores, {result['date']}:"
    yield ""
    steps = dict.fromkeys(name.partition(": ")[0] for name in values)
    yield from table(
        ["", "no loader", "`TokenLoader`", "`DataLoader`"],
        [
            [step, *(spread(values[f"{step}: {kind}"], 2) for kind in ("fixed batch", "TokenLoader", "DataLoader"))]
            for step in steps
        ],
    )


def marks_lines(result: dict[str, Any], values: Values) -> Iterator[str]:
    """Yield what a result of marks.py says."""
    rounds = len(values["another threshold"])
    yield (
        f"{result['tokenizer']}, {result['megabytes']:,.0f} MB of text on {result['cores']} cores, "
        f"{counted(rounds, 'round')}, {result['date']}:"
    )
    yield ""
    figures = {figure["name"]: figure for figure in result["figures"]}
    yield from table(
        ["", "", "asked"],
        [
            [name, f"{spread(values[name])} {figure['unit']}".strip(), figure["target"]]
            for name, figure in figures.items()
        ],
    )


_LINES: dict[str, Callable[[dict[str, Any], Values], Iterator[str]]] = {
    "build": build_lines,
    "chat": chat_lines,
    "feed": feed_lines,
    "marks": marks_lines,
}


def render(kind: str, name: str) -> str:
    """Return a block of the page."""
    result = json.loads((ROOT / "benchmarks/results" / name).read_text())
    values = {figure["name"]: figure["values"] for figure in result["figures"]}
    link = f"[The results](../../benchmarks/results/{name})."
    return "\n".join([f"<!-- {kind} {name} -->", "", *_LINES[kind](result, values), "", link, "", "<!-- end -->", ""])


def written(page: str) -> str:
    """Return the page with its tables written again."""
    return _BLOCK.sub(lambda match: render(match[1], match[2]), page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
