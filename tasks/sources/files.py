"""Open input files, local or remote, plain or compressed; every error becomes an InputError that names the file."""

from __future__ import annotations

import io
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import IO, Any, TypeVar, cast

import pyarrow as pa

from tokenloom.errors import FormatError, InputError, StoreError, TokenloomError, message_of
from tokenloom.storage.stores import bucket_and_key, is_object, scheme_of
from tokenloom.storage.stores.local_files import LFS_BYTES, LFS_POINTER, NO_LFS_FILE, open_regular
from tokenloom.storage.stores.remote import RemoteStore
from tokenloom.storage.stores.remote_calls import call
from tokenloom.storage.stores.remote_errors import (
    is_permanent,
    is_transient,
    kind_of,
    seconds_to_wait,
    without_secrets,
)
from tokenloom.storage.stores.store import BLOCK_BYTES, StoreFile
from tokenloom.tasks.running import progress
from tokenloom.wording import duration, redacted

Answer = TypeVar("Answer")
Info = dict[str, Any]  # fsspec's facts about a file: "name", "type" and "size" at least
DOWNLOAD = "download it, and give its path"
HUB_STEP = (
    "check the network, HTTPS_PROXY and HF_HUB_OFFLINE; or fetch the files with `hf download` elsewhere, and give "
    "their folder"
)
_DELETED = "the file was deleted after the build was planned; build again"
_opened: ContextVar[list[IO[bytes]] | None] = ContextVar("opened", default=None)  # filled for following_position
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
# The first bytes of gzip, bz2, zstd, xz, zip, parquet and Arrow.
_NOT_TEXT = (b"\x1f\x8b\x08", b"BZh91AY&SY", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"PK\x03\x04", b"PAR1", b"ARROW1")
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.zst", ".zip", ".7z", ".rar")
_UNSUPPORTED = (*_ARCHIVES, ".xz", ".lz4", ".lzma", ".br", ".Z")
_BUFFER_BYTES = 2**20
_MAX_WAIT_SECONDS = 900  # in all, for a server that says when to come back; the Hub's windows are five minutes long
_MAX_SHARED = 3  # files that stay open, each with its blocks: tokens, their index and mask


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
        if is_object(pattern):  # stores have their own file systems; another one would look for credentials again
            kind = fsspec.get_filesystem_class(pattern.partition("://")[0])
            return kind, str(kind._strip_protocol(pattern))
        with translate_input_errors(pattern):  # hf:// asks the hub here
            return fsspec.core.url_to_fs(pattern)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        reason = message_of(error)
        raise InputError(f"{pattern}: this kind of URL can't be read here: {reason}; copy the files") from error


def info_of(url: str) -> Info:
    """Return the "type" and "size" of a file or folder, and other facts that its file system gives now.

    Raises InputError if it does not exist or can't be read.
    """
    with translate_input_errors(url, "no such file; check the path"):
        if is_local(url):
            found = os.stat(local_path(url))
            is_file = stat.S_ISREG(found.st_mode)
            is_folder = stat.S_ISDIR(found.st_mode)
            return {"type": "directory" if is_folder else "file" if is_file else "other", "size": found.st_size}
        filesystem, name = filesystem_of(url)
        if is_object(url):
            return dict(call(url, "info", name))
        filesystem.invalidate_cache()
        return dict(waiting_if_told(lambda: filesystem.info(name)))


