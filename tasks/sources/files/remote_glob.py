"""Match patterns of remote files. A listing that fails is retried or reported, never a folder without files.

fsspec's glob silently skips folders whose listing fails: s3fs does so, and so do file systems that can't list a whole
tree at once; `on_error="raise"` works for their first level only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from tokenloom.errors import InputError
from tokenloom.storage.stores.remote_retries import RemoteCalls
from tokenloom.storage.stores.s3 import list_s3
from tokenloom.storage.stores.urls import S3
from tokenloom.tasks.sources.files.opening import Info

_FIXED = re.compile(r"[^*?\[]*")  # the start of a pattern without wildcards


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
    fixed = _fixed(path)
    bucket, mark, prefix = fixed.partition("/")
    if not mark:
        raise InputError(f"{pattern}: a wildcard in the bucket's name; give each bucket a source of its own")
    calls = RemoteCalls(pattern)
    try:
        if calls.scheme in S3:  # the `find` of s3fs takes a minute for 40,000 folders
            return _s3_objects(calls, pattern, bucket, prefix, deep="/" in path[len(fixed) :] or "**" in path)
        folder, _, stem = fixed.rpartition("/")
        found = calls.call(pattern, "find", folder, prefix=stem, detail=True, many=True)
        if isinstance(found, list):  # Azure, if an object has the name of the folder
            found = calls.call(pattern, "find", bucket, prefix=prefix, detail=True, many=True)
        return list(found.values())
    except FileNotFoundError:
        return []


def _s3_objects(calls: RemoteCalls, pattern: str, bucket: str, prefix: str, deep: bool) -> list[Info]:
    try:
        return list_s3(calls, pattern, bucket, prefix, deep=deep)
    except FileNotFoundError as error:
        raise InputError(f"{pattern}: bucket {bucket} does not exist; check its name") from error


def _parents(names: Iterable[str]) -> set[str]:
    """Return all folders that hold objects: {"a/b/c"} -> {"a/b", "a"}."""
    found: set[str] = set()
    for name in names:
        while (name := name.rpartition("/")[0]) and name not in found:
            found.add(name)
    return found


def folder_glob(listing: Callable[[str], list[Info]], pattern: str, path: str) -> list[tuple[str, Info]]:
    """Return the name and info of each file and folder that a pattern matches in a tree of folders, sorted by name.

    Args:
        listing: returns what a folder holds, or raises. Called only for folders that may lead to a match.
        pattern: the URL, for messages.
        path: the pattern in the form that the file system uses.

    Raises InputError for an invalid pattern.
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
    """Yield what `folder` holds, and the folders below it that `levels` lead through.

    Args:
        listing: see folder_glob.
        folder: where to begin.
        levels: what matches the name of a folder on each level; None for any number of folders.
    """
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
    end = "/" if path.endswith("**") else ""  # the folder before ** matches too
    chosen = ((name, info) for name, info in found if matches(name + end * (info["type"] == "directory")))
    return sorted(chosen, key=lambda item: item[0])


def _fixed(path: str) -> str:
    found = _FIXED.match(path)
    assert found
    return found[0]


def _matcher(path: str, pattern: str) -> Callable[[str], object]:
    from fsspec.utils import glob_translate  # see opening.filesystem_of

    try:
        # Two "/" in a row in a key are a folder without a name; ** leads through it too.
        return re.compile(glob_translate(path).replace("(?:.+/)?", "(?:.*/)?")).match
    except ValueError as error:  # "**" beside other characters
        raise InputError(
            f"{pattern}: ** must be a whole part of the path, and matches any number of folders: write a*/**/*.txt"
        ) from error
