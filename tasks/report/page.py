"""The report of a version as one page of HTML, which report.html writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.statistics import DocumentCounts
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import report_path
from tokenloom.tasks.publishing.outcome import reading_lines
from tokenloom.tasks.report.charts import histograms
from tokenloom.tasks.report.collect import collect_figures
from tokenloom.tasks.report.figures import (
    QUANTILES,
    VersionFigures,
    bytes_per_token,
    counts_of_sources,
    counts_of_splits,
    length_quantiles,
    tokens_by_length,
    total_of,
    unlike_shares,
)
from tokenloom.tasks.report.parts import Page, Section
from tokenloom.tasks.report.wording import megabytes, percent_of, quantile_name, short, token_name
from tokenloom.tasks.running.progress import STEPS, step_label
from tokenloom.wording import counted, described_tokenizer, shown_time

_MAX_PAGE_BYTES = 10**6
_MAX_ROWS = (1000, 400, 100, 10)  # a table is cut to the first of these with which the page fits


def make_report(store: Store, manifest: Manifest) -> bytes:
    """Return the page of a version's report as UTF-8; see collect_figures for errors."""
    return render_page(collect_figures(store, manifest)).encode()


def write_report(store: Store, version: str, page: bytes) -> str:
    """Write the report of a version into its store, and return its place: a local path or a URL."""
    store.replace(report_path(version), page, durable=False)
    return store.place(report_path(version))


def render_page(figures: VersionFigures) -> str:
    """Return the page, of at most 1 MB; the same figures give the same text."""
    manifest, values = figures.facts.manifest, _values(figures)
    page = Page(
        title=f"{manifest.dataset} {manifest.version}: tokenloom report",
        kind="report",
        heading=manifest.dataset,
        version=manifest.version,
        facts=_facts(figures),
        tiles=_tiles(figures),
        reading=reading_lines(figures.facts.reference),
        notes=figures.notes,
        sections=[Section(key, title) for key, title, is_there in _contents(figures, values) if is_there],
        footer="Made by `tokenloom report` from the store alone: manifest, build.json, document tables and a sample of "
        "the shards.",
    )
    pages = (page.render(max_rows, "report.html", **values) for max_rows in _MAX_ROWS)
    return next(text for text in pages if len(text.encode()) <= _MAX_PAGE_BYTES)


def _contents(figures: VersionFigures, values: Mapping[str, Any]) -> list[tuple[str, str, object]]:
    """Return the sections of report.html: key, title, and whether there is one."""
    return [
        ("checks", "Checks", values["gates"]),
        ("sources", "Sources", figures.statistics),
        ("splits", "Splits", True),
        ("lengths", "Lengths", values["lengths"]),
        ("conversations", "Conversations", values["chats"]),
        ("rows", "Rows", True),
        ("tokens", "Most frequent tokens", values["frequent"]),
        ("documents", "Documents", figures.documents),
        ("difference", "Since the previous version", True),
        ("steps", "How it was built", values["steps"]),
    ]


def _values(figures: VersionFigures) -> dict[str, Any]:
    """Return what report.html shows beside the figures themselves; bars are (name, value, text)."""
    facts, build, total, sample = figures.facts, figures.facts.build, figures.total, figures.sample
    seconds = {step: time for step, time in (build.seconds if build else {}).items() if 0 <= time < 1e9}
    read = facts.manifest.rows.read
    left = {name: count for name, count in facts.manifest.row_counts.items() if name not in ("read", "kept") and count}
    rates = {name: bytes_per_token(figures.encoded.get(name)) for name in figures.sources}
    roles = facts.conversations.tokens if facts.conversations else {}
    return {
        "it": figures,
        "manifest": facts.manifest,
        "gates": [(gate.name, gate) for gate in facts.recorded_gates],
        "num_files": Counter(entry.source for entry in figures.inputs),
        "rates": {name: rate for name, rate in rates.items() if rate is not None},
        "unlike": unlike_shares(figures.splits),
        "shares": _shares,
        "lengths": _lengths(figures),
        "chats": facts.conversations,
        "roles": [(role.replace("_", " "), count, _part(count, total.tokens)) for role, count in roles.items()],
        "num_pruned": build.measured.get("rows_not_read") if build else None,
        "num_left": sum(left.values()),
        "left_out": [(name, count, f"{count:,} ({percent_of(count, read)})") for name, count in left.items()],
        "kept": [
            (name, found[-1] / found[0], percent_of(found[-1], found[0]))
            for name, found in figures.fates.items()
            if found[0]
        ],
        "quarantined": sorted(facts.quarantined.items()),
        "frequent": [
            (token_name(token.text, token.id), token.count, percent_of(token.count, sample.num_tokens))
            for token in sample.tokens
        ],
        "history": [(name, tokens, short(tokens)) for name, tokens in figures.history.items()],
        "before": _before(figures),
        "paired": _paired,
        "steps": seconds if sum(seconds.values()) else {},
        "labelled": _labelled,
        "step_bytes": {"tokenize": sum(entry.bytes for entry in figures.inputs), "shuffle": facts.manifest.shard_bytes},
    }