def waiting_if_told(ask: Callable[[], Answer]) -> Answer:
    """Return the answer to a request; if a busy server says when to come back, wait and ask again, at least a second.

    Raises the error of the request if the server says nothing, or more than _MAX_WAIT_SECONDS in all.
    """
    waited = 0.0
    while True:
        try:
            return ask()
        except Exception as error:
            seconds = seconds_to_wait(error)
            if seconds is None or waited + seconds > _MAX_WAIT_SECONDS:
                raise
        seconds = max(1.0, seconds)
        progress.report(progress.Message(f"the server is busy and says when to come back; waiting {duration(seconds)}"))
        time.sleep(seconds)
        waited += seconds


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
    with translate_input_errors(url, _DELETED), open_file(url) as file:
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
        has_no_ranges = isinstance(error, ValueError) and url.startswith(("http://", "https://"))
        is_known = kind != "other" or isinstance(error, OSError) or is_permanent(error) or has_no_ranges
        if isinstance(error, TokenloomError) or not is_known:
            raise
        if kind == "missing" and missing:
            raise InputError(f"{url}: {missing}") from error
        reason = redacted(getattr(error, "strerror", None) or message_of(error))
        next_step = "run the build again" if is_transient(error) else "check the file"
        if has_no_ranges:
            next_step = DOWNLOAD
        if isinstance(error, PermissionError):
            next_step = "give this user permission to read it, or leave it out"
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


def compression(url: str) -> str | None:
    """Return the compression that a file's name implies: gzip, bz2, zstd or None; raises InputError for any other."""
    if url.endswith(_UNSUPPORTED):
        known = f"{', '.join(_CODECS)} or none"
        raise InputError(
            f"{url}: this archive or compression is not supported; extract it, or recreate it with {known}"
        )
    return next((codec for suffix, codec in _CODECS.items() if url.endswith(suffix)), None)


def _check_plain(url: str, file: IO[bytes]) -> None:
    """Raise InputError for a file that is clearly not text, whatever the rules for bad bytes say."""
    head = file.read(10)
    file.seek(0)
    if head.startswith(_NOT_TEXT):
        raise InputError(
            f"{url}: not text, but compressed, parquet or Arrow; end its name in {', '.join(_CODECS)} if it is such a "
            "file, set the kind that reads it, or leave it out"
        )


@contextmanager
def open_decompressed(url: str) -> Iterator[IO[bytes]]:
    """Open an input file for reading forwards, decompressed if its name implies it.

    Arrow's codecs read several members and detect a truncated file; its gzip is 2.5 times as fast as Python's.

    Raises InputError if it is missing, can't be read, or is broken.
    """
    codec = compression(url)
    with open_input(url) as file:
        if codec is None:
            _check_plain(url, file)
            # The readline of fsspec's files takes no maximum.
            yield file if is_local(url) else cast(IO[bytes], io.BufferedReader(cast(io.RawIOBase, file), _BUFFER_BYTES))
            return
        num_bytes = input_bytes(url)
        announce(file, [(0, num_bytes)])
        if num_bytes == 0:
            raise InputError(f"{url}: the file is empty, so it is not a {codec} file; recreate it")
        try:
            stream = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
            yield cast(IO[bytes], io.BufferedReader(stream, _BUFFER_BYTES))
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:  # not raised by the codec
                raise
            raise InputError(
                f"{url}: broken {codec}: {message_of(error)}; recreate the file or leave it out"
            ) from error


class _InputFile(StoreFile):
    """A StoreFile that raises InputErrors, so that decoders do not mistake a failed request for damaged data."""

    def _block(self, position: int) -> tuple[int, bytes]:
        with translate_input_errors(self._store.place(self._path), _DELETED):
            return super()._block(position)


_shared: ContextVar[tuple[dict[str, StoreFile], int] | None] = ContextVar("_shared", default=None)


@contextmanager
def sharing_files(block_bytes: int = BLOCK_BYTES) -> Iterator[None]:
    """Make `open_url` reuse a file, with its kept blocks, each time it is opened in the with-block."""
    token = _shared.set(({}, block_bytes))
    try:
        yield
    finally:
        _shared.reset(token)


@contextmanager
def open_url(url: str) -> Iterator[StoreFile]:
    """Open a file of a remote store by its URL; errors as StoreFile."""
    files, block_bytes = _shared.get() or ({}, BLOCK_BYTES)
    if url not in files:
        bucket, key = bucket_and_key(url)
        while len(files) >= _MAX_SHARED:
            del files[next(iter(files))]
        files[url] = _InputFile(RemoteStore(f"{scheme_of(url)}://{bucket}"), key, block_bytes)
    files[url].seek(0)
    yield files[url]
