"""`tokenloom du`: what uses the space of a store or a dataset."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from tokenloom.cli.argument_types import add_policy, add_store
from tokenloom.cli.output import Output
from tokenloom.cli.results import Result
from tokenloom.errors import StoreError
from tokenloom.storage.formats.names import NAME_PATTERN
from tokenloom.storage.stores import Store, open_store
from tokenloom.storage.versions.published import is_dataset
from tokenloom.storage.versions.references import dataset_store, nearest_names
from tokenloom.tasks.retention.policy import Policy
from tokenloom.tasks.retention.usage import DatasetUsage, measure
from tokenloom.wording import counted, shown_bytes

_KEEP_LAST, _KEEP_DAYS = 3, 30.0


@dataclass(frozen=True)
class UsageResult(Result):
    """What uses the space of each dataset, in bytes."""

    store: str
    datasets: list[DatasetUsage]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_store(parser)
    add_policy(parser)


def run(
    store: str, keep_last: int | None, keep_days: float | None, grace: float, keep_work: float, out: Output
) -> UsageResult:
    """Show what uses the space of each dataset, and what `tokenloom gc` with these options would free.

    Args:
        store: STORE or STORE/DATASET.
        keep_last: as in gc; 3 if neither rule is given.
        keep_days: as in gc; 30 if neither rule is given.
        grace: as in gc.
        keep_work: as in gc.
        out: prints the result.

    Raises:
        StoreError: there is no such store, or it can't be read.
    """
    folder = open_store(store)
    if keep_last is None and keep_days is None:
        keep_last, keep_days = _KEEP_LAST, _KEEP_DAYS
    policy = Policy(keep_last, keep_days, grace, keep_work)
    datasets = [measure(each, policy) for each in _datasets(store, folder)]
    for usage in datasets:
        _print(out, usage)
    return UsageResult(str(folder.root), datasets)


def _datasets(store: str, folder: Store) -> list[Store]:
    if is_dataset(folder):
        return [folder]
    found = [dataset_store(store, name) for name in sorted(filter(NAME_PATTERN.match, folder.names("")))]
    found = [each for each in found if is_dataset(each)]
    if not found:
        raise StoreError(f"{store}: no such store or dataset; a build creates it{nearest_names(folder)}")
    return found


def _print(out: Output, usage: DatasetUsage) -> None:
    out.line(f"{usage.dataset}: {shown_bytes(usage.bytes)}")
    rows = [
        [each.version, each.state, each.files, shown_bytes(each.bytes).rjust(12), ", ".join(each.tags + each.leases)]
        for each in usage.versions
    ]
    if rows:
        out.table(["version", "state", "files", "size", "tags and leases"], rows)
    for name in ("spills", "candidates", "temporaries", "reports", "other"):
        if num_bytes := getattr(usage, name):
            out.line(f"  {name:<12} {shown_bytes(num_bytes)}")
    if usage.damage is not None:
        out.line(f"  gc would stop: {usage.damage}")
        return
    retires = f", and retire {counted(len(usage.gc_retires), 'version')}" if usage.gc_retires else ""
    out.line(f"  gc would free {shown_bytes(usage.gc_frees)} now{retires}")
