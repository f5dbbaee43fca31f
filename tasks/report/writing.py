"""Make the report of a version, and keep it in the store beside the versions."""

from __future__ import annotations

from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import report_path
from tokenloom.tasks.report.collect import collect_figures
from tokenloom.tasks.report.page import render_page


def make_report(store: Store, manifest: Manifest) -> bytes:
    """Return the page of a version's report as UTF-8; see collect_figures for errors."""
    return render_page(collect_figures(store, manifest)).encode()


def write_report(store: Store, version: str, page: bytes) -> str:
    """Write the report of a version into its store, and return its place: a local path or a URL."""
    store.replace(report_path(version), page, durable=False)
    return store.place(report_path(version))
