"""Files of sources: which ones a pattern matches, and their bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

import fsspec

from tokenloom.errors import FormatError, InputError, StoreError, TokenloomError, said
from tokenloom.spec.leave_out import LeaveOut
from tokenloom.storage.stores.remote_errors import is_transient, kind_of, redacted, without_secrets
from tokenloom.storage.stores.remote_retries import RemoteCalls
from tokenloom.storage.stores.store_file import StoreFile, open_url
from tokenloom.storage.stores.urls import is_object
from tokenloom.storage.versions.fingerprints import remote_fingerprint
from tokenloom.tasks.sources.local_glob import local_glob
from tokenloom.tasks.sources.remote_glob import folder_glob, object_glob
from tokenloom.words import counted

PINNED = "commit:"  # a fingerprint with this prefix names what never changes
_WILDCARDS = "*?["
_SURROGATES = re.compile("[\ud800-\udfff]")  # what Python makes of bytes that are not UTF-8
_listeners: list[list[IO[bytes]]] = []


@dataclass(frozen=True)
class FoundFile:
    """One file of a source; `path` is relative to the source's root, `url` is where it lies.

    `fingerprint` is None for a local file: its content tells it. `options` replace those of the source for reading it;
    with `stream` among them the source's files are read as one.
    """

    path: str
    url: str
    num_bytes: int
    fingerprint: str | None
    options: dict[str, Any] = field(default_factory=dict)


def find_files(pattern: str, leave_out: LeaveOut | None = None) -> list[FoundFile]:
    """Return the files that match, sorted by path.

    Args:
        pattern: a file or glob, absolute or an fsspec URL. `path` is relative to its root: up to the last "/"
            before the first wildcard; without one, the file's folder.
        leave_out: of the files that match, those to leave out.

    Raises InputError if no file matches, all are left out, or something else than a file matches.
    """
    root, found = match(pattern, leave_out)
    files = []
    for name, info in found:
        if info["type"] == "directory":
            if pattern.rsplit("/", 1)[-1] in ("*", "**"):
                continue
            place = name if is_local(pattern) else f"{pattern.partition('://')[0]}://{name}"
            raise InputError(
                f"{place}: a folder, where {pattern} should match files; write {place}/* to mean its files, or name it "
                "in leave_out"
            )
        if info["type"] != "file":  # a pipe, a socket, a link to nothing
            raise InputError(f"{name}: not a regular file; leave it out of {pattern}, or name it in leave_out")
        files.append(found_file(name.removeprefix(root), name, pattern, info))
    if not files and leave_out and (num_files := leave_out.num_taken):
        raise InputError(
            f"{pattern}: leave_out leaves out {counted(num_files, 'file')}, and none is left; check its patterns"
        )
    if not files:
        odd = "; a name that holds [ is written with [[] for it" if "[" in pattern else ""
        raise InputError(f"{pattern}: no file matches; check the path, and quote wildcards in a shell{odd}")
    return files


def match(pattern: str, leave_out: LeaveOut | None = None) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """Return the root of a pattern, and (name, fsspec info) of what it matches, folders too, sorted by name.

    What `leave_out` takes is not there.
    """
    filesystem, stripped = filesystem_of(pattern)
    wildcard = min((i for i in map(stripped.find, _WILDCARDS) if i >= 0), default=None)
    root = stripped[: stripped.rfind("/", 0, wildcard) + 1]
    is_query = stripped.startswith(("http://", "https://")) and not set("*[") & set(stripped)  # no wildcard: ?name=
    if wildcard is None or is_query:
        found = [(stripped, _info(filesystem, stripped, pattern))]
        return root, leave_out.kept(found, root) if leave_out else found
    with naming(pattern):
        if is_object(pattern):
            found = object_glob(pattern, stripped)
        elif is_local(pattern):
            found = local_glob(stripped)
        else:
            filesystem.invalidate_cache()  # of listings, which this process may have made for an earlier build
            found = folder_glob(partial(_listed, filesystem), pattern, stripped)
    if leave_out is not None:
        found = leave_out.kept(found, root)
    if odd := next((name for name, _ in found if _SURROGATES.search(name)), None):
        raise InputError(
            f"{odd!a}: its name is not UTF-8, so the inputs of a version can't name it; rename it, or set leave_out"
        )
    return root, found


def _listed(filesystem: Any, folder: str) -> list[dict[str, Any]]:
    """Return what stands in a folder, nothing if there is none; raises InputError, which names it, for all else."""
    with naming(str(filesystem.unstrip_protocol(folder))):
        try:
            return list(filesystem.ls(folder, detail=True))
        except (FileNotFoundError, NotADirectoryError) as error:
            if kind_of(error) == "transient":
                raise
            return []


def info_of(url: str) -> dict[str, Any]:
    """Return what the file system of a URL says of it now; raises InputError if there is no such file."""
    filesystem, name = filesystem_of(url)
    return _info(filesystem, name, url)


def _info(filesystem: Any, name: str, pattern: str) -> dict[str, Any]:
    with naming(pattern):
        try:
            if is_object(pattern):
                return dict(RemoteCalls(pattern).call(pattern, "info", name))
            filesystem.invalidate_cache()
            return dict(filesystem.info(name))
        except FileNotFoundError as error:
            if kind_of(error) == "missing":
                raise InputError(f"{pattern}: no such file; check the path") from error
            raise


def found_file(path: str, name: str, pattern: str, info: dict[str, Any] | None = None) -> FoundFile:
    """Return a file of the file system of `pattern`; raises InputError if it is missing.

    Args:
        path: of the source's root.
        name: where it lies, as that file system spells it.
        pattern: a path or URL of the same file system.
        info: what that says of it, if it was asked.
    """
    if is_local(pattern):
        return FoundFile(path, name, int(info["size"]) if info else input_bytes(name), None)
    files = filesystem_of(pattern)[0]
    url = _object_url(pattern, name) if is_object(pattern) else str(files.unstrip_protocol(name))
    with naming(url):
        info = info or _info(files, name, url)
    return FoundFile(path, url, int(info["size"]), remote_fingerprint(info, url))


def _object_url(pattern: str, name: str) -> str:
    """Return the URL of an object: its bucket as the pattern has it, perhaps with an account, and its key."""
    protocol, mark, path = pattern.partition("://")
    return f"{protocol}{mark}{path.partition('/')[0]}/{name.partition('/')[2]}"


def filesystem_of(pattern: str) -> tuple[Any, str]:
    """Return the file system of a path or URL (of an object's, its class) and what it calls it; raises InputError."""
    if is_local(pattern):  # "::" in a local name is no chain of file systems
        return fsspec.filesystem("file"), local_path(pattern)
    try:
        if is_object(pattern):  # RemoteCalls has a file system of its own; another would look for credentials again
            kind = fsspec.get_filesystem_class(pattern.partition("://")[0])
            return kind, str(kind._strip_protocol(pattern))
        return fsspec.core.url_to_fs(pattern)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        raise InputError(f"{pattern}: this kind of URL can't be read here: {said(error)}; copy the files") from error


def local_path(url: str) -> str:
    """Return a path of this machine without its protocol, runs of "/" as one."""
    return re.sub("//+", "/", url.removeprefix("file://").removeprefix("local://"))


def is_local(url: str) -> bool:
    """Return whether `url` is a path of this machine."""
    return "://" not in url or url.startswith(("file://", "local://"))


def open_file(url: str) -> AbstractContextManager[IO[bytes]]:
    """Open a local path or a URL for reading; "::" in a local name is no chain of file systems."""
    if "://" not in url:
        return open(url, "rb")  # noqa: PTH123  (a str path, as fsspec gives it; the caller closes it)
    if is_object(url):
        return open_url(url)  # type: ignore[return-value]  # it has all of IO[bytes] that readers use
    opened: AbstractContextManager[IO[bytes]] = fsspec.open(url, "rb")
    return opened


@contextmanager
def open_input(url: str) -> Iterator[IO[bytes]]:
    """Open an input file for reading; raises InputError if it is missing or can't be read."""
    with naming(url, "the file is gone; it was there when the build was planned; build again"), open_file(url) as file:
        for opened in _listeners:
            opened.append(file)
        yield file


def expect(file: IO[bytes], ranges: Iterable[tuple[int, int]]) -> None:
    """Say which bytes of an open input will be read, so that a remote one is asked for these in few requests."""
    raw = getattr(file, "raw", file)
    if isinstance(raw, StoreFile):
        raw.expect(ranges)


@contextmanager
def naming(url: str, missing: str | None = None) -> Iterator[None]:
    """Turn the errors of a file system in the block into InputErrors that name the file; `missing` says why one is."""
    try:
        yield
    except Exception as error:
        kind = kind_of(error)
        if isinstance(error, StoreError | FormatError):  # told already, of a file of the inputs
            raise InputError(str(error)) from error
        if isinstance(error, TokenloomError) or (kind == "other" and not isinstance(error, OSError)):
            raise
        if kind == "missing" and missing:
            raise InputError(f"{url}: {missing}") from error
        reason = redacted(getattr(error, "strerror", None) or said(error))
        next_step = "run the build again" if is_transient(error) else "check the file"
        raise InputError(f"{url}: can't be read: {reason}; {next_step}") from without_secrets(error)


@contextmanager
def following_position() -> Iterator[Callable[[], int | None]]:
    """Give a function that returns how far the input file opened last was read, in bytes; None if none is open."""
    opened: list[IO[bytes]] = []
    _listeners.append(opened)

    def position() -> int | None:
        return next((file.tell() for file in reversed(opened) if not file.closed), None)

    try:
        yield position
    finally:
        _listeners.remove(opened)


def input_bytes(url: str) -> int:
    """Return the length of an input file in bytes; raises InputError if it can't be read."""
    with naming(url):
        if "://" not in url:
            return os.stat(url).st_size
        if is_object(url):
            with open_url(url) as file:
                return file.size()
        filesystem, path = fsspec.core.url_to_fs(url)
        return int(filesystem.size(path))
