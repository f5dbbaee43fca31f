"""Propose the sources of a spec for files, folders and patterns: `tokenloom init FILES` writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import commonpath, commonprefix
from pathlib import Path, PurePosixPath
from typing import Any

from tokenloom.errors import InputError, SpecError, message_of
from tokenloom.spec.base import checked_location
from tokenloom.spec.wildcards import escaped
from tokenloom.tasks.planning.first_look import KINDS, Options, kind_of, reading_options, suffix_of
from tokenloom.tasks.planning.input_messages import HELD_OUT
from tokenloom.tasks.sources.files.downloads import with_urls
from tokenloom.tasks.sources.files.finding import find_files, match
from tokenloom.tasks.sources.files.opening import is_local
from tokenloom.wording import counted, first_of, shown_bytes

_NO_DATA = ("readme", "license", "notice", "dataset_info", "dataset_infos", "dataset_dict", "state", "requirements")
_MAX_LOOKED, _MAX_SOURCES = 20, 20  # files that are looked at one by one; sources of a single file


@dataclass(frozen=True)
class Proposal:
    """A source as a spec has it, with an absolute path; what it reads; and a note on a choice, "" for none."""

    source: dict[str, Any]
    files: str
    note: str


def propose(arguments: Sequence[str]) -> tuple[list[Proposal], list[str]]:
    """Return sources that read some files, and sentences on files that they leave out.

    Args:
        arguments: files, folders that are searched, patterns, and URLs.

    Raises:
        InputError: nothing matches, or a file has neither text nor conversations.
        SpecError: a URL has a password.
    """
    files: dict[str, int] = {}
    patterns: list[str] = []
    left_out: list[str] = []
    for argument in arguments:
        try:
            checked_location(argument)
        except ValueError as error:
            raise SpecError(f"{argument}: {message_of(error)}") from None
        pattern, found, others = _files_of(argument)
        files |= found
        patterns += [pattern] * bool(pattern)
        left_out += others
    notes = [f"left out {counted(len(left_out), 'file')} of other kinds: {first_of(left_out, 3)}"] if left_out else []
    if empty := [url for url, size in files.items() if _has_no_rows(url, size)]:
        notes.append(f"{counted(len(empty), 'empty file')}: {first_of([*map(_short, empty)], 3)}")
        files = {url: size for url, size in files.items() if url not in empty} or files
    held_out = [url for url in files if HELD_OUT.search(_short(url))]
    if 0 < len(held_out) < len(files):
        notes.append(
            f"left out {counted(len(held_out), 'file')} for evaluation ({first_of([*map(_short, held_out)], 3)}): a "
            "build divides all documents by `splits`, so build these as a dataset of their own"
        )
        files = {url: size for url, size in files.items() if url not in held_out}
    proposals = [
        Proposal(
            {**options, "path": pattern},
            f"{counted(len(urls), 'file')}, {shown_bytes(sum(files[url] for url in urls))}",
            note,
        )
        for options, note, group in _groups(list(files))
        for pattern, urls in _cut(group, patterns)
    ]
    return proposals, notes


def _has_no_rows(url: str, size: int) -> bool:
    """Return whether a file is empty and of a kind that a build reads as no rows."""
    return size == 0 and kind_of(url) in ("jsonl", "text")


def _short(url: str) -> str:
    return "/".join(url.split("/")[-2:])


def _files_of(argument: str) -> tuple[str, dict[str, int], list[str]]:
    """Return the pattern of an argument, "" for a folder; its files and their bytes; its other files."""
    path = str(Path(argument).absolute()) if is_local(argument) else argument
    if not (is_local(path) and Path(path).is_dir()):
        pattern = escaped(path) if is_local(path) and Path(path).exists() else path
        return pattern, {file.url: file.num_bytes for file in find_files(pattern)}, []
    listed = match(f"{escaped(path)}/**/*")[1]
    found = {name: int(info["size"]) for name, info in listed if info["type"] == "file"}
    found = {
        name: size for name, size in found.items() if PurePosixPath(name).name.split(".")[0].lower() not in _NO_DATA
    }
    data = {name: size for name, size in found.items() if kind_of(name)}
    if not data:
        raise InputError(f"{path}: no file in it ends in {', '.join(KINDS)}; name the files to read")
    return "", data, [_short(name) for name in found if name not in data]


def _groups(files: Sequence[str]) -> Iterator[tuple[Options, str, list[str]]]:
    """Yield the fields of each source but its path, a note, and its files, which have names of one end."""
    groups: dict[str, tuple[Options, str, list[str]]] = {}
    known: dict[str, tuple[Options, str]] = {}
    for url in files:
        look = url if len(files) <= _MAX_LOOKED else suffix_of(url)
        known[look] = known.get(look) or reading_options(url)
        options, note = known[look]
        groups.setdefault(json.dumps([suffix_of(url), options]), (options, note, []))[2].append(url)
    yield from groups.values()


def _cut(files: list[str], patterns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield patterns, and which of the files each matches: one for all of them, or each file by itself."""
    wanted, end = set(files), suffix_of(files[0])
    folder = commonpath([url.rpartition("/")[0] for url in files]) if is_local(with_urls(files[0])) else ""
    start = re.sub(r"\d+$", "", commonprefix([PurePosixPath(url).name for url in files]).removesuffix(end))  # noqa: RUF071  (of names, not of paths)
    names = [f"*{end}", f"{escaped(start)}*{end}", f"**/*{end}", f"**/{escaped(start)}*{end}"]
    tried = [*patterns, *(f"{escaped(folder)}/{name}" for name in names if folder)] if len(files) > 1 else []
    for pattern in tried:
        if _matches(pattern, wanted):
            yield pattern, files
            return
    if len(files) > _MAX_SOURCES:
        raise InputError(f"{folder}: no pattern matches just its {len(files):,} {end} files; give one, in quotes")
    yield from ((escaped(with_urls(url)), [url]) for url in files)


def _matches(pattern: str, wanted: set[str]) -> bool:
    try:
        return {file.url for file in find_files(pattern) if not _has_no_rows(file.url, file.num_bytes)} == wanted
    except InputError:
        return False
