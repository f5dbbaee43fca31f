"""Find input files: the ones a pattern matches, with their sizes and fingerprints.

A listing that fails is retried or reported, never a folder without files: glob, find and walk of fsspec silently skip
folders that can't be read, and linked folders below `**` (docs/project/decisions.md). Here, `*`, `?` and `[...]` match
within one part of the path; `**`, as a whole part, matches any number of folders. Links are followed, except one that
leads back to a folder above it.
Wildcards pass over names that begin with _ or ., as those of pyarrow, Hugging Face and Spark do: "_SUCCESS", ".crc".

Patterns of files to leave out are compared with the names of files and with paths below the source's root:

"*.tmp"      files with such a name in any folder
"drafts/*"   everything below the folder drafts of the root, as `*` also matches "/"
"*/old/*"    everything below folders `old` of other folders
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from tokenloom.errors import InputError
from tokenloom.spec.syntax import first_wildcard, literal, root_of
from tokenloom.storage.stores import is_object, remote_kind
from tokenloom.storage.stores.remote_calls import call
from tokenloom.storage.stores.remote_errors import kind_of
from tokenloom.storage.stores.s3 import list_s3
from tokenloom.storage.work.fingerprints import remote_fingerprint
from tokenloom.tasks.sources.files import (
    DOWNLOAD,
    Info,
    filesystem_of,
    info_of,
    input_bytes,
    is_local,
    local_path,
    translate_input_errors,
    waiting_if_told,
)
from tokenloom.tasks.sources.hub import pinned
from tokenloom.wording import locale_advice

_SURROGATES = re.compile("[\ud800-\udfff]")  # how Python represents bytes that are not UTF-8
_Match = tuple[str, Info, bool]  # name, info, and whether wildcards pass over it


@dataclass(frozen=True)
class FoundFile:
    """One file of a source.

    Attributes:
        path: relative to the source's root.
        url: where the file is.
        num_bytes: its length.
        fingerprint: the fingerprint of a remote file; None for a local one, whose content is hashed.
        options: replace those of the source when the file is read; with `stream` among them, the files of the source
            are read as one stream.
        sides: URLs of files that are read with it. They enter its fingerprint, a remote one's here.
    """

    path: str
    url: str
    num_bytes: int
    fingerprint: str | None
    options: dict[str, Any] = field(default_factory=dict)
    sides: tuple[str, ...] = ()


class LeaveOut:
    """Decides which files are left out, and counts them by pattern.

    Args:
        patterns: as those of the module fnmatch.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self.num_files = Counter(dict.fromkeys(patterns, 0))  # a file counts for each pattern that matches it
        self.num_excluded = 0
        self.num_hidden = 0  # files that wildcards pass over

    def excludes(self, path: str, *, is_folder: bool = False) -> bool:
        """Return whether a path below the source's root is left out."""
        name = path.rpartition("/")[2]
        matching = [each for each in self.num_files if fnmatchcase(path, each) or fnmatchcase(name, each)]
        if matching and not is_folder:
            self.num_files.update(matching)
            self.num_excluded += 1
        return bool(matching)


