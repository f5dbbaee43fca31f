"""`tokenloom gc`: retire and delete versions that no rule keeps, and leftovers of builds."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from tokenloom.cli.argument_types import add_dataset, add_policy
from tokenloom.cli.output import Output
from tokenloom.cli.results import Json, Result
from tokenloom.cli.tag_moves import refresh_catalogue
from tokenloom.errors import SpecError
from tokenloom.storage.versions.references import parse_dataset
from tokenloom.tasks.retention.collect import Collected, collect, collection_line
from tokenloom.tasks.retention.policy import Policy
from tokenloom.wording import counted, shown_bytes


@dataclass(frozen=True)
class CollectResult(Result):
    """What a run of gc did, or with `--dry-run` would do."""

    collected: Collected

    def to_json(self) -> Json:
        """Return the object that `--json` prints."""
        return self.collected.to_json()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_dataset(parser)
    add_policy(parser)
    parser.add_argument("--dry-run", action="store_true", help="change nothing; show what a run would do")


def run(
    dataset: str,
    keep_last: int | None,
    keep_days: float | None,
    grace: float,
    keep_work: float,
    dry_run: bool,
    out: Output,
) -> CollectResult:
    """Retire and delete versions of a dataset, and delete leftovers.

    Args:
        dataset: STORE/DATASET.
        keep_last: keep this many of the versions published last; None: no such rule.
        keep_days: keep versions for this many days; None: no such rule.
        grace: how long a version stays retired, in seconds.
        keep_work: how long work files stay that no version uses, in seconds.
        dry_run: change nothing.
        out: prints the result.

    Raises:
        SpecError: neither `keep_last` nor `keep_days` is given, or `dataset` names a version too.
        StoreError: there is no such dataset, or the store can't be read or written.
        FormatError: a tag is damaged, so nothing was deleted.
    """
    if keep_last is None and keep_days is None:
        raise SpecError(
            "gc needs a rule, as without one it would delete every version that has no tag: give --keep-last N, "
            "--keep-days DAYS or both, such as --keep-last 3 --keep-days 30"
        )
    store = parse_dataset(dataset)
    found = collect(store, Policy(keep_last, keep_days, grace, keep_work), dry_run=dry_run)
    _print(out, found)
    if found.deleted and not dry_run:
        refresh_catalogue(store)
    return CollectResult(found)


def _print(out: Output, found: Collected) -> None:
    rows = found.rows()
    if rows:
        out.table(["version", "", "why"], [[version, done, why] for version, done, why in rows])
    for each in found.leftovers:
        out.line(f"  {each.kind}: {counted(len(each.paths), 'file')}, {shown_bytes(each.bytes)}")
    out.line(collection_line(found))
