"""The sections of a report: which figures stand where, and in which words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tokenloom.storage.formats.statistics import EncodedCounts, SourceCounts
from tokenloom.tasks.report.build_sections import difference_section, gates_section, steps_section
from tokenloom.tasks.report.charts import HISTOGRAM_WIDTHS, Bar, Mark, histogram
from tokenloom.tasks.report.figures import (
    QUANTILES,
    VersionFigures,
    by_doubling,
    length_quantiles,
    tokens_by_length,
    unlike_shares,
)
from tokenloom.tasks.report.parts import Chart, Section, Table, bars_of
from tokenloom.tasks.report.wording import inert, megabytes, percent_of, short
from tokenloom.wording import counted

_MAX_SPLITS = 6  # columns of the table of sources
_MARKED = (0.1, 0.5, 0.9)  # quantiles in the histogram


def report_sections(figures: VersionFigures) -> Iterator[Section]:
    """Yield the sections of a report, in order; one without figures is left out."""
    yield from gates_section(figures)
    if figures.statistics:
        yield _sources(figures)
    yield _splits(figures)
    yield from _lengths(figures)
    yield from _conversations(figures)
    yield _rows(figures)
    yield from _tokens(figures)
    yield from _documents(figures)
    yield difference_section(figures)
    yield from steps_section(figures)


def bytes_per_token(counts: EncodedCounts | None) -> float | None:
    """Return the bytes of text for each token; None if unknown."""
    return counts.bytes / counts.tokens if counts and counts.bytes and counts.tokens else None


def _sources(figures: VersionFigures) -> Section:
    sources, encoded = figures.sources, figures.encoded
    rates = {name: rate for name in sources if (rate := bytes_per_token(encoded.get(name))) is not None}
    lead = "" if rates else "Bytes per token are unknown: build.json can't be used, or no text was encoded."
    charts, table = _share_charts("by source", sources), _table_of_sources(figures, rates)
    return Section("sources", "Sources", lead, charts, [table])


def _table_of_sources(figures: VersionFigures, rates: Mapping[str, float]) -> Table:
    columns = ["source", "files", "documents", "tokens", "of tokens", "tokens per document", "bytes per token"]
    splits = list(figures.splits)[:_MAX_SPLITS] if len(figures.splits) > 1 else []
    columns += [f"in {split}" for split in splits]
    files = Counter(entry.source for entry in figures.inputs)
    total = figures.total
    rows = [
        [
            name,
            f"{files[name]:,}",
            f"{counts.documents:,}",
            f"{counts.tokens:,}",
            percent_of(counts.tokens, total.tokens),
            f"{counts.tokens / counts.documents:,.1f}" if counts.documents else "-",
            f"{rates[name]:.2f}" if name in rates else "-",
            *(f"{_of_source(figures, split, name):,}" for split in splits),
        ]
        for name, counts in figures.sources.items()
    ]
    return Table("Sources", columns, rows)


def _of_source(figures: VersionFigures, split: str, source: str) -> int:
    """Return the tokens of a source in a split."""
    counts = figures.statistics[split].sources.get(source) if split in figures.statistics else None
    return counts.tokens if counts else 0


def _share_charts(unit: str, counts: Mapping[str, SourceCounts]) -> list[Chart]:
    return [
        _share_chart("Tokens", unit, {name: each.tokens for name, each in counts.items()}),
        _share_chart("Documents", unit, {name: each.documents for name, each in counts.items()}),
    ]


def _share_chart(title: str, unit: str, counts: Mapping[str, int]) -> Chart:
    whole = sum(counts.values())
    largest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    bars = [Bar(name, count, f"{short(count)} ({percent_of(count, whole)})") for name, count in largest]
    return bars_of(title, unit, bars)


def _splits(figures: VersionFigures) -> Section:
    splits, total = {name: figures.facts.manifest.splits[name] for name in figures.splits}, figures.total
    rows = [
        [
            name,
            f"{split.documents:,}",
            f"{split.tokens:,}",
            percent_of(split.documents, total.documents),
            percent_of(split.tokens, total.tokens),
            f"{split.duplicates:,}",
            f"{len(split.shards):,}",
            megabytes(split.shards.num_bytes()),
        ]
        for name, split in splits.items()
    ]
    columns = ["split", "documents", "tokens", "of documents", "of tokens", "duplicates dropped", "shards", "size"]
    unlike = unlike_shares(figures.splits)
    lead = "".join(
        f"{name} has {percent_of(documents, 1)} of the documents, but {percent_of(tokens, 1)} of the tokens: its "
        f"documents are unusually {'long' if tokens > documents else 'short'}, so figures on it say less of the rest. "
        for name, (documents, tokens) in unlike.items()
    )
    if unlike:
        lead += "A larger share in `splits` makes it more alike."
    table = Table("Splits", columns, rows, bad_rows=[list(splits).index(name) for name in unlike])
    return Section("splits", "Splits", lead, _share_charts("by split", figures.splits), [table])


def _lengths(figures: VersionFigures) -> Iterator[Section]:
    lengths = figures.lengths
    if not any(lengths):
        return
    total, tokens = figures.total, tokens_by_length(lengths)
    charts = [
        _histogram("Documents by length", "in each doubling of the length", lengths),
        _histogram("Tokens by the length of their document", "in each doubling of the length", tokens),
    ]
    columns = ["tokens", *map(_quantile_name, QUANTILES), "mean"]
    rows = [
        ["length of a document", *_quantiles(lengths), f"{total.tokens / total.documents:,.1f}"],
        ["length of the document of a token", *_quantiles(tokens), "-"],
    ]
    lead = (
        "In tokens, with end-of-text. p90: nine of ten documents are no longer. Lengths are counted in bins of at most "
        "an eighth of a doubling; a quantile is right to within its bin."
    )
    yield Section("lengths", "Lengths", lead, charts, [Table("Quantiles", columns, rows)])


def _histogram(title: str, unit: str, counts: Sequence[float]) -> Chart:
    """Return a chart of documents or tokens by bin of the length, with its median and two quantiles."""
    values = [(share, max(1.0, value)) for share, value in zip(_MARKED, length_quantiles(counts, _MARKED), strict=True)]
    marks = [Mark(math.log2(value), f"{_quantile_name(share)} {_length(value)}") for share, value in values]
    bars = by_doubling(counts)
    drawings = [histogram(bars, marks, title, width) for width in HISTOGRAM_WIDTHS]
    return Chart(title, unit, drawings, "half")


def _quantiles(counts: Sequence[float]) -> list[str]:
    return [f"{value:,.0f}" for value in length_quantiles(counts)]


def _length(value: float) -> str:
    return f"{value:,.0f}" if value < 9999.5 else short(value)


def _quantile_name(share: float) -> str:
    return "median" if share == 0.5 else f"p{100 * share:g}"


def _conversations(figures: VersionFigures) -> Iterator[Section]:
    """Yield whose the tokens of conversations are, and how many a model learns by default."""
    found = figures.facts.conversations
    if not found:
        return
    total = figures.total.tokens
    lead = f"{percent_of(found.learned, total)} of the tokens are learned by default: "
    if found.conversations:
        turns = counted(found.turns, "ended turn")
        lead = f"{counted(found.conversations, 'conversation')} with {turns} of the assistant. {lead}"
        lead += "what the assistant writes, and text."
    else:
        lead += (
            "those that the masks of the source say, as if an assistant wrote them; the others have the role of a user."
        )
    roles = [(role.replace("_", " "), count) for role, count in found.tokens.items()]
    bars = [Bar(role, count, f"{short(count)} ({percent_of(count, total)})") for role, count in roles]
    charts = [bars_of("Tokens by role", "share of all tokens", bars)]
    yield Section("conversations", "Conversations", lead, charts)


def _rows(figures: VersionFigures) -> Section:
    rows = figures.facts.manifest.row_counts
    read = rows["read"]
    left = {name: count for name, count in rows.items() if name not in ("read", "kept")}
    num_left = sum(left.values())
    lead = f"{num_left:,} of {counted(read, 'row')} ({percent_of(num_left, read)}) did not become documents."
    if num_pruned := figures.facts.build.measured.get("rows_not_read") if figures.facts.build else None:
        lead += (
            f" {num_pruned:,} were filtered without being read, by their paths or the statistics of their row groups."
        )
    charts = []
    if num_left:
        bars = [Bar(name, count, f"{count:,} ({percent_of(count, read)})") for name, count in left.items() if count]
        charts.append(bars_of("Rows left out", "by reason, share of the rows read", bars))
    reasons = [
        [source, f"{sum(found.values()):,}", ", ".join(f"{count:,} {reason}" for reason, count in found.items())]
        for source, found in sorted(figures.facts.quarantined.items())
    ]
    fates = _fates(figures)
    kept = [
        Bar(name, found[-1] / found[0], percent_of(found[-1], found[0])) for name, found in fates.items() if found[0]
    ]
    charts.append(bars_of("Documents kept", "by source, share of its rows", kept, 1.0))
    columns = ["source", "rows read", "filtered", "quarantined", "duplicates or excluded", "documents kept"]
    listed = [[name, *(f"{count:,}" for count in found)] for name, found in fates.items()]
    tables = [Table("From rows read to documents kept", columns, listed)]
    if reasons:
        tables.append(Table("Quarantined rows", ["source", "rows", "reasons"], reasons, ["reasons"]))
    return Section("rows", "Rows", lead, charts, tables)


def _fates(figures: VersionFigures) -> dict[str, tuple[int, ...]]:
    """Return rows read, filtered, quarantined, dropped and kept, of each source if build.json says it, and of all."""
    rows = figures.facts.manifest.rows
    fates: dict[str, tuple[int, ...]] = {}
    for name, counts in figures.sources.items():
        if figures.statistics and (found := figures.encoded.get(name)) and found.rows:
            quarantined, dropped = found.rows - found.filtered - found.documents, found.documents - counts.documents
            fates[name] = (found.rows, found.filtered, quarantined, dropped, counts.documents)
    return fates | {"all": (rows.read, rows.filtered, rows.quarantined, rows.duplicates + rows.excluded, rows.kept)}


def _tokens(figures: VersionFigures) -> Iterator[Section]:
    sample = figures.sample
    if not sample.tokens:
        return
    is_all = sample.num_tokens == figures.total.tokens
    what = "all tokens" if is_all else f"a sample of {counted(sample.num_tokens, 'token')}"
    lead = f"Counted in {what} of {counted(sample.num_shards, 'shard')}. ␣ is a space, ⏎ the end of a line."
    bars = [
        Bar(_token_name(token.text, token.id), token.count, percent_of(token.count, sample.num_tokens))
        for token in sample.tokens
    ]
    third = -(-len(bars) // 3)
    top = bars[0].value
    charts = [
        bars_of(f"{start + 1} to {start + len(part)}", "share of the tokens counted, and the id", part, top)
        for start in range(0, len(bars), third)
        if (part := bars[start : start + third])
    ]
    yield Section("tokens", "Most frequent tokens", lead, charts)


def _token_name(text: str | None, token_id: int) -> str:
    if text is None:
        return f"id {token_id}"
    if "\ufffd" in text:
        return f"part of a letter · {token_id}"
    shown = inert(text).replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")
    return f"{shown} · {token_id}"


def _documents(figures: VersionFigures) -> Iterator[Section]:
    if figures.documents:
        lead = (
            f"{counted(len(figures.documents), 'document')}, chosen by hash and the same each time. Neighbours in a "
            "shard come from anywhere in the input: that is the shuffle."
        )
        yield Section("documents", "Documents", lead, documents=figures.documents)
