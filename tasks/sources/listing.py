"""Find input files: the ones a pattern matches, with their sizes and fingerprints.

A listing that fails is retried or reported, never a folder without files: the glob functions of Python and of fsspec
silently skip folders that can't be read, and below `**` pathlib and fsspec skip linked folders
(docs/project/decisions.md). Here, `*`, `?` and `[...]` match within one part of the path; `**`, as a whole part,
matches any number of folders. Links are followed, except below `**` a link that leads back to a folder above it.
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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase, translate
from functools import partial
from typing import Any

from tokenloom.errors import InputError
from tokenloom.spec.syntax import first_wildcard, literal, root_of
from tokenloom.storage.stores import is_object, remote_kind
from tokenloom.storage.stores.remote_calls import call
from tokenloom.storage.stores.remote_errors import kind_of
from tokenloom.storage.stores.s3 import list_s3
from tokenloom.storage.work.fingerprints import remote_fingerprint
from tokenloom.tasks.sources.files import (
    Info,
    copied,
    filesystem_of,
    info_of,
    input_bytes,
    is_local,
    local_path,
    needs_copy,
    translate_input_errors,
)
from tokenloom.wording import locale_advice

PINNED = "commit:"  # starts the fingerprint of a file that never changes
_SURROGATES = re.compile("[\ud800-\udfff]")  # how Python represents bytes that are not UTF-8
_Listing = Callable[[str], list[Info]]  # returns the "name" and "type" of each entry of a folder, [] if there is none
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
    root, found = match(pattern, leave_out)
    files = []
    for name, info in found:
        if info["type"] == "file":
            files.append(found_file(name.removeprefix(root), name, pattern, info))
        elif info["type"] != "directory" or pattern.rsplit("/", 1)[-1] not in ("*", "**"):
            raise _not_a_file(name, info, pattern)
    if files:
        return files
    passed = ""
    if leave_out and (leave_out.num_excluded or leave_out.num_hidden):
        passed = (
            f" but {leave_out.num_excluded:,} that leave_out leaves out and {leave_out.num_hidden:,} below names that "
            "begin with _ or ., which wildcards pass over"
        )
    raise InputError(
        f"{pattern}: no file matches{passed}; check the path, and quote wildcards in a shell{locale_advice()}"
    )


def _not_a_file(name: str, info: Info, pattern: str) -> InputError:
    """Return the error for a match that is a folder, a pipe, a socket or a broken link."""
    if info["type"] != "directory":
        return InputError(f"{name}: not a regular file; leave it out of {pattern}, or name it in leave_out")
    url = name if is_local(pattern) else f"{pattern.partition('://')[0]}://{name}"
    return InputError(
        f"{url}: a folder, where {pattern} should match files; write {url}/* to mean its files, or name it in leave_out"
    )


def match(pattern: str, leave_out: LeaveOut | None = None) -> tuple[str, list[tuple[str, Info]]]:
    """Return the root of a pattern, and the name and info of each file and folder that matches, sorted by name.

    Leaves out the files that `leave_out` matches. The `type` of an info is file, directory, or other: a pipe, a broken
    link. Raises InputError for an invalid pattern, or if a folder on the way can't be read.
    """
    root, found = _found(pattern)
    kept, leave_out = [], leave_out or LeaveOut()
    for name, info, is_hidden in found:
        is_folder = info["type"] == "directory"
        if leave_out.num_files and leave_out.excludes(name.removeprefix(root), is_folder=is_folder):
            continue
        if is_hidden:
            leave_out.num_hidden += not is_folder
        else:
            kept.append((name, info))
    check_names(name for name, _ in kept)
    return root, kept


def _found(pattern: str) -> tuple[str, list[_Match]]:
    """Return the root of a pattern and its matches, sorted by name."""
    filesystem, path = (None, local_path(pattern)) if is_local(pattern) else filesystem_of(pattern)
    root = root_of(path)
    if path.startswith(("http://", "https://")) and not set("*[") & set(path):  # "?name=" is not a wildcard
        return root, [(path, info_of(pattern), False)]
    if first_wildcard(path) is None:
        return root, [(literal(path), info_of(literal(pattern)), False)]
    parts = path[path.rfind("/", 0, first_wildcard(path)) + 1 :].split("/")
    parts = [part for part, before in zip(parts, ["", *parts], strict=False) if not part == before == "**"]
    if any("**" in part and part != "**" for part in parts):
        raise InputError(
            f"{pattern}: ** must be a whole part of the path, and matches any number of folders: write a*/**/*.txt"
        )
    with translate_input_errors(pattern):
        if filesystem is None:
            return root, _glob(_list_local, root, parts)
        if is_object(pattern):
            return root, _glob(_object_listing(pattern, path), root.removesuffix("/"), parts)
        filesystem.invalidate_cache()  # an earlier build of this process may have listed it
        return root, _glob(partial(_list_folder, filesystem), root, parts)


def check_names(names: Iterable[str]) -> None:
    """Raise InputError if a name of a file is not UTF-8."""
    if odd := next((name for name in names if _SURROGATES.search(name)), None):
        raise InputError(
            f"{odd!a}: its name is not UTF-8, so the inputs of a version can't name it; rename it, or set leave_out"
            f"{locale_advice()}"
        )


def found_file(path: str, name: str, pattern: str, info: Info | None = None) -> FoundFile:
    """Return the record of a file; raises InputError if it is missing.

    Args:
        path: relative to the source's root.
        name: the file's name in its file system.
        pattern: a path or URL in the same file system.
        info: what the file system says about the file; requested if None.
    """
    if is_local(pattern):
        return FoundFile(path, name, input_bytes(name), None)
    filesystem = filesystem_of(pattern)[0]
    if is_object(pattern):  # its bucket as in the pattern, perhaps with an account, then its key
        protocol, mark, path_of = pattern.partition("://")
        url = f"{protocol}{mark}{path_of.partition('/')[0]}/{name.partition('/')[2]}"
    else:
        url = str(filesystem.unstrip_protocol(name))
    if info is None or info["size"] is None:
        info = info_of(url)
    if needs_copy(filesystem, url, info):
        copy = copied(filesystem, name, url)
        return FoundFile(path, copy, input_bytes(copy), None)
    return FoundFile(path, url, int(info["size"]), remote_fingerprint(info, url))


def _glob(listing: _Listing, root: str, parts: Sequence[str]) -> list[_Match]:
    """Return the matches in a tree of folders, sorted by name.

    Args:
        listing: called only for folders that may lead to a match.
        root: the folder in which `parts` begin.
        parts: those of a pattern.
    """
    real = os.path.realpath if listing is _list_local else str
    found: dict[tuple[str, str], _Match] = {}
    seen = set[tuple[str, int, bool]]()
    pending: list[tuple[str, int, bool, tuple[str, ...]]] = [(root, 0, False, ())]  # with the folders from that of **
    while pending:
        folder, at, is_hidden, above = pending.pop()
        if (folder, at, is_hidden) in seen:
            continue
        seen.add((folder, at, is_hidden))
        part, is_last = parts[at], at == len(parts) - 1
        if part == "**":
            above = above or (real(folder),)
            if not is_last:
                pending.append((folder, at + 1, is_hidden, above))
        passes_over = not part.startswith(("_", ".")) and first_wildcard(part) is not None
        matches = re.compile(translate(part)).match
        for info in listing(folder):
            name = info["name"]
            last_name = name.rpartition("/")[2]
            if not (part == "**" or (last_name and matches(last_name))):
                continue
            hidden = is_hidden or (passes_over and last_name.startswith(("_", ".")))
            key = name, info["type"]  # an object may have the name of a folder
            if is_last and (key not in found or not hidden):
                found[key] = name, info, hidden
            if info["type"] != "directory" or (is_last and part != "**"):
                continue
            if not above:
                pending.append((name, at + 1, hidden, above))
            elif (below := real(name)) not in above:  # else a link leads back to a folder above
                pending.append((name, at if part == "**" else at + 1, hidden, (*above, below)))
    return sorted(found.values(), key=lambda item: item[0])


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


def _object_listing(pattern: str, path: str) -> _Listing:
    """Return a listing of the folders of a bucket, from one of all objects below the fixed start of a pattern.

    It takes a request for a thousand objects; folder by folder, 100,000 folders of one object each take 100,000.

    Args:
        pattern: the URL, for messages.
        path: the pattern in the form that the file system uses.
    """
    listed = _objects(pattern, path)
    folders = {info["name"] for info in listed if info["type"] == "directory"}
    objects = [info for info in listed if info["type"] != "directory"]
    for info in objects:
        name = info["name"]
        while (name := name.rpartition("/")[0]) and name not in folders:
            folders.add(name)
    entries: dict[str, list[Info]] = {}
    for info in [*objects, *({"name": name, "type": "directory", "size": 0} for name in folders)]:
        name = info["name"]
        if info["size"] or info["type"] == "directory" or not (name.endswith("/") or name in folders):
            entries.setdefault(name.rpartition("/")[0], []).append(info)  # empty objects make consoles show a folder
    return lambda folder: entries.get(folder, [])


def _objects(pattern: str, path: str) -> list[Info]:
    """Return the objects below the fixed start of a pattern; on S3 only one level of them if the pattern has one."""
    start = first_wildcard(path)
    bucket, mark, prefix = literal(path[:start]).partition("/")
    if not mark:
        raise InputError(f"{pattern}: a wildcard in the bucket's name; give each bucket a source of its own")
    is_s3 = remote_kind(pattern).name == "s3"
    try:
        if is_s3:  # the `find` of s3fs takes a minute for 40,000 folders
            return list_s3(pattern, bucket, prefix, deep="/" in path[start:] or "**" in path)
        folder, _, stem = f"{bucket}/{prefix}".rpartition("/")
        found = call(pattern, "find", folder, prefix=stem, detail=True, many=True)
        if isinstance(found, list):  # Azure, if an object has the name of the folder
            found = call(pattern, "find", bucket, prefix=prefix, detail=True, many=True)
        return list(found.values())
    except FileNotFoundError as error:
        if is_s3:
            raise InputError(f"{pattern}: bucket {bucket} does not exist; check its name") from error
        return []
