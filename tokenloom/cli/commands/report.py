"""`tokenloom report`: write a page with the figures of a version, or the catalogue of a store."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.cli.tag_moves import refresh_catalogue
from tokenloom.storage.stores import Store, open_store
from tokenloom.storage.versions.published import is_dataset
from tokenloom.storage.versions.references import datasets_in, names_version, parse_reference, resolve
from tokenloom.wording import counted


@dataclass(frozen=True)
class ReportResult(Result):
    """Where the page of a version is, and its length."""

    reference: str
    version: str
    report: str
    bytes: int


@dataclass(frozen=True)
class CatalogueResult(Result):
    """Where the catalogue of a store is, and its length."""

    store: str
    catalogue: str
    bytes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "reference",
        metavar="REF|STORE",
        help="a version: STORE/DATASET@TAG_OR_VERSION (default: @latest); or a store, for its catalogue",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="where to write the page (default: reports/VERSION.html in the dataset's folder of the store; for a "
        "catalogue, index.html in the store)",
    )


def run(reference: str, output: Path | None, out: Output) -> ReportResult | CatalogueResult:
    """Write the report of a version, or the catalogue of a store: into the store, or into a file."""
    if (folder := _store_of(reference)) is not None:
        return _write_catalogue(reference, folder, output, out)
    from tokenloom.tasks.report.page import make_report, write_report

    store, manifest = resolve(parse_reference(reference))
    page = make_report(store, manifest)
    if output is None:
        place = write_report(store, manifest.version, page)
        refresh_catalogue(store)
    else:
        output.write_bytes(page)
        place = str(output)
    out.line(f"{place}  {counted(len(page), 'byte')}")
    return ReportResult(f"{store.root}@{manifest.version}", manifest.version, place, len(page))


def _store_of(text: str) -> Store | None:
    """Return the store that `text` names; None if it names a version or a dataset."""
    if names_version(text):
        return None
    folder = open_store(text)
    return folder if not is_dataset(folder) and datasets_in(folder) else None


def _write_catalogue(root: str, folder: Store, output: Path | None, out: Output) -> CatalogueResult:
    from tokenloom.tasks.report.catalogue import render_catalogue, write_catalogue

    if output is None:
        place, num_bytes = write_catalogue(root)
    else:
        place, num_bytes = str(output), output.write_bytes(render_catalogue(root, folder).encode())
    out.line(f"{place}  {counted(num_bytes, 'byte')}")
    return CatalogueResult(str(folder.root), place, num_bytes)
