"""`tokenloom gc`: delete versions that no tag and no rule keeps, and leftovers of builds."""

from __future__ import annotations

import argparse

from tokenloom.cli.argument_types import add_dataset, add_policy
from tokenloom.cli.output import Output
from tokenloom.cli.results import JsonResult
from tokenloom.cli.tag_moves import refresh_catalogue
from tokenloom.storage.versions.references import parse_dataset
from tokenloom.tasks.retention import Policy, collect
from tokenloom.wording import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_dataset(parser)
    add_policy(parser)
    parser.add_argument("--delete", action="store_true", help="delete; without it, show what a run would delete")


def run(dataset: str, keep_last: int, grace: float, delete: bool, out: Output) -> JsonResult:
    """Delete versions of a dataset that nothing keeps, and leftovers.

    Args:
        dataset: STORE/DATASET.
        keep_last: keep this many of the versions published last.
        grace: keep what was written less than so many seconds ago.
        delete: False to change nothing.
        out: prints the result.

    Raises:
        SpecError: `dataset` names a version too.
        StoreError: there is no such dataset, or the store can't be read or written.
        FormatError: a tag is damaged, so nothing was deleted.
    """
    store = parse_dataset(dataset)
    found = collect(store, Policy(keep_last, grace), delete=delete)
    if rows := found.rows():
        out.table(["version", "", "why"], rows)
    for kind, num_files in found.leftovers.items():
        out.line(f"  {kind}: {found.verb} {counted(num_files, 'file')}")
    out.line(found.line())
    if not delete and found.bytes:
        out.line("nothing was deleted; add --delete to do it")
    if found.deleted and delete:
        refresh_catalogue(store)
    return JsonResult(found.to_json())
