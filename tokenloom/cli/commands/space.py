"""`tokenloom du` and `gc`: what uses the space of a store, and the deletion of what nothing keeps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from tokenloom.cli.arguments import Argument, Dataset, StoreOrDataset, integer_in
from tokenloom.cli.commands.report import refresh_catalogue
from tokenloom.cli.output import Output, Result
from tokenloom.errors import StoreError
from tokenloom.storage.formats.names import NAME_PATTERN
from tokenloom.storage.stores import Store, open_store
from tokenloom.storage.versions.published import is_dataset
from tokenloom.storage.versions.references import dataset_store, nearest_names, parse_dataset
from tokenloom.tasks.retention import DatasetUsage, Policy, collect, measure
from tokenloom.wording import counted, seconds_of, shown_bytes

_DAY = 86400.0
_KeepLast = Annotated[int, Argument("N", integer_in(0, 10**6), "keep the N versions that were published last")]
_Grace = Annotated[
    float,
    Argument("TIME", seconds_of, "keep what was written less than this time ago: 12h, 30m, 14d (default: 14d)"),
]


def du(store: StoreOrDataset, *, keep_last: _KeepLast = 3, grace: _Grace = 14 * _DAY, out: Output) -> Result:
    """Show what uses the space of each dataset, and what `tokenloom gc` with these options would free."""
    folder = open_store(store)
    datasets = [measure(each, Policy(keep_last, grace)) for each in _datasets(store, folder)]
    for usage in datasets:
        _print(out, usage)
    return Result({"store": str(folder.root), "datasets": [asdict(usage) for usage in datasets]})


def gc(
    dataset: Dataset, *, keep_last: _KeepLast = 3, grace: _Grace = 14 * _DAY, delete: bool = False, out: Output
) -> Result:
    """Delete versions of a dataset that nothing keeps, and leftovers.

    Args:
        delete: delete; without it, show what a run would delete
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
    return Result(found.to_json())


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
