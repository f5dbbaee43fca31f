"""Find input files: the ones a pattern matches, with their sizes and fingerprints.

A listing that fails is retried or reported, never a folder without files: the glob functions of Python and of fsspec
silently skip folders that can't be read, and below `**` pathlib and fsspec skip linked folders
(docs/project/decisions.md). Here, `*`, `?` and `[...]` match within one part of the path; `**`, as a whole part,
matches any number of folders. Links are followed, except below `**` a link that leads back to a folder above it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import translate
from functools import partial
from typing import Any

from tokenloom.console import locale_advice
from tokenloom.errors import InputError
from tokenloom.spec.wildcards import LeaveOut, PartMatcher, first_wildcard, literal, matches_parts, passes_over, root_of
from tokenloom.storage.stores.remote_calls import call
from tokenloom.storage.stores.remote_errors import kind_of
from tokenloom.storage.stores.s3 import list_s3
from tokenloom.storage.stores.urls import is_object, remote_kind
from tokenloom.storage.work.fingerprints import remote_fingerprint
from tokenloom.tasks.sources.files import (
    Info,
    copied,
    filesystem_of,
    info_in,
    input_bytes,
    is_local,
    local_path,
    needs_copy,
    translate_input_errors,
)

PINNED = "commit:"  # starts the fingerprint of a file that never changes
_SURROGATES = re.compile("[\ud800-\udfff]")  # how Python represents bytes that are not UTF-8


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


def find_files(pattern: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
    """Return the files that match, sorted by path.

    Args:
        pattern: a file or glob, absolute or an fsspec URL. `path` is relative to its root: up to the last "/"
            before the first wildcard; without one, the file's folder.
        leave_out: which of the files that match to leave out.

    Raises InputError if no file matches, all files are left out, or something other than a file matches.
    """
    root, found = match(pattern, leave_out)
    files = [
        found_file(name.removeprefix(root), name, pattern, info)
        for name, info in found
        if _is_file(name, info, pattern)
    ]
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


def _is_file(name: str, info: Info, pattern: str) -> bool:
    """Return whether a match is a file, False for a folder that `*` matches; raises InputError for anything else."""
    if info["type"] == "file":
        return True
    if info["type"] != "directory":  # a pipe, a socket, a broken link
        raise InputError(f"{name}: not a regular file; leave it out of {pattern}, or name it in leave_out")
    if pattern.rsplit("/", 1)[-1] in ("*", "**"):
        return False
    place = name if is_local(pattern) else f"{pattern.partition('://')[0]}://{name}"
    raise InputError(
        f"{place}: a folder, where {pattern} should match files; write {place}/* to mean its files, or name it in "
        "leave_out"
    )


def match(pattern: str, leave_out: LeaveOut | None = None) -> tuple[str, list[tuple[str, Info]]]:
    """Return the root of a pattern, and the name and info of each file and folder that matches, sorted by name.

    Leaves out the files that `leave_out` matches.
    """
    filesystem: Any = None
    if is_local(pattern):  # without fsspec, see filesystem_of
        stripped = local_path(pattern)
    else:
        filesystem, stripped = filesystem_of(pattern)
    root = root_of(stripped)
    is_query = stripped.startswith(("http://", "https://")) and not set("*[") & set(stripped)  # "?name=", no wildcard
    if is_query or first_wildcard(stripped) is None:
        stripped = stripped if is_query else literal(stripped)
        info = local_info(stripped) if filesystem is None else info_in(filesystem, stripped, literal(pattern))
        found = [(stripped, info)]
        return root, leave_out.kept(found, root) if leave_out else found
    with translate_input_errors(pattern):
        if is_object(pattern):
            found = object_glob(pattern, stripped)
        elif is_local(pattern):
            found = local_glob(stripped)
        else:
            filesystem.invalidate_cache()  # of listings that this process may have made for an earlier build
            found = folder_glob(partial(_listed, filesystem), pattern, stripped)
    if leave_out is not None:
        found = leave_out.kept(found, root)
    pattern_below = stripped[stripped.rfind("/", 0, first_wildcard(stripped)) + 1 :]
    hidden = {name for name, _ in found if passes_over(pattern_below, name.removeprefix(root))}
    if leave_out is not None:
        leave_out.num_hidden += sum(name in hidden and info["type"] != "directory" for name, info in found)
    found = [(name, info) for name, info in found if name not in hidden]
    check_names(name for name, _ in found)
    return root, found


def check_names(names: Iterable[str]) -> None:
    """Raise InputError if a name of a file is not UTF-8."""
    if odd := next((name for name in names if _SURROGATES.search(name)), None):
        raise InputError(
            f"{odd!a}: its name is not UTF-8, so the inputs of a version can't name it; rename it, or set leave_out"
            f"{locale_advice()}"
        )


def _listed(filesystem: Any, folder: str) -> list[Info]:
    """Return what a folder holds, [] if it does not exist; other errors become InputErrors that name it."""
    with translate_input_errors(str(filesystem.unstrip_protocol(folder))):
        try:
            return list(filesystem.ls(folder, detail=True))
        except (FileNotFoundError, NotADirectoryError) as error:
            if kind_of(error) == "transient":
                raise
            return []


def found_file(path: str, name: str, pattern: str, info: Info | None = None) -> FoundFile:
    """Return the record of a file; raises InputError if it is missing.

    Args:
        path: relative to the source's root.
        name: the file's name in its file system.
        pattern: a path or URL in the same file system.
        info: what the file system says about the file; requested if None.
    """
    if is_local(pattern):
        return FoundFile(path, name, int(info["size"]) if info else input_bytes(name), None)
    filesystem = filesystem_of(pattern)[0]
    if is_object(pattern):  # its bucket as in the pattern, perhaps with an account, then its key
        protocol, mark, path_of = pattern.partition("://")
        url = f"{protocol}{mark}{path_of.partition('/')[0]}/{name.partition('/')[2]}"
    else:
        url = str(filesystem.unstrip_protocol(name))
    with translate_input_errors(url):
        info = info if info and info["size"] is not None else info_in(filesystem, name, url)
    if needs_copy(filesystem, url, info):
        copy = copied(filesystem, name, url)
        return FoundFile(path, copy, input_bytes(copy), None)
    return FoundFile(path, url, int(info["size"]), remote_fingerprint(info, url))


def local_glob(pattern: str) -> list[tuple[str, Info]]:
    """Return the path, "type" and "size" of each file and folder that an absolute pattern matches, sorted by path.

    "type" is file, directory or other (a pipe, a broken link).

    Raises InputError for an invalid pattern, or if a folder on the way can't be read.
    """
    found = []
    for path, _ in folder_glob(_local_listing, pattern, pattern, os.path.realpath):
        with _reporting_unreadable(path):
            try:
                found.append((path, _described(os.stat(path))))
            except (FileNotFoundError, NotADirectoryError):  # a broken link
                found.append((path, {"type": "other", "size": 0}))
    return found


def local_info(path: str) -> Info:
    """Return the "type" and "size" of a file or folder; raises InputError if it does not exist or can't be read."""
    with translate_input_errors(path, "no such file; check the path"):
        return _described(os.stat(path))


