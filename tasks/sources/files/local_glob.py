"""What a pattern of local files matches: every folder it leads through is read, or its name is told.

(fsspec's and Python's own leave out, without a word, folders that can't be read; fsspec's those behind links, too.)
`*`, `?` and `[...]` stay within a part of the path; `**`, a whole part, is any number of folders. Links are followed,
one that leads back to a folder above it is not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from tokenloom.errors import InputError

_MAGIC = frozenset("*?[")


def local_glob(pattern: str) -> list[tuple[str, dict[str, Any]]]:
    """Return (path, {"type", "size"}) of what an absolute pattern matches, folders too, sorted by path.

    "type" is file, directory or other (a pipe, a link to nothing).

    Raises InputError if a folder on the way can't be read.
    """
    parts = [part for part in pattern.split("/") if part]
    return sorted((path, _info(path)) for path in set(_matches("/", parts, ())))


def _matches(folder: str, parts: list[str], above: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths below `folder` that match; `above` are the real folders on the way, where `**` leads deeper."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        real = os.path.realpath(folder)
        if real in above:
            return
        yield from _matches(folder, rest, ()) if rest else [folder]
        for name in _names(folder):
            path = os.path.join(folder, name)
            if _is_folder(path):
                yield from _matches(path, parts, (*above, real))
            elif not rest:
                yield path
        return
    names = [name for name in _names(folder) if fnmatchcase(name, part)] if _MAGIC & set(part) else [part]
    for name in names:
        path = os.path.join(folder, name)
        if rest and _is_folder(path):
            yield from _matches(path, rest, ())
        elif not rest and _stat(path, follow=False):
            yield path


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):  # no such folder, or no longer
        return []
    except OSError as error:
        raise _unreadable(folder, error) from error


def _is_folder(path: str) -> bool:
    found = _stat(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def _info(path: str) -> dict[str, Any]:
    found = _stat(path)
    if found is None:
        return {"type": "other", "size": 0}
    kind = "directory" if stat.S_ISDIR(found.st_mode) else "file" if stat.S_ISREG(found.st_mode) else "other"
    return {"type": kind, "size": found.st_size}


def _stat(path: str, follow: bool = True) -> os.stat_result | None:
    """Return what stands at `path`, None for nothing; raises InputError if nobody can tell (os.path.isdir says no)."""
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: of what no name can hold, as NUL
        return None
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(
        f"{path}: can't be read: {error.strerror}; give this user the right to read it, or leave it out of the pattern"
    )
