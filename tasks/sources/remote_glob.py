"""What a pattern of remote files matches: a listing that fails is tried again or told, and no folder left out.

(fsspec's own glob leaves out, without a word, folders whose listing fails: s3fs walks through them so, and so do file
systems that have no listing of their own for a whole tree; `on_error="raise"` reaches their first level only.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fsspec.utils import glob_translate

from tokenloom.errors import InputError
from tokenloom.storage.stores.remote_retries import RemoteCalls
from tokenloom.storage.stores.s3 import list_s3
from tokenloom.storage.stores.urls import S3

Info = dict[str, Any]
_FIXED = re.compile(r"[^*?\[]*")


def object_glob(pattern: str, path: str) -> list[tuple[str, Info]]:
    """Return (name, fsspec info) of what a pattern of an object store matches, folders too, sorted by name.

    All objects below what stands before the first wildcard are listed, a thousand a request: folder by folder,
    100,000 folders of one object each would take 100,000 requests.

    Args:
        pattern: the URL, for messages.
        path: what the file system calls it.

    Raises InputError for a wrong pattern, StoreError if the store can't be listed.
    """
    matches = _matcher(path, pattern)  # before a long listing
    listed = _objects(pattern, path)
    objects = {info["name"]: info for info in listed if info["type"] != "directory"}
    names = {info["name"] for info in listed if info["type"] == "directory"} | _parents(objects)
    folders: list[tuple[str, Info]] = [(name, {"name": name, "type": "directory", "size": 0}) for name in names]
    files = [
        (name, info)
        for name, info in objects.items()
        if info["size"] or not (name.endswith("/") or name in names)  # else consoles show an empty folder by it
    ]
    return _matching(folders + files, matches, path)


def _objects(pattern: str, path: str) -> list[Info]:
    """Return what stands below the fixed part of a pattern: all objects, or of S3 one level if that is enough."""
    fixed = _fixed(path)
    bucket, mark, prefix = fixed.partition("/")
    if not mark:
        raise InputError(f"{pattern}: a wildcard in the bucket's name; name each bucket in a source of its own")
    calls = RemoteCalls(pattern)
    try:
        if calls.scheme in S3:  # its `find` takes a minute for the names of 40,000 folders
            return _s3_objects(calls, pattern, bucket, prefix, deep="/" in path[len(fixed) :] or "**" in path)
        folder, _, stem = fixed.rpartition("/")
        found = calls.call(pattern, "find", folder, prefix=stem, detail=True, many=True)
        if isinstance(found, list):  # Azure's, where an object is named as the folder
            found = calls.call(pattern, "find", bucket, prefix=prefix, detail=True, many=True)
        return list(found.values())
    except FileNotFoundError:
        return []


def _s3_objects(calls: RemoteCalls, pattern: str, bucket: str, prefix: str, deep: bool) -> list[Info]:
    try:
        return list_s3(calls, pattern, bucket, prefix, deep=deep)
    except FileNotFoundError as error:
        raise InputError(f"{pattern}: there is no bucket {bucket}; check its name") from error


def _parents(names: Iterable[str]) -> set[str]:
    """Return all folders that objects stand in: {"a/b/c"} -> {"a/b", "a"}."""
    found: set[str] = set()
    for name in names:
        while (name := name.rpartition("/")[0]) and name not in found:
            found.add(name)
    return found


def folder_glob(listing: Callable[[str], list[Info]], pattern: str, path: str) -> list[tuple[str, Info]]:
    """Return (name, fsspec info) of what a pattern matches in a tree of folders, folders too, sorted by name.

    Args:
        listing: what stands in a folder; its errors end this. Folders that can't lead to a match are not asked for.
        pattern: the URL, for messages.
        path: what the file system calls it.

    Raises InputError for a wrong pattern.
    """
    matches = _matcher(path, pattern)
    root = path[: _fixed(path).rfind("/") + 1]
    levels = [None if part == "**" else _matcher(part, pattern) for part in path[len(root) :].split("/")]
    found = dict(_below(listing, root, levels))
    if found and (folder := root.rstrip("/")):
        found.setdefault(folder, {"name": folder, "type": "directory", "size": 0})
    return _matching(found.items(), matches, path)


def _below(
    listing: Callable[[str], list[Info]], folder: str, levels: list[Callable[[str], object] | None]
) -> Iterator[tuple[str, Info]]:
    """Yield what stands in `folder` and in those below that `levels` lead through; None is any number of folders."""
    level, rest = levels[0], levels[1:]
    for info in listing(folder):
        is_folder = info["type"] == "directory"
        name = info["name"].rstrip("/") if is_folder else info["name"]
        yield name, info
        if not is_folder or name == folder.rstrip("/"):
            continue
        if level is None:
            yield from _below(listing, name, levels)
        elif rest and level(name.rpartition("/")[2]):
            yield from _below(listing, name, rest)


def _matching(found: Iterable[tuple[str, Info]], matches: Callable[[str], object], path: str) -> list[tuple[str, Info]]:
    end = "/" if path.endswith("**") else ""  # of folders: the one before ** matches, too
    chosen = ((name, info) for name, info in found if matches(name + end * (info["type"] == "directory")))
    return sorted(chosen, key=lambda item: item[0])


def _fixed(path: str) -> str:
    found = _FIXED.match(path)
    assert found
    return found[0]


def _matcher(path: str, pattern: str) -> Callable[[str], object]:
    try:
        # Between two "/" of a key stands a folder without a name, which ** leads through too.
        return re.compile(glob_translate(path).replace("(?:.+/)?", "(?:.*/)?")).match
    except ValueError as error:  # of "**" beside other characters
        raise InputError(
            f"{pattern}: ** is a part of its own, any number of folders: write a*/**/*.txt, or * within a part"
        ) from error
