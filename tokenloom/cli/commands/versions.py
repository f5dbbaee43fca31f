"""`tokenloom tag`, `rollback` and `log` move tags and show their moves; `du` and `gc` show and free space."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from tokenloom.cli.arguments import AllowTryout, Argument, Dataset, Reason, Ref, StoreOrDataset, Tag, integer_in
from tokenloom.cli.commands.look import refresh_catalogue
from tokenloom.cli.output import Output, Result
from tokenloom.errors import SpecError, StoreError
from tokenloom.storage.formats.manifest import NAME_PATTERN, Manifest
from tokenloom.storage.stores import Store, open_store
from tokenloom.storage.versions import tag_moves, tags
from tokenloom.storage.versions.published import is_dataset, is_published, load_manifest
from tokenloom.storage.versions.references import (
    Reference,
    dataset_store,
    names_version,
    parse_dataset,
    parse_reference,
    resolve,
    why_missing,
)
from tokenloom.wording import counted, seconds_of, shown_bytes, shown_time

if TYPE_CHECKING:
    from tokenloom.tasks.retention import DatasetUsage

_DAY = 86400.0
_KeepLast = Annotated[int, Argument("N", integer_in(0, 10**6), "keep the N versions that were published last")]
_Grace = Annotated[
    float,
    Argument("TIME", seconds_of, "keep what was written less than this time ago: 12h, 30m, 14d (default: 14d)"),
]


def tag(
    reference: Ref,
    tag: Annotated[str, Argument("TAG")],
    *,
    reason: Reason = "tag",
    allow_tryout: AllowTryout = False,
    out: Output,
) -> Result:
    """Let a tag name a version.

    Args:
        tag: the tag that will name the version; created if there is none

    Example:
        tag store/news@6f6e75a47b3e9a29 good --reason 'run 12 uses it'
    """
    tag_moves.check_tag(tag)
    store, manifest = resolve(parse_reference(reference))
    before = tags.newest(store, tag)
    entry = tag_moves.move_by_hand(store, tag, manifest, before, reason, allow_tryout=allow_tryout)
    return _moved(out, store, tag, before, entry)


def rollback(
    dataset: Dataset,
    *,
    tag: Tag = "latest",
    to: Annotated[str | None, Argument("VERSION")] = None,
    reason: Reason = "rollback",
    allow_tryout: AllowTryout = False,
    out: Output,
) -> Result:
    """Let a tag name the version again that it named before.

    Args:
        to: the version to name (default: the one that the tag named before)

    Example:
        rollback store/news --reason 'a bad crawl'
    """
    store, reference, entries = _log_of(dataset, tag)
    before = entries[-1]
    manifest = resolve(reference._replace(name=to))[1] if to else _earlier(store, reference, entries)
    entry = tag_moves.move_by_hand(store, tag, manifest, before, reason, allow_tryout=allow_tryout)
    result = _moved(out, store, tag, before, entry)
    if entry != before:
        out.line(f"undo: tokenloom tag {store.root}@{entry.previous} {tag}")
    return result


def log(dataset: Dataset, *, tag: Tag = "latest", out: Output) -> Result:
    """Show which versions a tag named, since when and why.

    Example:
        log store/news
    """
    store, reference, moves = _log_of(dataset, tag)
    moves.reverse()
    published = {version: is_published(store, version) for version in {move.version for move in moves}}
    shown = {version: version if is_there else f"{version} (gone)" for version, is_there in published.items()}
    rows = [[move.number, shown_time(move.at), shown[move.version], move.by, move.reason] for move in moves]
    out.table(["move", "at (UTC)", "version", "by", "reason"], rows)
    entries = [asdict(move) | {"published": published[move.version]} for move in moves]
    return Result({"dataset": reference.dataset, "tag": tag, "entries": entries})


def _log_of(dataset: str, tag: str) -> tuple[Store, Reference, list[tags.TagEntry]]:
    """Find the store of STORE/DATASET, the reference of its tag, and the moves of the tag.

    Raises SpecError if `dataset` has a tag too, StoreError if the tag never moved.
    """
    tag_moves.check_tag(tag)
    if names_version(dataset):
        raise SpecError(f"{dataset}: name the dataset without @; --tag names the tag")
    reference = parse_reference(f"{dataset.rstrip('/')}@{tag}")
    store = dataset_store(reference.store, reference.dataset)
    entries = tags.log(store, tag)
    if not entries:
        raise StoreError(why_missing(store, reference))
    return store, reference, entries


def _earlier(store: Store, reference: Reference, entries: list[tags.TagEntry]) -> Manifest:
    version = tag_moves.version_before(entries)
    if version is None or not is_published(store, version):
        gone = f"it named {version} before, which is no longer published"
        why = gone if version else "there is no earlier version to go back to"
        raise StoreError(f"{reference}: {why}; `tokenloom ls {store.root}` lists the versions, and --to names one")
    return load_manifest(store, version)


def _moved(out: Output, store: Store, tag: str, before: tags.TagEntry | None, entry: tags.TagEntry) -> Result:
    """Print the effect of a move. `before` and `entry` are the newest entries of the tag before it and after it."""
    moved, reference = entry != before, f"{store.root}@{entry.version}"
    if moved:
        out.line(f"{tag} now names {reference} (before: {entry.previous or 'nothing'})")
        refresh_catalogue(store)
    else:
        out.line(f"{tag} already names {reference}; nothing was moved")
    return Result({"reference": reference, "tag": tag, "moved": moved, **asdict(entry)})


def du(store: StoreOrDataset, *, keep_last: _KeepLast = 3, grace: _Grace = 14 * _DAY, out: Output) -> Result:
    """Show what uses the space of a store or a dataset.

    Example:
        du store
    """
    from tokenloom.tasks.retention import Policy, measure

    folder = open_store(store)
    datasets = [measure(each, Policy(keep_last, grace)) for each in _datasets(store, folder)]
    for usage in datasets:
        _print(out, usage)
    return Result({"store": str(folder.root), "datasets": [asdict(usage) for usage in datasets]})


def gc(
    dataset: Dataset, *, keep_last: _KeepLast = 3, grace: _Grace = 14 * _DAY, delete: bool = False, out: Output
) -> Result:
    """Delete versions that no tag and no rule keeps, and leftovers.

    Without --delete it shows what it would delete.

    Args:
        delete: delete; without it, show what a run would delete

    Example:
        gc store/news --keep-last 5
    """
    from tokenloom.tasks.retention import Policy, collect

    store = parse_dataset(dataset)
    collected = collect(store, Policy(keep_last, grace), delete=delete)
    if rows := collected.rows():
        out.table(["version", "", "why"], rows)
    for kind, num_files in collected.leftovers.items():
        out.line(f"  {kind}: {collected.verb} {counted(num_files, 'file')}")
    out.line(collected.line())
    if not delete and collected.bytes:
        out.line("nothing was deleted; add --delete to do it")
    if collected.deleted and delete:
        refresh_catalogue(store)
    return Result(collected.to_json())


def _datasets(store: str, folder: Store) -> list[Store]:
    if is_dataset(folder):
        return [folder]
    found = [dataset_store(store, name) for name in sorted(filter(NAME_PATTERN.match, folder.names("")))]
    found = list(filter(is_dataset, found))
    if not found:
        raise StoreError(f"{store}: no such store or dataset; a build creates it")
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
