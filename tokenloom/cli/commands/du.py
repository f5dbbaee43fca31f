"""`tokenloom du`: what uses the space of a store or a dataset."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from tokenloom.cli.argument_types import add_policy, add_store
from tokenloom.cli.output import Output
from tokenloom.cli.results import JsonResult
from tokenloom.errors import StoreError
from tokenloom.storage.formats.names import NAME_PATTERN
from tokenloom.storage.stores import Store, open_store
from tokenloom.storage.versions.published import is_dataset
from tokenloom.storage.versions.references import dataset_store, nearest_names
from tokenloom.tasks.retention import DatasetUsage, Policy, measure
from tokenloom.wording import shown_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_store(parser)
    add_policy(parser)


def run(store: str, keep_last: int, grace: float, out: Output) -> JsonResult:
    """Show what uses the space of each dataset, and what `tokenloom gc` with these options would free.

    Args:
        store: STORE or STORE/DATASET.
        keep_last: as in gc.
        grace: as in gc.
        out: prints the result.

    Raises:
        StoreError: there is no such store, or it can't be read.
    """
    folder = open_store(store)
    datasets = [measure(each, Policy(keep_last, grace)) for each in _datasets(store, folder)]
    for usage in datasets:
        _print(out, usage)
    return JsonResult({"store": str(folder.root), "datasets": [asdict(usage) for usage in datasets]})


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
    states = {True: "published", False: "unfinished"}
    rows = [
        [each.version, states[each.published], each.files, shown_bytes(each.bytes).rjust(12), ", ".join(each.tags)]
        for each in usage.versions
    ]
    if rows:
        out.table(["version", "state", "files", "size", "tags"], rows)
    for part, num_bytes in usage.parts.items():
        if num_bytes and part != "versions":
            out.line(f"  {part:<12} {shown_bytes(num_bytes)}")
    damage = usage.damage and f"gc would stop: {usage.damage}"
    out.line(f"  {damage or f'gc would free {shown_bytes(usage.gc_frees)} now'}")
