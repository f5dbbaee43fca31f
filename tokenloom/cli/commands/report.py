"""`tokenloom report`: write a page with the figures of a version."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from tokenloom.cli.argument_types import add_reference
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.wording import counted


@dataclass(frozen=True)
class ReportResult(Result):
    """Where the page of a version is, and its length."""

    reference: str
    version: str
    report: str
    bytes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_reference(parser)
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="default: reports/VERSION.html in the dataset's folder of the store"
    )


def run(reference: str, output: Path | None, out: Output) -> ReportResult:
    """Write the report of a version: into the store, or into a file."""
    from tokenloom.tasks.report.writing import make_report, write_report

    store, manifest = resolve(parse_reference(reference))
    page = make_report(store, manifest)
    if output is None:
        place = write_report(store, manifest.version, page)
    else:
        output.write_bytes(page)
        place = str(output)
    out.line(f"{place}  {counted(len(page), 'byte')}")
    return ReportResult(f"{store.root}@{manifest.version}", manifest.version, place, len(page))