def find_files(pattern: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
    """Return the files that match, sorted by path.

    Args:
        pattern: a file or glob, absolute or an fsspec URL. `path` is relative to its root: up to the last "/"
            before the first wildcard; without one, the file's folder.
        leave_out: which of the files that match to leave out.

    Raises InputError if no file matches, all files are left out, or something other than a file matches.
    """
    leave_out = leave_out or LeaveOut()
    root, found = match(pattern, leave_out)
    files = []
    for name, info in found:
        if info["type"] == "file":
            files.append(found_file(name.removeprefix(root), name, pattern, info))
        elif info["type"] != "directory" or pattern.rsplit("/", 1)[-1] not in ("*", "**"):
            raise InputError(
                f"{url_of(name, pattern)}: a folder, or not a regular file, where {pattern} should match files; end "
                "the pattern with /* to mean the files in the folder, or name it in leave_out"
            )
    if files:
        return files
    passed = ""
    if leave_out.num_excluded or leave_out.num_hidden:
        passed = (
            f" but {leave_out.num_excluded:,} that leave_out leaves out and {leave_out.num_hidden:,} below names that "
            "begin with _ or ., which wildcards pass over"
        )
    raise InputError(
        f"{pattern}: no file matches{passed}; check the path, and quote wildcards in a shell{locale_advice()}"
    )


def match(pattern: str, leave_out: LeaveOut | None = None) -> tuple[str, list[tuple[str, Info]]]:
    """Return the root of a pattern, and the name and info of each file and folder that matches, sorted by name.

    Leaves out the files that `leave_out` matches. The `type` of an info is file, directory, or other: a pipe, a broken
    link. Raises InputError for an invalid pattern, or if a folder on the way can't be read.
    """
    leave_out = leave_out or LeaveOut()
    if is_local(pattern):
        root, found = _found(pattern)
    else:
        url = pinned(pattern)
        root, found = waiting_if_told(lambda: _found(url))
    kept = []
    for name, info, is_hidden in sorted(found, key=lambda one: one[0]):
        is_folder = info["type"] == "directory"
        if leave_out.num_files and leave_out.excludes(name.removeprefix(root), is_folder=is_folder):
            continue
        if is_hidden:
            leave_out.num_hidden += not is_folder
        else:
            kept.append((name, info))
    return root, kept


def found_file(path: str, name: str, pattern: str, info: Info | None = None) -> FoundFile:
    """Return the record of a file; raises InputError if it is missing, or can't be read in parts.

    Args:
        path: relative to the source's root.
        name: the file's name in its file system.
        pattern: a path or URL in the same file system.
        info: what the file system says about the file; requested if None.
    """
    if _SURROGATES.search(name):
        raise InputError(
            f"{name!a}: its name is not UTF-8, so the inputs of a version can't name it; rename it, or set leave_out"
            f"{locale_advice()}"
        )
    if is_local(pattern):
        return FoundFile(path, name, input_bytes(name), None)
    url = url_of(name, pattern)
    if info is None or info["size"] is None:
        info = info_of(url)
    if info["size"] is None or not info.get("partial", True):
        raise InputError(f"{url}: its server gives no length, or sends no parts of it; {DOWNLOAD}")
    return FoundFile(path, url, int(info["size"]), remote_fingerprint(info, url))


def url_of(name: str, pattern: str) -> str:
    """Return the path or URL of a name in the file system of a pattern."""
    if is_local(pattern):
        return name
    if is_object(pattern):  # its bucket as in the pattern, perhaps with an account, then its key
        protocol, mark, path = pattern.partition("://")
        return f"{protocol}{mark}{path.partition('/')[0]}/{name.partition('/')[2]}"
    return str(filesystem_of(pattern)[0].unstrip_protocol(name))


def _found(pattern: str) -> tuple[str, list[_Match]]:
    """Return the root of a pattern and its matches."""
    filesystem, path = (None, local_path(pattern)) if is_local(pattern) else filesystem_of(pattern)
    root = root_of(path)
    start = first_wildcard(path)
    has_query = path.startswith(("http://", "https://")) and not set("*[") & set(path)  # "?name=" is not a wildcard
    if start is None or has_query:
        return root, [(literal(path), info_of(literal(pattern)), False)]
    parts = path[path.rfind("/", 0, start) + 1 :].split("/")
    if any("**" in part and part != "**" for part in parts):
        raise InputError(
            f"{pattern}: ** must be a whole part of the path, and matches any number of folders: write a*/**/*.txt"
        )
    with translate_input_errors(pattern):
        found = []
        for info in _objects(pattern, path, root) if is_object(pattern) else _walk(filesystem, root, parts):
            reached = _reached(parts, info["name"].removeprefix(root))
            if hidden := [is_hidden for at, is_hidden in reached if at == len(parts)]:
                found.append((info["name"], info, all(hidden)))
        return root, found


def _reached(parts: Sequence[str], path: str) -> set[tuple[int, bool]]:
    """Return how many parts of a pattern the names of a path match, and whether wildcards pass over one of them.

    Each way to match is one pair: a part matches one name, `**` any number.
    """
    reached = {(0, False)}
    for name in path.split("/"):
        reached = {step for at, is_hidden in reached for step in _steps(parts, at, name, is_hidden)}
    return reached


def _steps(parts: Sequence[str], at: int, name: str, is_hidden: bool) -> Iterator[tuple[int, bool]]:
    """Yield what follows if the name after `at` parts is `name`; arguments and results as in _reached."""
    if at == len(parts):
        return
    part = parts[at]
    is_odd = name.startswith(("_", ".")) and not part.startswith(("_", "."))
    hidden = is_hidden or (is_odd and first_wildcard(part) is not None)
    if part == "**":
        yield at, hidden
        yield from [(at + 1, hidden)] if at + 1 == len(parts) else _steps(parts, at + 1, name, is_hidden)
    elif name and fnmatchcase(name, part):
        yield at + 1, hidden


def _walk(filesystem: Any, root: str, parts: Sequence[str]) -> Iterator[Info]:
    """Yield the "name" and "type" of all entries of the folders that may lead to a match."""
    real: Callable[[str], str] = os.path.realpath if filesystem is None else str
    if filesystem:
        filesystem.invalidate_cache()  # an earlier build of this process may have listed it
    pending: list[tuple[str, tuple[str, ...]]] = [(root, (real(root),))]
    while pending:
        folder, above = pending.pop()
        for info in _list_folder(filesystem, folder) if filesystem else _list_local(folder):
            yield info
            if info["type"] != "directory" or (below := real(info["name"])) in above:
                continue
            if any(at < len(parts) for at, _ in _reached(parts, info["name"].removeprefix(root))):
                pending.append((info["name"], (*above, below)))


def _list_local(folder: str) -> list[Info]:
    with translate_input_errors(folder.rstrip("/") or "/"):
        try:
            with os.scandir(folder) as entries:
                return [
                    {"name": one.path, "type": "directory" if one.is_dir() else "file" if one.is_file() else "other"}
                    for one in entries
                ]
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL, which no name contains
            return []


def _list_folder(filesystem: Any, folder: str) -> list[Info]:
    with translate_input_errors(str(filesystem.unstrip_protocol(folder))):
        try:
            entries = [{**info, "name": info["name"].rstrip("/")} for info in filesystem.ls(folder, detail=True)]
        except (FileNotFoundError, NotADirectoryError) as error:
            if kind_of(error) == "transient":
                raise
            return []
    return [info for info in entries if info["name"] != folder.rstrip("/")]


def _objects(pattern: str, path: str, root: str) -> list[Info]:
    """Return the objects and folders below the fixed start of a pattern, by one listing.

    It takes a request for a thousand objects; folder by folder, 100,000 folders of one object each take 100,000.

    Args:
        pattern: the URL, for messages.
        path: the pattern in the form that the file system uses.
        root: that of the pattern.
    """
    start = first_wildcard(path)
    bucket, mark, prefix = literal(path[:start]).partition("/")
    if not mark:
        raise InputError(f"{pattern}: a wildcard in the bucket's name; give each bucket a source of its own")
    if remote_kind(pattern).name == "s3":  # the `find` of s3fs takes a minute for 40,000 folders
        listed = list_s3(pattern, bucket, prefix, deep="/" in path[start:] or "**" in path)
    else:
        listed = list(call(pattern, "find", bucket, prefix=prefix, detail=True, many=True).values())
    folders = {info["name"] for info in listed if info["type"] == "directory"}
    objects = [info for info in listed if info["type"] != "directory" and info["name"].startswith(root)]
    for info in objects:
        name = info["name"]
        while (name := name.rpartition("/")[0]).startswith(root) and name not in folders:
            folders.add(name)
    # Consoles show an empty object as a folder.
    files = [info for info in objects if info["size"] or not (info["name"].endswith("/") or info["name"] in folders)]
    return [*files, *({"name": name, "type": "directory", "size": 0} for name in folders)]