def _described(found: os.stat_result) -> Info:
    kind = "directory" if stat.S_ISDIR(found.st_mode) else "file" if stat.S_ISREG(found.st_mode) else "other"
    return {"type": kind, "size": found.st_size}


def _local_listing(folder: str) -> list[Info]:
    with _reporting_unreadable(folder.rstrip("/") or "/"):
        try:
            with os.scandir(folder) as entries:
                return [{"name": one.path, "type": "directory" if one.is_dir() else "other"} for one in entries]
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL, which no name contains
            return []


@contextmanager
def _reporting_unreadable(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path}: can't be read: {error.strerror}; give this user permission to read it, or leave it out of the "
            "pattern"
        ) from error


def object_glob(pattern: str, path: str) -> list[tuple[str, Info]]:
    """Return the name and info of each object and folder that a pattern of an object store matches, sorted by name.

    Lists all objects below the fixed start of the pattern, a thousand in each request. Folder by folder, 100,000
    folders with one object each would take 100,000 requests.

    Args:
        pattern: the URL, for messages.
        path: the pattern in the form that the file system uses.

    Raises InputError for an invalid pattern, StoreError if the store can't be listed.
    """
    matches = _matcher(path, pattern)  # before a long listing
    listed = _objects(pattern, path)
    objects = {info["name"]: info for info in listed if info["type"] != "directory"}
    names = {info["name"] for info in listed if info["type"] == "directory"} | _parents(objects)
    folders: list[tuple[str, Info]] = [(name, {"name": name, "type": "directory", "size": 0}) for name in names]
    files = [
        (name, info)
        for name, info in objects.items()
        if info["size"] or not (name.endswith("/") or name in names)  # empty ones make consoles show a folder
    ]
    return _matching(folders + files, matches, path)


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


