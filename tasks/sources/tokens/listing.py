"""Lists the inputs of a format with the files that belong to each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tokenloom.errors import InputError
from tokenloom.storage.stores.remote_errors import kind_of
from tokenloom.storage.work.fingerprints import joined_fingerprint, remote_fingerprint
from tokenloom.tasks.sources.base import INDEX, MASK
from tokenloom.tasks.sources.files.finding import FoundFile
from tokenloom.tasks.sources.files.globs import local_info
from tokenloom.tasks.sources.files.opening import info_of, is_local, local_path
from tokenloom.tasks.sources.tokens.base import Side, TokenFormat


def with_sides(found: Sequence[FoundFile], form: TokenFormat) -> list[FoundFile]:
    """Return the inputs among the files that match, each with the files that belong to it.

    Raises InputError if a required file is missing, or if only some inputs have an index or a mask.
    """
    known = {file.url: file for file in found}
    sides = {url: form.sides(url) for url in known}
    beside = {side.url for own in sides.values() for side in own}
    inputs = [_with_own(file, sides[file.url], known, form) for file in found if file.url not in beside]
    for role in (INDEX, MASK):
        has_it = {role in file.options["has"]: file.url for file in inputs}
        if len(has_it) > 1:
            raise InputError(
                f"{has_it[False]}: it has no {role}, and {has_it[True]} has one; add the file that is missing, or read "
                "them as two sources"
            )
    return inputs


def _with_own(file: FoundFile, sides: Sequence[Side], known: Mapping[str, FoundFile], form: TokenFormat) -> FoundFile:
    form.check_name(file.url)
    prints, there = [file.fingerprint], list[Side]()
    for side in sides:
        beside = known.get(side.url)
        fingerprint = beside.fingerprint if beside else _fingerprint(side, file.url)
        if fingerprint != "":
            prints.append(fingerprint)
            there.append(side)
    fingerprint = None if file.fingerprint is None else joined_fingerprint([one or "" for one in prints])
    options = {"has": form.has(file.url, [side.role for side in there])}
    return replace(file, fingerprint=fingerprint, sides=tuple(side.url for side in there), options=options)


def _fingerprint(side: Side, url: str) -> str | None:
    """Return the fingerprint of a remote side, None for a local one; "" if it does not exist and need not."""
    try:
        info = local_info(local_path(side.url)) if is_local(side.url) else info_of(side.url)
    except InputError as error:
        if not isinstance(error.__cause__, Exception) or kind_of(error.__cause__) != "missing":
            raise
        if side.is_required:
            raise InputError(f"{url}: {side.url}, which belongs to it, is missing; copy both files") from error
        return ""
    return None if is_local(side.url) else remote_fingerprint(info, side.url)
