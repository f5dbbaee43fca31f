"""`tokenloom tag`, `rollback` and `log`: move tags, and show their moves."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from tokenloom.cli.arguments import AllowTryout, Argument, Dataset, Reason, Ref, Tag
from tokenloom.cli.commands.report import refresh_catalogue
from tokenloom.cli.output import Output, Result
from tokenloom.errors import SpecError, StoreError
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import is_published, load_manifest
from tokenloom.storage.versions.references import (
    Reference,
    dataset_store,
    names_version,
    parse_reference,
    resolve,
    why_missing,
)
from tokenloom.wording import shown_time


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
    """
    tags.check_tag(tag)
    store, manifest = resolve(parse_reference(reference))
    before = tags.newest(store, tag)
    entry = tags.move_by_hand(store, tag, manifest, before, reason, allow_tryout=allow_tryout)
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
    """Let a tag name an earlier version.

    Args:
        to: the version to name (default: the one that the tag named before)
    """
    store, reference = _tag_of(dataset, tag)
    entries = tags.log(store, tag)
    if not entries:
        raise StoreError(why_missing(store, reference))
    before = entries[-1]
    manifest = resolve(reference._replace(name=to))[1] if to else _earlier(store, reference, entries)
    entry = tags.move_by_hand(store, tag, manifest, before, reason, allow_tryout=allow_tryout)
    result = _moved(out, store, tag, before, entry)
    if entry != before:
        if tag == tags.LATEST:
            out.line("a build that finds nothing new leaves it there; one with new data moves it")
        out.line(f"undo: tokenloom tag {store.root}@{entry.previous} {tag}")
    return result


def log(dataset: Dataset, *, tag: Tag = "latest", out: Output) -> Result:
    """Show the moves of a tag, newest first; `published` in the result says whether a version still exists."""
    store, reference = _tag_of(dataset, tag)
    moves, problems = tags.read_log(store, tag)
    if not moves and not problems:
        raise StoreError(why_missing(store, reference))
    moves.reverse()
    published = {version: is_published(store, version) for version in {move.version for move in moves}}
    shown = {version: version if is_there else f"{version} (gone)" for version, is_there in published.items()}
    rows = [[move.number, shown_time(move.at), shown[move.version], move.by, move.reason] for move in moves]
    out.table(["move", "at (UTC)", "version", "by", "reason"], rows)
    damages = [str(problem) for problem in problems.values()]
    for damage in damages:
        out.line(f"damaged: {damage}")
    entries = [asdict(move) | {"published": published[move.version]} for move in moves]
    return Result({"dataset": reference.dataset, "tag": tag, "entries": entries, "damages": damages})


def _tag_of(dataset: str, tag: str) -> tuple[Store, Reference]:
    """Find the store of STORE/DATASET and the reference of its tag; raise SpecError if `dataset` has a tag too."""
    tags.check_tag(tag)
    if names_version(dataset):
        raise SpecError(f"{dataset}: name the dataset without @; --tag names the tag")
    reference = parse_reference(f"{dataset.rstrip('/')}@{tag}")
    return dataset_store(reference.store, reference.dataset), reference


def _earlier(store: Store, reference: Reference, entries: list[tags.TagEntry]) -> Manifest:
    version = tags.version_before(entries)
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