def _part(count: int, whole: int) -> str:
    return f"{short(count)} ({percent_of(count, whole)})"


def _shares(counts: Mapping[str, DocumentCounts], what: str) -> list[tuple[str, int, str]]:
    """Return bars of the documents or tokens of each source or split, the largest first."""
    values = {name: getattr(each, what) for name, each in counts.items()}
    largest = sorted(values.items(), key=lambda item: (-item[1], item[0]))
    return [(name, count, _part(count, sum(values.values()))) for name, count in largest]


def _lengths(figures: VersionFigures) -> dict[str, Any] | None:
    if not any(figures.lengths):
        return None
    documents, tokens = figures.lengths, tokens_by_length(figures.lengths)
    mean = f"{figures.total.tokens / figures.total.documents:,.1f}"
    return {
        "drawings": [histograms(documents), histograms(tokens)],
        "names": [quantile_name(share) for share in QUANTILES],
        "quantiles": [
            ("length of a document", [*(f"{value:,.0f}" for value in length_quantiles(documents)), mean]),
            ("length of the document of a token", [*(f"{value:,.0f}" for value in length_quantiles(tokens)), "-"]),
        ],
    }


def _before(figures: VersionFigures) -> dict[str, Any] | None:
    """Return the counts of the previous version; None if there was none, or it is gone."""
    if figures.previous is None:
        return None
    splits = counts_of_splits(figures.previous.manifest)
    return {"splits": splits, "sources": counts_of_sources(figures.previous), "total": total_of(splits.values())}


def _paired(
    now: Mapping[str, DocumentCounts], before: Mapping[str, DocumentCounts]
) -> list[tuple[str, tuple[DocumentCounts, DocumentCounts]]]:
    none = DocumentCounts(0, 0)
    return [(name, (now.get(name, none), before.get(name, none))) for name in dict.fromkeys([*now, *before])]


def _labelled(steps: Collection[str]) -> list[tuple[str, str]]:
    """Return the label and the name of each step, in the order of a build."""
    order = sorted(steps, key=lambda step: list(STEPS).index(step) if step in STEPS else len(STEPS))
    return [(step_label(step), step) for step in order]


def _facts(figures: VersionFigures) -> list[str]:
    build, facts = figures.facts.build, []
    if build:
        facts.append(f"published {shown_time(build.at)} UTC")
    facts.append(f"tagged {', '.join(figures.tags)}" if figures.tags else "no tag names it now")
    if build and not build.gates:
        facts.append("no checks set")
    return [*facts, f"tokenizer {described_tokenizer(figures.facts.tokenizer)}"]


def _tiles(figures: VersionFigures) -> list[tuple[str, str, str]]:
    """Return the figures at the top: name, value, and the value exactly or what it is part of."""
    total, manifest, rows = figures.total, figures.facts.manifest, figures.facts.manifest.rows
    rate = bytes_per_token(figures.all_encoded)
    tiles = [
        ("Tokens", short(total.tokens), f"{total.tokens:,}"),
        ("Documents", short(total.documents), f"{total.documents:,}"),
        ("Sources", f"{len(figures.sources):,}", counted(len(figures.inputs), "file")),
        ("Shards", f"{len(manifest.shards):,}", megabytes(manifest.shard_bytes)),
        ("Duplicates", percent_of(rows.duplicates, rows.read), f"{rows.duplicates:,} of {counted(rows.read, 'row')}"),
    ]
    if rate is not None:
        tiles.insert(2, ("Bytes per token", f"{rate:.2f}", "of UTF-8 text"))
    return tiles
