"""`tokenloom tag`: let a tag name a version."""

from __future__ import annotations

import argparse

from tokenloom.cli.argument_types import add_reference
from tokenloom.cli.output import Output
from tokenloom.cli.results import JsonResult
from tokenloom.cli.tag_moves import add_move_options, shown_move
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.storage.versions.tags import check_tag, move_by_hand, newest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_reference(parser)
    parser.add_argument("tag", metavar="TAG", help="the tag that will name the version; created if there is none")
    add_move_options(parser)


def run(reference: str, tag: str, reason: str | None, allow_tryout: bool, out: Output) -> JsonResult:
    """Let a tag name a version.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION.
        tag: its name.
        reason: why, for the log.
        allow_tryout: let `latest` name a try-out.
        out: prints the result.

    Raises as move_by_hand, and StoreError if the version does not exist.
    """
    check_tag(tag)
    store, manifest = resolve(parse_reference(reference))
    seen = newest(store, tag)
    entry = move_by_hand(store, tag, manifest, seen, "tag" if reason is None else reason, allow_tryout=allow_tryout)
    return shown_move(out, store, tag, seen, entry)
