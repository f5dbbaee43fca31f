"""`tokenloom log`: which versions a tag named, since when, who moved it and why."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass

from tokenloom.cli.argument_types import add_dataset
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.cli.tag_moves import add_tag_option, tag_of
from tokenloom.errors import StoreError
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import is_published
from tokenloom.storage.versions.references import dataset_store, why_missing
from tokenloom.wording import shown_time


@dataclass(frozen=True)
class LogEntry:
    """A move of a tag; `published` says whether the version still exists."""

    number: int
    at: str
    by: str
    version: str
    previous: str | None
    reason: str
    published: bool


@dataclass(frozen=True)
class LogResult(Result):
    """The moves of a tag, newest first, and the damages of its log."""

    dataset: str
    tag: str
    entries: list[LogEntry]
    damages: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_dataset(parser)
    add_tag_option(parser)


def run(dataset: str, tag: str, out: Output) -> LogResult:
    """Show the moves of a tag, newest first.

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
    published = {version: is_published(store, version) for version in {move.version for move in moves}}
    entries = [LogEntry(**asdict(move), published=published[move.version]) for move in reversed(moves)]
    rows = [[entry.number, shown_time(entry.at), _version(entry), entry.by, entry.reason] for entry in entries]
    out.table(["move", "at (UTC)", "version", "by", "reason"], rows)
    damages = [str(problem) for problem in problems.values()]
    for damage in damages:
        out.line(f"damaged: {damage}")
    return LogResult(reference.dataset, tag, entries, damages)


def _version(entry: LogEntry) -> str:
    return entry.version if entry.published else f"{entry.version} (gone)"
