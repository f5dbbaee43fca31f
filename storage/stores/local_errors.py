"""Errors of a local disk as StoreErrors: the path, the system's reason, the file system and the next step."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenloom.errors import StoreError, WorkError
from tokenloom.storage.stores.local_files import describe_file_system

_LOST_MOUNT = (  # of a network or FUSE file system
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
_NO_PERMISSION = (errno.EACCES, errno.EPERM)
_NOT_DAMAGE = (*_LOST_MOUNT, *_NO_PERMISSION, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_ADVICE = {
    **dict.fromkeys(_LOST_MOUNT, "check that its file system is mounted"),
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "free space or raise the quota",
    errno.EROFS: "the file system is read-only: make it writable or choose another store,",
    errno.EACCES: "give this user permission to write there, or choose another store",
    errno.EPERM: "give this user permission to write there, or choose another store",
    errno.ENOTDIR: "a file is in the place of a folder: choose another store",
    errno.ENOTSUP: "two builds could publish the same name there: choose a store on another file system, or the URL of "
    "the bucket (gs://, s3://) that is mounted there,",
    errno.EXDEV: "work/ and versions/ of a dataset must be on one file system",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
}


@contextmanager
def translate_write_errors(path: Path) -> Iterator[None]:
    """Raise a failure to write the store's file `path` as a StoreError with reason and next step.

    A missing folder is raised as a WorkError: all temporary files are in work/, which something else has deleted.
    """
    try:
        yield
    except (FileExistsError, StoreError):
        raise
    except FileNotFoundError as error:
        raise WorkError(str(path)) from error
    except OSError as error:
        raise _not_written(path, error, _advice(error, "correct the cause")) from error


@contextmanager
def translate_temporary_errors() -> Iterator[None]:
    """Raise a failure to write a temporary file in TMPDIR as a StoreError with reason and next step."""
    import tempfile  # a reader of a local store does not need it

    folder = Path(tempfile.gettempdir())
    try:
        yield
    except (FileExistsError, StoreError):
        raise
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        if is_missing and folder.is_dir():  # another file is missing
            raise
        advice = "create this folder" if is_missing else _advice(error, "correct the cause")
        raise _not_written(folder, error, f"{advice}, or set TMPDIR to another folder,") from error


@contextmanager
def translate_read_errors(path: Path) -> Iterator[None]:
    """Raise a failure to read `path` as a StoreError, a missing file as FileNotFoundError."""
    try:
        yield
    except (FileNotFoundError, StoreError):
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
    except OSError as error:
        is_permitted = error.errno not in _NO_PERMISSION
        advice = _advice(error, "correct the cause") if is_permitted else "give this user permission to read it"
        raise StoreError(f"{path}: can't be read: {error.strerror or error}; {advice}") from error


def is_file_damage(error: OSError) -> bool:
    """Return whether a failure to read a local file means that the file is damaged.

    It does not if this process lacks permission, descriptors or memory, or if a mount is lost.
    """
    return getattr(error.__cause__ or error, "errno", None) not in _NOT_DAMAGE


def _advice(error: OSError, default: str) -> str:
    return _ADVICE.get(error.errno or 0, default)


def _not_written(path: Path, error: OSError, advice: str) -> StoreError:
    return StoreError(
        f"{path}: can't be written: {error.strerror or error} ({describe_file_system(path)}). Nothing "
        f"incomplete is visible; {advice} and run the same command again"
    )
