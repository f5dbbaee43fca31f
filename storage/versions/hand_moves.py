"""Moves of a tag by a person: what is checked before, and which version a rollback returns to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenloom.errors import SpecError, StoreError
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.names import NAME_PATTERN
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import check_lengths
from tokenloom.storage.versions.tags import BUILD_REASON, LATEST, TagEntry
from tokenloom.storage.versions.version_spec import version_spec


@dataclass(frozen=True)
class HandMove:
    """The entry of a tag after a move by a person; `moved` is False if it named the version already."""

    entry: TagEntry
    moved: bool


def check_tag(tag: str) -> None:
    """Raise SpecError if `tag` can't be the name of a tag."""
    if not NAME_PATTERN.match(tag):
        raise SpecError(f"{tag!r} is not a valid tag: a-z, then up to 63 of a-z 0-9 . _ -, not 16 hexadecimal digits")


def move_by_hand(
    store: Store, tag: str, manifest: Manifest, seen: TagEntry | None, reason: str, *, allow_tryout: bool = False
) -> HandMove:
    """Move a tag to a published version because a person says so.

    Args:
        store: the dataset's store.
        tag: its name.
        manifest: of the version that it will name.
        seen: its newest entry as the person knows it, None if there is none.
        reason: why, for the log; one line.
        allow_tryout: let `latest` name a try-out.

    Raises:
        SpecError: the tag or the reason is not valid, or `latest` would name a try-out.
        FormatError: a file of the version is missing or cut short, or its spec is not one of a build.
        StoreError: the tag has moved since `seen` was read.
    """
    check_tag(tag)
    check_reason(reason)
    limit = version_spec(store, manifest).limit
    if tag == LATEST and limit is not None and not allow_tryout:
        raise SpecError(
            f"{store.root}@{manifest.version} is a try-out of {limit} documents of each source, and {LATEST} is what "
            "training reads; choose another version or tag, or add --allow-tryout"
        )
    check_lengths(store, manifest)
    if seen and seen.version == manifest.version:
        return HandMove(seen, moved=False)
    try:
        return HandMove(tags.move(store, tag, manifest.version, seen.number if seen else 0, reason), moved=True)
    except FileExistsError as error:
        raise _moved_meanwhile(store, tag, seen.number + 1 if seen else 1) from error


def check_reason(reason: str) -> None:
    """Raise SpecError if a person's reason can't stand in the log of a tag."""
    if not reason.strip() or not reason.isprintable():
        raise SpecError(f"the reason {reason!r} is not one line of text")
    if reason == BUILD_REASON:
        raise SpecError(f"the reason {reason!r} marks the moves of builds; write why you move the tag")


def _moved_meanwhile(store: Store, tag: str, number: int) -> StoreError:
    other = tags.tag_log(store, tag).read(number)
    return StoreError(
        f"{store.root}: {tag} was moved to {other.version} by {other.by} ({other.reason}) at the same moment; "
        f"`tokenloom log {store.root} --tag {tag}` shows its moves; run the command again if yours still applies"
    )


def version_before(entries: Sequence[TagEntry]) -> str | None:
    """Return the version that a rollback of a tag returns to; None if there is none.

    A person who moves a tag to a version that it named before goes back to that point of its history: a second rollback
    goes back further and does not toggle. A build always adds to the history.

    Example: the builds A, B, C and a rollback to B -> A

    Args:
        entries: the log of the tag, oldest first.
    """
    history: list[str] = []
    for entry in entries:
        if entry.reason != BUILD_REASON and entry.version in history:
            del history[len(history) - history[::-1].index(entry.version) :]  # all after it was named last
        elif history[-1:] != [entry.version]:
            history.append(entry.version)
    return history[-2] if len(history) > 1 else None
