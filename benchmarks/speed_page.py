"""Write the tables of docs/comparison/speed.md, and of other pages, from the results that the pages name.

    python benchmarks/speed_page.py

A table stands between `<!-- KIND FILE -->` and `<!-- end -->`; KIND is one of _LINES, and FILE a result in
benchmarks/results/. To show another result, name it there; one that does not exist yet is shown as such. A test
compares the pages with what this program writes.
"""

from __future__ import annotations

import json
import re
import statistics
import textwrap
from collections.abc import Callable, Iterator, Sequence
from os.path import relpath
from pathlib import Path
from typing import Any

from build_tools import BARE, BARE_GIGATOKEN, FIRST, OURS, REFERENCE
from tokenloom.wording import counted

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs/comparison/speed.md", ROOT / "docs/project/evidence/ten_billion.md"]
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
BLOCK = re.compile(r"<!-- (build|chat|feed|marks|scale|processor) (\S+) -->\n.*?<!-- end -->\n", re.DOTALL)

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


def scale_lines(result: dict[str, Any], values: Values) -> Iterator[str]:
    """Yield what a result of build_scale.py says: the builds, the commands of the largest, and those on versions."""
    figures = {figure["name"]: figure for figure in result["figures"]}
    sizes = list(dict.fromkeys(name.partition(":")[0] for name in figures if ": tokens" in name))

    def rows(is_shown: Callable[[str], bool]) -> list[list[str]]:
        names = [name for name in figures if is_shown(name) and name.partition(":")[0] in sizes]
        rows = []
        for what in dict.fromkeys(name.partition(": ")[2] for name in names):
            cells = [figures.get(f"{size}: {what}") for size in sizes]
            (some, *_) = filter(None, reversed(cells))
            unit = f", {some['unit']}" if some["unit"] else ""
            rows.append([what + unit, *(number(cell["values"][0]) if cell else "" for cell in cells), some["target"]])
        return rows

    equal = figures[f"{sizes[-1]}: bytes of the plain build"]["values"] == [1]
    is_of_version = re.compile(r".*: (plan|requests|verify|trace|where|gc|diff|reader|bytes)").match
    yield f"{result['tokenizer']}, {result['workers']} workers on {result['cores']} cores, {result['date']}."
    yield f"Plain builds, and the largest again in {result['shares']} shares, all commands together:"
    yield ""
    yield from table(["", *sizes, "asked"], rows(lambda name: not is_of_version(name)))
    yield ""
    yield from table(
        ["growth", "", "asked"],
        [[name, number(values[name][0]), figures[name]["target"]] for name in figures if " / " in name],
    )
    yield ""
    yield "The commands of the shares, in turn:"
    yield ""
    yield from table(
        ["", "exit code", "s", "s of processor time", "MB", "left"],
        [
            [
                f"`{each['command']}`",
                str(each["exit_code"]),
                *(number(each[name]) for name in ("wall", "processor", "megabytes")),
                ", ".join(f"{what} {count:,}" for what, count in (each["left"] or {}).items()),
            ]
            for each in result["commands"]
        ],
    )
    yield ""
    yield f"The version {'has the bytes' if equal else '**does not have the bytes**'} of the plain build."
    yield ""
    yield "What is done with the versions:"
    yield ""
    yield from table(["", *sizes, "asked"], rows(lambda name: bool(is_of_version(name))))


def processor_lines(result: dict[str, Any], values: Values) -> Iterator[str]:
    """Yield the tokens a second of processor time that a result of build_scale.py says, beside what others publish."""
    what = ": million tokens a second of processor time"
    yield from table(
        ["", "million tokens a second of processor time"],
        [
            *([f"tokenloom, {name.partition(':')[0]}", number(values[name][0])] for name in values if what in name),
            ["marin, 110 B", "0.77 and 0.66"],
        ],
    )


def number(value: float) -> str:
    """Return a number with three digits, or all of an integer's."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


_LINES: dict[str, Callable[[dict[str, Any], Values], Iterator[str]]] = {
    "build": build_lines,
    "chat": chat_lines,
    "feed": feed_lines,
    "marks": marks_lines,
    "scale": scale_lines,
    "processor": processor_lines,
}


def render(kind: str, name: str, page: Path) -> str:
    """Return a block of a page."""
    path = ROOT / "benchmarks/results" / name
    lines = ["Not measured yet."]
    if path.exists():
        result = json.loads(path.read_text())
        values = {figure["name"]: figure["values"] for figure in result["figures"]}
        lines = [*_LINES[kind](result, values), "", f"[The results]({relpath(path, page.parent)})."]
    return "\n".join([f"<!-- {kind} {name} -->", "", *lines, "", "<!-- end -->", ""])


def written(page: Path) -> str:
    """Return a page with its tables written again."""
    return BLOCK.sub(lambda match: render(match[1], match[2], page), page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(written(each), encoding="utf-8")
