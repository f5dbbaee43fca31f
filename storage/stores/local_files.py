"""Files and folders of a local disk: durable writes, hashes, checks, free space; errors that say what to do."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, TYPE_CHECKING

from tokenloom.errors import StoreError

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # how it begins; it is never longer than LFS_BYTES
LFS_BYTES = 1024
NO_LFS_FILE = "a pointer of Git LFS, not the file itself: run `git lfs pull` where it was cloned"
_WRITE_BYTES = 2**18  # for larger writes, a guest may have to get memory from its host: docs/project/decisions.md
#: errors that mean damage: of the device or file system, or of a file that is not a regular one
DAMAGE = (errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENXIO)
_ADVICE = {
    **dict.fromkeys((errno.ESTALE, errno.ENOTCONN), "check that its file system is mounted"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space on that file system (or inodes), or raise the quota"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "give this user permission, or choose another folder"),
    errno.ENOTDIR: "a file is in the place of a folder: choose another store",
    errno.ENOTSUP: "two builds could publish the same name there: choose a store on another file system, or the URL of "
    "the bucket (gs://, s3://) that is mounted there",
    errno.EXDEV: "work/ and versions/ of a dataset must be on one file system",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"),
}


def write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write all of `data`, contiguous; call it as `local_files.write_all`, so that tests can make any write fail.

    Arrow alone writes to a store without it: the document tables.
    """
    view = memoryview(data).cast("B")
    for start in range(0, len(view), _WRITE_BYTES):
        file.write(view[start : start + _WRITE_BYTES])


@contextmanager
def syncing(file: IO[bytes]) -> Iterator[Callable[[], None]]:
    """Yield a function that starts to write what `file` holds so far to the device, while the block goes on.

    The block ends when all that was started is written; raises OSError then if that fails.
    """
    from concurrent.futures import ThreadPoolExecutor  # a reader writes no file

    with ThreadPoolExecutor(1) as thread:
        started: list[Future[None]] = []
        yield lambda: started.append(thread.submit(os.fsync, file.fileno()))
        for future in started:
            future.result()


@contextmanager
def writing_atomically(
    final: Path, temporary: Path | None = None, *, durable: bool = False, exclusive: bool = False
) -> Iterator[IO[bytes]]:
    """Open a new file that gets its final name, also in place of a file there, when the block ends without an error.

    Args:
        final: the final name.
        temporary: its name until then, on the same file system; None for one beside the final name.
        durable: wait until the file and its name are on the device.
        exclusive: replace nothing.

    Raises OSError, of which FileExistsError means that `exclusive` met a file.
    """
    temporary = temporary or final.with_name(f"{final.name}.{os.urandom(16).hex()}")
    try:
        with temporary.open("x+b") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        (name_exclusively if exclusive else os.replace)(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)
    try:
        if durable:
            sync_folder(final.parent)
    except OSError:
        if exclusive:  # a power failure could undo the name after others have relied on it
            final.unlink(missing_ok=True)
        raise


def replace_file(path: Path, data: bytes) -> None:
    """Write a file of this machine's cache, or replace it, and make its folder; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing_atomically(path) as file:
        file.write(data)


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on the device."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(file: IO[bytes]) -> str:
    """Return the SHA-256 of all bytes of an open file, in hexadecimal."""
    import hashlib  # OpenSSL takes 3 ms to load, and most readers hash no file

    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def open_regular(path: Path | str) -> io.BufferedReader:
    """Open a regular file for reading; raises OSError for anything else.

    Opening a pipe may block, and reading a device may never end.
    """
    return open(path, "rb", opener=descriptor_of_regular)


def read_regular(path: Path | str) -> bytes:
    """Return the bytes of a regular file; raises OSError for anything else."""
    with open_regular(path) as file:
        return file.read()


def descriptor_of_regular(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Return a new descriptor of a regular file; raises OSError for anything else, and for a pointer of Git LFS."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # does not wait for the writer of a pipe
    status = os.fstat(descriptor)
    problem = "" if stat.S_ISREG(status.st_mode) else "not a regular file"
    if not problem and status.st_size < LFS_BYTES and os.pread(descriptor, len(LFS_POINTER), 0) == LFS_POINTER:
        problem = NO_LFS_FILE
    if not problem:
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, problem, str(path))


def name_exclusively(source: Path, final: Path) -> None:
    """Give a complete file its final name by a hard link; exactly one of several callers succeeds. `source` may remain.

    Where a file system links only within a folder (BeeGFS, AFS), the file moves there first.

    Raises:
        FileExistsError: the name exists.
        OSError: ENOTSUP if the file system has no hard links (exFAT, many shares of Windows).
    """
    try:
        os.link(source, final)
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise OSError(errno.ENOTSUP, "the file system has no hard links") from error
        if error.errno != errno.EXDEV:
            raise
        beside = final.with_name(f".{final.name}.{os.urandom(16).hex()}")
        try:
            os.replace(source, beside)
            os.link(beside, final)
        finally:
            beside.unlink(missing_ok=True)


def existing_parent(path: Path) -> Path:
    """Return `path` if it exists, else the nearest of its parents that does."""
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))


@contextmanager
def translate_errors(path: Path, verb: str = "read", remedy: str = "") -> Iterator[None]:
    """Raise an OSError about a local file or folder as a StoreError with the reason and the next step.

    FileNotFoundError and FileExistsError stay as they are. A read below a file in place of a folder finds no file.

    Args:
        path: the file or folder, for messages.
        verb: the operation that fails: "read" or "written".
        remedy: another next step.
    """
    try:
        yield
    except (FileExistsError, FileNotFoundError, StoreError):
        raise
    except OSError as error:
        if verb == "read" and isinstance(error, NotADirectoryError):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
        message = f"{path}: can't be {verb}: {error.strerror or error}"
        advice = _ADVICE.get(error.errno or 0, "correct the cause") + remedy
        if verb == "written":
            advice += ", and run the same command again"
        raise StoreError(f"{message}; {advice}") from error


def translate_temporary_errors() -> AbstractContextManager[None]:
    """Raise an OSError about a temporary file in TMPDIR as a StoreError; see translate_errors."""
    import tempfile  # a reader of a local store does not need it
    from pathlib import Path

    return translate_errors(Path(tempfile.gettempdir()), "written", ", or set TMPDIR to another folder")
