"""What errors of a local disk mean to whoever runs a build: the place, the reason, the file system, what to do."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenloom.errors import StoreError, WorkError
from tokenloom.storage.stores.disk_space import describe_file_system

_LOST_MOUNT = (  # of a file system that lies on another machine, or in a program
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENOTCONN,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
)
_NO_RIGHT = (errno.EACCES, errno.EPERM)
_NOT_OF_THE_FILE = (*_LOST_MOUNT, *_NO_RIGHT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_ADVICE = {
    **dict.fromkeys(_LOST_MOUNT, "see that its file system is mounted"),
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "free space or raise the quota",
    errno.EROFS: "the file system is read-only: choose another store",
    errno.EACCES: "give this user the right to write there, or choose another store",
    errno.EPERM: "give this user the right to write there, or choose another store",
    errno.ENOTDIR: "a file stands where a folder is needed: choose another store",
    errno.EXDEV: "work/ and versions/ of a dataset must lie on one file system",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
}


@contextmanager
def write_told(path: Path, *, or_else: str = "") -> Iterator[None]:
    """Turn a failure to write `path` into a StoreError that says why and what to do, `or_else` another way.

    A name that vanished under the writer is a WorkError: all temporaries lie in work/, which may be deleted.
    """
    try:
        yield
    except FileExistsError:
        raise
    except FileNotFoundError as error:
        raise WorkError(f"{path}: work/ was deleted while it was written; it is made again") from error
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        advice = _ADVICE.get(error.errno or 0, "correct the cause") + or_else
        raise StoreError(
            f"{path}: can't be written: {error.strerror or error} ({describe_file_system(path)}). Nothing of it is "
            f"visible; {advice} and run the same command again"
        ) from error


@contextmanager
def read_told(path: Path) -> Iterator[None]:
    """Turn a failure to read `path`, other than that nothing is there, into a StoreError."""
    try:
        yield
    except (FileNotFoundError, StoreError):
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
    except OSError as error:
        number = error.errno or 0
        advice = (
            "give this user the right to read it" if number in _NO_RIGHT else _ADVICE.get(number, "correct the cause")
        )
        raise StoreError(f"{path}: can't be read: {error.strerror or error}; {advice}") from error


def tells_of_the_file(error: OSError) -> bool:
    """Return whether an error of reading a local file, or what it was raised from, says something of that file.

    That this process has no right, no descriptor or no memory left, or that a mount is lost, says nothing of it.
    """
    return getattr(error.__cause__ or error, "errno", None) not in _NOT_OF_THE_FILE


def check_regular(path: Path) -> None:
    """Raise OSError if something else than a file stands at `path`: a pipe would never answer, a device never end."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def check_folder(folder: Path) -> None:
    """Raise OSError if no file can be made in `folder` or, while that is missing, in the nearest folder above it."""
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    try:
        with tempfile.TemporaryFile(dir=there):  # without a name where the file system supports that
            pass
    except FileNotFoundError as error:  # a place such as /proc, where nothing can be made
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there)) from error
