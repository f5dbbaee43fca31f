"""Match patterns of local files. A folder that can't be read is an error, never a folder without files.

The glob functions of Python and of fsspec silently skip folders that can't be read. Below `**`, those of pathlib and
fsspec skip linked folders, and that of glob follows a loop of links 40 times (docs/decisions.md). Here, `*`, `?` and
`[...]` match within one part of the path; `**`, as a whole part, matches any number of folders. Links are followed,
except below `**` a link that leads back to a folder above it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase

from tokenloom.errors import InputError
from tokenloom.spec.wildcards import first_wildcard, literal
from tokenloom.tasks.sources.files.opening import Info, translate_input_errors


def local_glob(pattern: str) -> list[tuple[str, Info]]:
    """Return the path, "type" and "size" of each file and folder that an absolute pattern matches, sorted by path.

    "type" is file, directory or other (a pipe, a broken link).

    Raises InputError if a folder on the way can't be read.
    """
    parts = [part for part in pattern.split("/") if part]
    return sorted((path, _info(path)) for path in set(_matches("/", parts, ())))


def local_info(path: str) -> Info:
    """Return the "type" and "size" of a file or folder; raises InputError if it does not exist or can't be read."""
    with translate_input_errors(path, "no such file; check the path"):
        return _described(os.stat(path))


def _matches(folder: str, parts: list[str], above: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths below `folder` that match.

    Args:
        folder: where to look.
        parts: the parts of the pattern that are still to match.
        above: the real paths of the folders that `**` led through.
    """
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
    is_fixed = first_wildcard(part) is None
    names = [literal(part)] if is_fixed else [name for name in _names(folder) if fnmatchcase(name, part)]
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


def _info(path: str) -> Info:
    found = _stat(path)
    return {"type": "other", "size": 0} if found is None else _described(found)


def _described(found: os.stat_result) -> Info:
    kind = "directory" if stat.S_ISDIR(found.st_mode) else "file" if stat.S_ISREG(found.st_mode) else "other"
    return {"type": kind, "size": found.st_size}


def _stat(path: str, follow: bool = True) -> os.stat_result | None:
    """Return the status of a path, None if nothing is there; raises InputError if the system can't say.

    (os.path.isdir would return False.)
    """
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL, which no name contains
        return None
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(
        f"{path}: can't be read: {error.strerror}; give this user permission to read it, or leave it out of the pattern"
    )
