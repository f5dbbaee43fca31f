"""`tokenloom rollback`: let a tag name the version again that it named before."""

from __future__ import annotations

import argparse

from tokenloom.cli.argument_types import add_dataset
from tokenloom.cli.output import Output
from tokenloom.cli.results import JsonResult
from tokenloom.cli.tag_moves import add_move_options, add_tag_option, shown_move, tag_of
from tokenloom.errors import StoreError
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import is_published, load_manifest
from tokenloom.storage.versions.references import Reference, dataset_store, resolve, why_missing
from tokenloom.storage.versions.tags import LATEST, TagEntry, log, move_by_hand, version_before


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_dataset(parser)
    add_tag_option(parser)
    parser.add_argument(
        "--to", metavar="VERSION", help="the version to name (default: the one that the tag named before)"
    )
    add_move_options(parser)


def run(dataset: str, tag: str, to: str | None, reason: str | None, allow_tryout: bool, out: Output) -> JsonResult:
    """Let a tag name an earlier version.

    Args:
        dataset: STORE/DATASET.
        tag: its name.
        to: the version, or a tag that names it; None for the one that the tag named before.
        reason: why, for the log.
        allow_tryout: let `latest` name a try-out.
        out: prints the result.

    Raises as move_by_hand, and StoreError if there is no such tag or no earlier version.
    """
    reference = tag_of(dataset, tag)
    store = dataset_store(reference.store, reference.dataset)
    entries = log(store, tag)
    if not entries:
        raise StoreError(why_missing(store, reference))
    manifest = resolve(reference._replace(name=to))[1] if to else _earlier(store, reference, entries)
    entry = move_by_hand(
        store, tag, manifest, entries[-1], "rollback" if reason is None else reason, allow_tryout=allow_tryout
    )
    result = shown_move(out, store, tag, entries[-1], entry)
    if entry != entries[-1]:
        if tag == LATEST:
            out.line("a build that finds nothing new leaves it there; one with new data moves it")
        out.line(f"undo: tokenloom tag {store.root}@{entry.previous} {tag}")
    return result


def _earlier(store: Store, reference: Reference, entries: list[TagEntry]) -> Manifest:
    version = version_before(entries)
    if version is None:
        raise StoreError(
            f"{reference}: there is no earlier version to go back to; `tokenloom ls {store.root}` lists the versions, "
            "and --to names one"
        )
    if not is_published(store, version):
        raise StoreError(
            f"{reference}: it named {version} before, which is no longer published; `tokenloom ls {store.root}` lists "
            "the versions, and --to names one"
        )
    return load_manifest(store, version)
