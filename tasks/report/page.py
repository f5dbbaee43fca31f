"""The report of a version as one page of HTML, which report.html writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.statistics import DocumentCounts, EncodedCounts, added, bin_edges
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import report_path
from tokenloom.tasks.building.outcome import reading_lines
from tokenloom.tasks.building.version_facts import VersionFacts
from tokenloom.tasks.report.figures import VersionFigures, collect_figures, counts_of_splits, unlike_shares
from tokenloom.tasks.report.templates import parts, percent_of, render, token_name
from tokenloom.tasks.running.progress import STEPS, step_label

QUANTILES = {"p1": 0.01, "p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99}


def make_report(store: Store, manifest: Manifest) -> bytes:
    """Make the page of a version's report as UTF-8; see collect_figures for errors."""
    return render_page(collect_figures(store, manifest)).encode()


def write_report(store: Store, version: str, page: bytes) -> str:
    """Write the report of a version into its store, and return its local path or URL."""
    store.replace(report_path(version), page, durable=False)
    return store.place(report_path(version))


def render_page(figures: VersionFigures) -> str:
    """Render the page; the same figures give the same text."""
    return render("report.html", **_values(figures))


def _values(figures: VersionFigures) -> dict[str, Any]:
    """Derive the values of report.html from the figures."""
    facts = figures.facts
    sample = figures.sample
    rates = {name: _bytes_per_token(figures.encoded.get(name)) for name in figures.sources}
    roles = facts.conversations.tokens if facts.conversations else {}
    return {
        "it": figures,
        "manifest": facts.manifest,
        "build": facts.build,
        "reading": reading_lines(facts.reference),
        "gates": {gate.name: gate for gate in facts.recorded_gates},
        "num_files": Counter(entry.source for entry in figures.inputs),
        "rate": _bytes_per_token(added(figures.encoded.values(), None)),
        "rates": {name: rate for name, rate in rates.items() if rate is not None},
        "unlike": unlike_shares(figures.splits),
        "lengths": _lengths(figures),
        "chats": facts.conversations,
        "roles": {role.replace("_", " "): count for role, count in roles.items()},
        "left_out": {
            name: count
            for name, count in facts.manifest.row_counts.items()
            if count and name not in ("read", "kept", "copies")
        },
        "kept": [
            (name, kept / read, percent_of(kept, read)) for name, (read, *_, kept) in figures.fates.items() if read
        ],
        "frequent": parts({token_name(text, i): count for i, text, count in sample.tokens}, sample.num_tokens),
        "before": _before(figures.previous),
        "nothing": DocumentCounts(0, 0),
        "steps": _steps(figures),
    }


def _bytes_per_token(counts: EncodedCounts | None) -> float | None:
    return counts.bytes / counts.tokens if counts and counts.bytes and counts.tokens else None


def _lengths(figures: VersionFigures) -> dict[str, Any] | None:
    if not any(figures.lengths):
        return None
    documents = figures.lengths
    tokens = tokens_by_length(figures.lengths)
    mean = f"{figures.total.tokens / figures.total.documents:,.1f}"
    return {
        "documents": parts(by_doubling(documents), sum(documents)),
        "tokens": parts(by_doubling(tokens), sum(tokens)),
        "names": list(QUANTILES),
        "quantiles": {
            "length of a document": [*(f"{value:,.0f}" for value in length_quantiles(documents)), mean],
            "length of the document of a token": [*(f"{value:,.0f}" for value in length_quantiles(tokens)), "-"],
        },
    }


def _before(facts: VersionFacts | None) -> dict[str, Any] | None:
    """Count the previous version; None if there was none, or it is gone."""
    if facts is None:
        return None
    statistics = facts.build.statistics if facts.build else None
    sources = added((one.sources for one in statistics.values()), None) if statistics else None
    return {"splits": counts_of_splits(facts.manifest), "sources": sources}


def _steps(figures: VersionFigures) -> dict[str, tuple[str, float, int | None]]:
    """List each timed step with its meaning, seconds and bytes, in the order of a build."""
    build = figures.facts.build
    seconds = {step: time for step, time in (build.seconds if build else {}).items() if 0 <= time < 1e9}
    if not sum(seconds.values()):
        return {}
    num_bytes = {
        "tokenize": sum(entry.bytes for entry in figures.inputs),
        "shuffle": figures.facts.manifest.shard_bytes,
    }
    order = [step for step in [*STEPS, *seconds] if step in seconds]
    return {step_label(step): (STEPS.get(step, ""), seconds[step], num_bytes.get(step)) for step in order}


def tokens_by_length(lengths: Sequence[int]) -> list[float]:
    """Estimate the tokens of the documents in each bin of a histogram, as if their lengths were spread evenly in it."""
    edges = bin_edges(len(lengths))
    tokens: list[float] = (np.asarray(lengths) * (edges[:-1] + edges[1:] - 1) / 2).tolist()
    return tokens


def length_quantiles(lengths: Sequence[float]) -> list[float]:
    """Find the QUANTILES of a histogram of lengths, each right to within its bin.

    Args:
        lengths: (num_bins,) documents, or tokens, by bin, see statistics.py; not all 0.
    """
    counts = np.asarray(lengths, np.float64)
    edges = bin_edges(len(lengths))
    ends = np.cumsum(counts)
    ranks = np.array([*QUANTILES.values()]) * ends[-1]
    bins = np.searchsorted(ends, ranks)
    inside = (ranks - (ends - counts)[bins]) / counts[bins]  # lengths are taken to be spread evenly in a bin
    found: list[float] = (edges[bins] + inside * (edges[bins + 1] - 1 - edges[bins])).tolist()
    return found


def by_doubling(lengths: Sequence[float]) -> dict[str, float]:
    """Sum a histogram of lengths in doublings, from the first to the last that is not empty: {"16–31": count}.

    Args:
        lengths: (num_bins,) documents, or tokens, by bin, see statistics.py; not all 0.
    """
    powers = np.log2(np.maximum(1, bin_edges(len(lengths))[:-1])).astype(np.int64)
    counts = np.bincount(powers, lengths).tolist()
    filled = np.flatnonzero(counts)
    return {f"{2**k:,}–{2 ** (k + 1) - 1:,}": counts[k] for k in range(filled[0], filled[-1] + 1)}
