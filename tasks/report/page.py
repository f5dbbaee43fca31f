"""The report of a version as one page of HTML."""

from __future__ import annotations

from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import report_path
from tokenloom.tasks.publishing.outcome import reading_lines
from tokenloom.tasks.report.collect import collect_figures
from tokenloom.tasks.report.figures import VersionFigures
from tokenloom.tasks.report.parts import Page
from tokenloom.tasks.report.sections import bytes_per_token, report_sections
from tokenloom.tasks.report.wording import megabytes, percent_of, short
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
    manifest = figures.facts.manifest
    page = Page(
        title=f"{manifest.dataset} {manifest.version}: tokenloom report",
        kind="report",
        heading=manifest.dataset,
        version=manifest.version,
        facts=_facts(figures),
        tiles=_tiles(figures),
        reading=reading_lines(figures.facts.reference),
        notes=figures.notes,
        sections=list(report_sections(figures)),
        footer="Made by `tokenloom report` from the store alone: manifest, build.json, document tables and a sample of "
        "the shards.",
    )
    pages = map(page.render, _MAX_ROWS)
    return next(text for text in pages if len(text.encode()) <= _MAX_PAGE_BYTES)


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
