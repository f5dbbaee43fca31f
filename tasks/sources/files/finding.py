"""Finding input files: which ones a pattern matches, with their sizes and fingerprints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tokenloom.console import locale_advice
from tokenloom.errors import InputError
from tokenloom.spec.leave_out import LeaveOut
from tokenloom.spec.wildcards import first_wildcard, literal, passes_over, root_of
from tokenloom.storage.stores.remote_errors import kind_of
from tokenloom.storage.stores.urls import is_object
from tokenloom.storage.work.fingerprints import remote_fingerprint
from tokenloom.tasks.sources.files.downloads import copied, needs_copy
from tokenloom.tasks.sources.files.globs import folder_glob, local_glob, local_info, object_glob
from tokenloom.tasks.sources.files.opening import (
    Info,
    filesystem_of,
    info_in,
    input_bytes,
    is_local,
    local_path,
    translate_input_errors,
)

PINNED = "commit:"  # starts the fingerprint of a file that never changes
_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.zst", ".tar.xz", ".7z", ".rar")
_ARCHIVE_URLS = ("zip://", "tar://", "libarchive://")
_EXTRACT = "the files in an archive are not read; extract it (unzip, tar -xf, 7z x) and give the path of its files"
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
    if pattern.startswith(_ARCHIVE_URLS):
        raise InputError(f"{pattern}: {_EXTRACT}")
    root, found = match(pattern, leave_out)
    if archive := next((name for name, info in found if name.endswith(_ARCHIVES) and info["type"] == "file"), None):
        raise InputError(f"{archive}: {_EXTRACT}, or name it in leave_out")
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
