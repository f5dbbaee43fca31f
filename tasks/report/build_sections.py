"""The sections of a report about a build: its checks, what changed since the previous version, and its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tokenloom.storage.formats.statistics import SourceCounts
from tokenloom.tasks.report.charts import Bar, bar_chart
from tokenloom.tasks.report.figures import VersionFigures, counts_of_sources, counts_of_splits, total_of
from tokenloom.tasks.report.parts import Chart, Section, Table
from tokenloom.tasks.report.wording import change, megabytes, percent_of, short
from tokenloom.tasks.running.progress import STEPS, step_label
from tokenloom.wording import counted


def gates_section(figures: VersionFigures) -> Iterator[Section]:
    """Yield what the checks of the spec expected and found, if it sets any."""
    gates = figures.facts.recorded_gates
    if not gates:
        return
    rows = [[gate.name, gate.expected, gate.found] for gate in gates]
    table = Table("Checks before publication", ["check", "expected", "found"], rows, ["expected", "found"])
    yield Section("checks", "Checks", f"{counted(len(gates), 'check')} passed.", tables=[table])


def difference_section(figures: VersionFigures) -> Section:
    """Return how documents and tokens differ from those of the previous version."""
    previous, title = figures.previous, "Since the previous version"
    if previous is None:
        gone = figures.replaced
        lead = f"The previous version, {gone}, is gone." if gone else "There is no previous version."
        return Section("difference", title, lead, _history(figures))
    splits, sources = counts_of_splits(previous.manifest), counts_of_sources(previous)
    before, now = total_of(splits.values()), figures.total
    tables = [_changes("Splits, compared", "split", figures.splits, splits)]
    if sources is not None:
        tables.append(_changes("Sources, compared", "source", figures.sources, sources))
    missing = "" if sources is not None else " Its sources are not known."
    lead = (
        f"{change(now.documents, before.documents)} documents and {change(now.tokens, before.tokens)} tokens since "
        f"{previous.version}.{missing} These are differences of totals; `tokenloom diff` lists the documents."
    )
    return Section("difference", title, lead, _history(figures), tables)


def _history(figures: VersionFigures) -> list[Chart]:
    """Return a chart of the tokens of the last versions; nothing for the first version."""
    bars = [Bar(name, tokens, short(tokens)) for name, tokens in figures.history.items()]
    title = f"Tokens of the last {len(bars)} versions"
    return [Chart(title, "this one is the last", [bar_chart(bars, title)])] if len(bars) > 1 else []


def _changes(caption: str, what: str, now: Mapping[str, SourceCounts], before: Mapping[str, SourceCounts]) -> Table:
    none = SourceCounts(0, 0)
    rows = []
    for name in dict.fromkeys([*now, *before]):
        new, old = now.get(name, none), before.get(name, none)
        rows.append(
            [
                name,
                f"{old.documents:,}",
                f"{new.documents:,}",
                change(new.documents, old.documents),
                f"{old.tokens:,}",
                f"{new.tokens:,}",
                change(new.tokens, old.tokens),
            ]
        )
    columns = [what, "documents before", "now", "change", "tokens before", "tokens now", "change of tokens"]
    return Table(caption, columns, rows)


def steps_section(figures: VersionFigures) -> Iterator[Section]:
    """Yield the time of each step and the bytes that went through, if build.json has them."""
    seconds = {
        step: time
        for step, time in (figures.facts.build.seconds if figures.facts.build else {}).items()
        if 0 <= time < 1e9
    }
    total = sum(seconds.values())
    if not total:
        return
    num_bytes = _step_bytes(figures)
    slowest = max(seconds, key=lambda step: seconds[step])
    lead = f"The bottleneck was {step_label(slowest)}: {percent_of(seconds[slowest], total)} of {total:,.1f} s."
    if slowest == "tokenize":
        lead += " More workers shorten it; `tokenloom tokenizer SPEC` shows what encodes, and how fast."
    order = sorted(seconds, key=lambda step: list(STEPS).index(step) if step in STEPS else len(STEPS))
    rows = [
        [
            step_label(step),
            STEPS.get(step, ""),
            f"{seconds[step]:,.2f}",
            percent_of(seconds[step], total),
            megabytes(num_bytes[step]) if step in num_bytes else "-",
            f"{megabytes(num_bytes[step] / seconds[step])}/s" if step in num_bytes and seconds[step] else "-",
        ]
        for step in order
    ]
    columns = ["step", "what it does", "seconds", "of the time", "files", "rate"]
    tables = [Table("Steps", columns, rows, ["what it does"])]
    yield Section("steps", "How it was built", lead, tables=tables)


def _step_bytes(figures: VersionFigures) -> dict[str, int]:
    """Return the bytes that went through a step: of the inputs, of the shards."""
    return {"tokenize": sum(entry.bytes for entry in figures.inputs), "shuffle": figures.facts.manifest.shard_bytes}
