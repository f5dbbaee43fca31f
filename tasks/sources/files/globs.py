"""Match patterns of files, local and remote. A listing that fails is retried or reported, never a folder without files.

The glob functions of Python and of fsspec silently skip folders that can't be read; on_error="raise" of fsspec works
for their first level only. Below `**`, those of pathlib and fsspec skip linked folders, and that of glob follows a loop
of links 40 times (docs/project/decisions.md). Here, `*`, `?` and `[...]` match within one part of the path; `**`, as a
whole part, matches any number of folders. Links are followed, except below `**` a link that leads back to a folder
above it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import translate

from tokenloom.errors import InputError
from tokenloom.spec.wildcards import PartMatcher, first_wildcard, literal, matches_parts, root_of
from tokenloom.storage.stores.remote_retries import RemoteCalls
from tokenloom.storage.stores.s3 import list_s3
from tokenloom.storage.stores.urls import S3
from tokenloom.tasks.sources.files.opening import Info, translate_input_errors


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
    calls = RemoteCalls(pattern)
    try:
        if calls.scheme in S3:  # the `find` of s3fs takes a minute for 40,000 folders
            return list_s3(calls, pattern, bucket, prefix, deep="/" in path[start:] or "**" in path)
        folder, _, stem = f"{bucket}/{prefix}".rpartition("/")
        found = calls.call(pattern, "find", folder, prefix=stem, detail=True, many=True)
        if isinstance(found, list):  # Azure, if an object has the name of the folder
            found = calls.call(pattern, "find", bucket, prefix=prefix, detail=True, many=True)
        return list(found.values())
    except FileNotFoundError as error:
        if calls.scheme in S3:
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
