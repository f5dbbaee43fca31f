"""What the commands share that show or move tags, or change what a store holds."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from tokenloom.cli.output import Output
from tokenloom.cli.results import JsonResult
from tokenloom.console import print_status
from tokenloom.errors import SpecError
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.references import Reference, names_version, parse_reference
from tokenloom.storage.versions.tags import TagEntry, check_tag


def add_tag_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a tag."""
    parser.add_argument("--tag", default="latest", help="the tag (default: latest)")


def add_move_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a move."""
    parser.add_argument("--reason", metavar="TEXT", help="why the tag moves, for its log")
    parser.add_argument(
        "--allow-tryout",
        action="store_true",
        help="allow latest to name a try-out, a version that was built with --limit",
    )


def tag_of(dataset: str, tag: str) -> Reference:
    """Return the reference of a tag of STORE/DATASET; raises SpecError if the tag stands in it too."""
    check_tag(tag)
    if names_version(dataset):
        raise SpecError(f"{dataset}: name the dataset without @; --tag names the tag")
    return parse_reference(f"{dataset.rstrip('/')}@{tag}")


def shown_move(out: Output, store: Store, tag: str, seen: TagEntry | None, entry: TagEntry) -> JsonResult:
    """Print what a move did; return the newest entry, and whether the tag moved.

    Args:
        out: prints it.
        store: the dataset's store.
        tag: its name.
        seen: its newest entry before the move, None if there was none.
        entry: its newest entry after the move.
    """
    moved, reference = entry != seen, f"{store.root}@{entry.version}"
    if moved:
        out.line(f"{tag} now names {reference} (before: {entry.previous or 'nothing'})")
        refresh_catalogue(store)
    else:
        out.line(f"{tag} already names {reference}; nothing was moved")
    return JsonResult({"reference": reference, "tag": tag, "moved": moved, **asdict(entry)})


def refresh_catalogue(store: Store) -> None:
    """Write the catalogue of a dataset's store again; if that fails, say so on stderr and go on."""
    from tokenloom.tasks.report.catalogue import try_to_write_catalogue

    if problem := try_to_write_catalogue(store):
        print_status(problem)