def _parents(names: Iterable[str]) -> set[str]:
    """Return all folders that hold objects: {"a/b/c"} -> {"a/b", "a"}."""
    found: set[str] = set()
    for name in names:
        while (name := name.rpartition("/")[0]) and name not in found:
            found.add(name)
    return found


def folder_glob(
    listing: Callable[[str], list[Info]], pattern: str, path: str, real: Callable[[str], str] = str
) -> list[tuple[str, Info]]:
    """Return the name and info of each file and folder that a pattern matches in a tree of folders, sorted by name.

    Args:
        listing: returns what a folder holds, or raises. Called only for folders that may lead to a match.
        pattern: the URL, for messages.
        path: the pattern in the form that the file system uses.
        real: returns the name of a folder without links.

    Raises InputError for an invalid pattern.
    """
    matches = _matcher(path, pattern)
    root = root_of(path)
    levels = _levels(path[path.rfind("/", 0, first_wildcard(path)) + 1 :], pattern)
    found = dict(_below(listing, root, levels, real))
    if found and (folder := root.rstrip("/")):
        found.setdefault(folder, {"name": folder, "type": "directory", "size": 0})
    return _matching(found.items(), matches, path)


def _below(
    listing: Callable[[str], list[Info]],
    folder: str,
    levels: list[PartMatcher | None],
    real: Callable[[str], str],
    above: tuple[str, ...] = (),
) -> Iterator[tuple[str, Info]]:
    """Yield what `folder` holds, and the folders below it that `levels` lead through.

    Args:
        listing: see folder_glob.
        folder: where to begin.
        levels: what matches the name of a folder on each level; None for any number of folders.
        real: see folder_glob.
        above: the real names of the folders that `**` led through.
    """
    level, rest = levels[0], levels[1:]
    if level is None:
        if real(folder) in above:
            return
        above = (*above, real(folder))
    for info in listing(folder):
        is_folder = info["type"] == "directory"
        name = info["name"].rstrip("/") if is_folder else info["name"]
        yield name, info
        if not is_folder or name == folder.rstrip("/"):
            continue
        if level is None:
            yield from _below(listing, name, levels, real, above)
        elif rest and level(name.rpartition("/")[2]):
            yield from _below(listing, name, rest, real)


def _matching(found: Iterable[tuple[str, Info]], matches: Callable[[str], object], path: str) -> list[tuple[str, Info]]:
    end = "/" if path.endswith("**") else ""  # the folder before ** matches too
    chosen = ((name, info) for name, info in found if matches(name + end * (info["type"] == "directory")))
    return sorted(chosen, key=lambda item: item[0])


def _matcher(path: str, pattern: str) -> Callable[[str], bool]:
    levels = _levels(path, pattern)
    if levels[-1] is None:
        levels.append(lambda _name: True)  # ** at the end does not match the folder before it, see _matching
    return lambda name: matches_parts(levels, name.split("/"))


def _levels(path: str, pattern: str) -> list[PartMatcher | None]:
    """Return what matches each part of a path: None for **, which also leads through folders without a name."""
    parts = path.split("/")
    if any("**" in part and part != "**" for part in parts):
        raise InputError(
            f"{pattern}: ** must be a whole part of the path, and matches any number of folders: write a*/**/*.txt"
        )
    special: dict[str, PartMatcher | None] = {"**": None, "*": bool}  # any name but an empty one
    return [special[part] if part in special else re.compile(translate(part)).match for part in parts]
