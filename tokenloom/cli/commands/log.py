"""`tokenloom log`: which versions a tag named, since when, who moved it and why."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from tokenloom.cli.argument_types import add_dataset
from tokenloom.cli.output import Output
from tokenloom.cli.results import JsonResult
from tokenloom.cli.tag_moves import add_tag_option, tag_of
from tokenloom.errors import StoreError
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import is_published
from tokenloom.storage.versions.references import dataset_store, why_missing
from tokenloom.wording import shown_time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_dataset(parser)
    add_tag_option(parser)


def run(dataset: str, tag: str, out: Output) -> JsonResult:
    """Show the moves of a tag, newest first; `published` in the result says whether a version still exists.

    Args:
        dataset: STORE/DATASET.
        tag: its name.
        out: prints the result.

    Raises StoreError if the dataset or tag does not exist, or the store can't be read.
    """
    reference = tag_of(dataset, tag)
    store = dataset_store(reference.store, reference.dataset)
    moves, problems = tags.read_log(store, tag)
    if not moves and not problems:
        raise StoreError(why_missing(store, reference))
    moves.reverse()
    published = {version: is_published(store, version) for version in {move.version for move in moves}}
    named = {version: version if published[version] else f"{version} (gone)" for version in published}
    rows = [[move.number, shown_time(move.at), named[move.version], move.by, move.reason] for move in moves]
    out.table(["move", "at (UTC)", "version", "by", "reason"], rows)
    damages = [str(problem) for problem in problems.values()]
    for damage in damages:
        out.line(f"damaged: {damage}")
    entries = [asdict(move) | {"published": published[move.version]} for move in moves]
    return JsonResult({"dataset": reference.dataset, "tag": tag, "entries": entries, "damages": damages})
