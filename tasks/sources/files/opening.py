"""Opening input files, local or remote; every error becomes an InputError that names the file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import IO, Any

from tokenloom.errors import FormatError, InputError, StoreError, TokenloomError, message_of
from tokenloom.storage.stores.local_files import LFS_BYTES, LFS_POINTER, NO_LFS_FILE, open_regular
from tokenloom.storage.stores.remote_errors import is_permanent, is_transient, kind_of, redacted, without_secrets
from tokenloom.storage.stores.remote_retries import RemoteCalls
from tokenloom.storage.stores.store_file import StoreFile
from tokenloom.storage.stores.urls import is_object
from tokenloom.tasks.sources.files.shared_files import open_url

Info = dict[str, Any]  # what fsspec says about a file: "name", "type" and "size" at least
HUB_STEP = (
    "check the network, HTTPS_PROXY and HF_HUB_OFFLINE; or fetch the files with `hf download` elsewhere, and give "
    "their folder"
)
_opened: ContextVar[list[IO[bytes]] | None] = ContextVar("opened", default=None)  # filled for following_position


def is_local(url: str) -> bool:
    """Return whether `url` is a path on this machine."""
    return "://" not in url or url.startswith(("file://", "local://"))


def local_path(url: str) -> str:
    """Return a local path without its protocol, with each run of "/" as one."""
    return re.sub("//+", "/", url.removeprefix("file://").removeprefix("local://"))


def filesystem_of(pattern: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the name that the file system uses for it.

    For an object store the first item is the class of the file system. Raises InputError if no file system reads the
    URL.
    """
    import fsspec  # local files do not need it, and it imports asyncio and ssl

    if is_local(pattern):  # "::" in a local name does not chain file systems
        return fsspec.filesystem("file"), local_path(pattern)
    try:
        if is_object(pattern):  # RemoteCalls has its own file system; a second one would look for credentials again
            kind = fsspec.get_filesystem_class(pattern.partition("://")[0])
            return kind, str(kind._strip_protocol(pattern))
        with translate_input_errors(pattern):  # hf:// asks the hub here
            return fsspec.core.url_to_fs(pattern)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        reason = message_of(error)
        raise InputError(f"{pattern}: this kind of URL can't be read here: {reason}; copy the files") from error


def info_of(url: str) -> Info:
    """Return what the file system says about a file now; raises InputError if the file does not exist."""
    filesystem, name = filesystem_of(url)
    return info_in(filesystem, name, url)


def info_in(filesystem: Any, name: str, url: str) -> Info:
    """Return what a file system says about the file `name`; raises InputError, naming `url`, if it does not exist."""
    with translate_input_errors(url):
        try:
            if is_object(url):
                return dict(RemoteCalls(url).call(url, "info", name))
            filesystem.invalidate_cache()
            return dict(filesystem.info(name))
        except FileNotFoundError as error:
            if kind_of(error) == "missing":
                raise InputError(f"{url}: no such file; check the path") from error
            raise


def input_bytes(url: str) -> int:
    """Return the length of an input file in bytes; raises InputError if it can't be read."""
    with translate_input_errors(url):
        if "://" not in url:
            return os.stat(url).st_size
        if is_object(url):
            with open_url(url) as file:
                return file.size()
        filesystem, name = filesystem_of(url)
        return int(filesystem.size(name))


def open_file(url: str) -> AbstractContextManager[IO[bytes]]:
    """Open a local path or a URL for reading; "::" in a local name does not chain file systems."""
    if is_local(url):
        return open_regular(local_path(url))
    if is_object(url):
        return open_url(url)  # type: ignore[return-value]  # it has all of IO[bytes] that readers use
    filesystem, name = filesystem_of(url)
    opened: AbstractContextManager[IO[bytes]] = filesystem.open(name, "rb")
    return opened


@contextmanager
def open_input(url: str) -> Iterator[IO[bytes]]:
    """Open an input file for reading; raises InputError if it is missing or can't be read."""
    deleted = "the file was deleted after the build was planned; build again"
    with translate_input_errors(url, deleted), open_file(url) as file:
        if (opened := _opened.get()) is not None:
            opened.append(file)
        size = None if is_local(url) else getattr(file, "size", None)
        num_bytes = size() if callable(size) else size
        if num_bytes is not None and num_bytes < LFS_BYTES:  # a pointer is small; open_regular refuses local ones
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise InputError(f"{url}: {NO_LFS_FILE}")
            file.seek(0)
        yield file


def announce(file: IO[bytes], ranges: Iterable[tuple[int, int]]) -> None:
    """Announce which byte ranges [start, end) of an open input will be read, so that few remote requests fetch them."""
    raw = getattr(file, "raw", file)
    if isinstance(raw, StoreFile):
        raw.announce(ranges)


@contextmanager
def translate_input_errors(url: str, missing: str | None = None) -> Iterator[None]:
    """Translate file system errors in the block into InputErrors that name the file.

    Args:
        url: the file's path or URL.
        missing: the reason to report for a missing file; the system's own by default.
    """
    try:
        yield
    except Exception as error:
        kind = kind_of(error)
        if isinstance(error, StoreError | FormatError):  # about an input file, and already complete
            raise InputError(str(error)) from error
        if isinstance(error, TokenloomError) or (
            kind == "other" and not isinstance(error, OSError) and not is_permanent(error)
        ):
            raise
        if kind == "missing" and missing:
            raise InputError(f"{url}: {missing}") from error
        reason = redacted(getattr(error, "strerror", None) or message_of(error))
        next_step = "run the build again" if is_transient(error) else "check the file"
        if url.startswith("hf://") and is_permanent(error):
            next_step = HUB_STEP
        raise InputError(f"{url}: can't be read: {reason}; {next_step}") from without_secrets(error)


@contextmanager
def following_position() -> Iterator[Callable[[], int | None]]:
    """Provide a function that returns the byte position in the input file opened last, None if none is open."""
    opened: list[IO[bytes]] = []
    token = _opened.set(opened)

    def position() -> int | None:
        return next((file.tell() for file in reversed(opened) if not file.closed), None)

    try:
        yield position
    finally:
        _opened.reset(token)
