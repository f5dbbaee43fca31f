"""A store at a URL, read and written through fsspec.

Files are read in ranges, each a request of its own with a time limit: a stalled server causes an error, and a lost
connection costs one range. Files are written to a local temporary file first and then uploaded (remote_kinds.py). An
object store shows an object once it is complete, so a reader never sees part of one.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import IO

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.remote_errors import SECRET_URL, redacted
from tokenloom.storage.stores.remote_kinds import AzureKind, FileSystemKind, Info, ObjectStoreKind, remove_stale_files
from tokenloom.storage.stores.remote_retries import TIME_LIMITS, RemoteCalls, TimeLimits
from tokenloom.storage.stores.s3 import S3Kind
from tokenloom.storage.stores.store import Store, StoredFile
from tokenloom.storage.stores.urls import AZURE, GOOGLE, OBJECT_STORES, S3

BLOCK_BYTES = 4 * 2**20
_MODIFIED_KEYS = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")  # of fsspec's libraries
_KINDS: dict[str, type[FileSystemKind]] = {
    **dict.fromkeys(S3, S3Kind),
    **dict.fromkeys(GOOGLE, ObjectStoreKind),
    **dict.fromkeys(AZURE, AzureKind),
}


class RemoteStore(Store):
    """The folder of one dataset at an fsspec URL.

    Credentials come from the environment, as the store's own tools find them.

    Args:
        root: a URL such as s3://bucket/store/dataset, without credentials.
        limits: how long requests are tried.

    Raises:
        StoreError: the URL contains a secret, or is a chain of URLs.
    """

    is_local = False
    root: str

    def __init__(self, root: str, limits: TimeLimits = TIME_LIMITS) -> None:
        _check_url(root)
        self.root = root.rstrip("/")
        self._calls = RemoteCalls(self.root, limits)
        self._kind = _KINDS.get(self._calls.scheme, FileSystemKind)(self._calls)

    def __repr__(self) -> str:
        return f"RemoteStore({self.root!r})"

    def place(self, path: str) -> str:
        """Return the URL of `path`, for messages."""
        if ".." in path.split("/") or path.startswith("/"):
            raise StoreError(f"{path!r} would leave the store {self.root}")
        return f"{self.root}/{path}" if path else self.root

    def creates_exclusively(self) -> bool:
        """Return whether the store refuses to create a name twice; may leave a probe in work/tmp."""
        return self._kind.creates_exclusively()

    # ---- listing

    def exists(self, path: str) -> bool:
        """Return whether `path` is a file or folder."""
        return self._info(path) is not None

    def num_bytes(self, path: str) -> int | None:
        """Return the length of the file at `path` in bytes, None if there is no file."""
        info = self._info(path)
        return int(info["size"]) if info and info["type"] == "file" else None

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder`, never from a cache; an empty list if it does not exist."""
        return sorted(self._listed(folder))

    def lengths(self, folder: str) -> dict[str, int]:
        """Return the lengths in bytes of the files in `folder`, sorted by name; one request for each 1000 names."""
        found = self._listed(folder)
        return {name: int(info["size"]) for name, info in sorted(found.items()) if info["type"] == "file"}

    def modified(self, path: str) -> float | None:
        """Return when the file at `path` was written, by the store's clock; None if it does not exist."""
        info = self._info(path)
        return self._modified_of(path, info) if info and info["type"] == "file" else None

    def files_below(self, folder: str) -> dict[str, StoredFile]:
        """Return all files in `folder` and below, by path, sorted; one request for each 1000 of them on S3."""
        try:
            listed = self._kind.list_below(self.place(folder))
        except FileNotFoundError:
            return {}
        found = {}
        for info in listed:
            path = self._path_of(info["name"])
            # Some stores have an empty object for a folder, and list by prefix: a, then a2/b.
            if info["type"] == "file" and path.startswith(f"{folder}/" if folder else "") and path != folder:
                found[path] = StoredFile(int(info["size"]), self._modified_of(path, info))
        return dict(sorted(found.items()))

    def _path_of(self, name: str) -> str:
        """Return the path in the store of a name that fsspec lists, which has a host only if it is a bucket."""
        own = f"{self.root.rpartition('://')[2].strip('/')}/"
        name = name.rpartition("://")[2].strip("/")
        return name.removeprefix(own if name.startswith(own) else own.partition("/")[2])

    def _modified_of(self, path: str, info: Info) -> float:
        if (modified := _modified_of(info)) is None:
            raise StoreError(f"{self.place(path)}: this kind of store does not say when a file was written")
        return modified

    def _info(self, path: str) -> Info | None:
        """Return fsspec's info of `path` ("size", "type" and the store's own fields), None if it does not exist."""
        place = self.place(path)
        try:
            info: Info = self._calls.call(place, "info", place)
        except FileNotFoundError:
            return None
        return info

    def _listed(self, folder: str) -> dict[str, Info]:
        """Return fsspec's info of each name in a folder."""
        place = self.place(folder)
        own = place.rpartition("://")[2].strip("/")
        try:
            found = self._kind.list_folder(place)
        except FileNotFoundError:
            return {}
        named = {info["name"].strip("/"): info for info in found}
        # Some stores have an empty object for the folder itself.
        return {name.rpartition("/")[2]: info for name, info in named.items() if name != own}

    # ---- reading

    def read(self, path: str) -> bytes:
        """Return the bytes of the file at `path`, in one request; raises FileNotFoundError, StoreError."""
        place = self.place(path)
        try:
            data: bytes = self._calls.call(place, "cat_file", place, start=0)  # else s3fs asks for the length first
        except FormatError:  # stores refuse any range of an empty file
            if self.num_bytes(path) != 0:
                raise
            return b""
        return data

    def read_all(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of many small files, 16 requests at a time; see Store.read_all."""
        with ThreadPoolExecutor(self._kind.requests_at_once) as threads:
            return list(threads.map(self._read_if_present, paths))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the file at `path`; errors as `Store.read_range`."""
        if start >= end:
            return b""
        return self._calls.read_range(self.place(path), start, end)

    def blocks(self, path: str) -> Iterator[memoryview]:
        """Yield the file at `path` in blocks of 4 MiB, one request each; errors as read_range."""
        num_bytes = self.num_bytes(path)
        if num_bytes is None:
            raise FileNotFoundError(self.place(path))
        for start in range(0, num_bytes, BLOCK_BYTES):
            yield memoryview(self.read_range(path, start, min(start + BLOCK_BYTES, num_bytes)))

    # ---- writing

    def create(self, path: str, data: bytes) -> None:
        """Write a new file; raises FileExistsError if it exists, StoreError if it cannot be written."""
        self._kind.create(self.place(path), data)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file or replace an existing one; readers see the old or the new bytes, never a mix."""
        with self.writing(path, durable=durable) as file:
            local_files.write_all(file, data)

    def writing(self, path: str, *, durable: bool = True) -> AbstractContextManager[IO[bytes]]:
        """Open a temporary file in TMPDIR; it is uploaded to `path` when the block ends without an error.

        `durable` has no effect: an upload that has ended is durable.
        """
        return self._kind.uploading(self.place(path))

    def remove(self, path: str) -> None:
        """Delete the file at `path` if it exists."""
        self._kind.remove(self.place(path))

    def remove_files(self, paths: Sequence[str]) -> None:
        """Delete the files at `paths`: up to 1000 in a request on S3, one in a request elsewhere."""
        self._kind.remove_files([self.place(path) for path in paths])

    def remove_empty_folders(self, folder: str) -> None:
        """Delete `folder` and those below it if they hold no file; object stores have no folders."""
        self._kind.remove_empty_folders(self.place(folder))

    def remove_stale_temporaries(self) -> None:
        """Delete what killed processes left more than a day ago: files in TMPDIR and parts of uploads."""
        remove_stale_files()
        self._kind.remove_stale_uploads()


def _check_url(root: str) -> None:
    """Raise StoreError if a URL contains a secret, is a chain of URLs, or has no bucket or odd parts."""
    if SECRET_URL.search(root):
        raise StoreError(
            f"store {redacted(root)}: a URL must not contain a password; set credentials in the environment"
        )
    scheme, mark, _ = root.partition("://")
    if not mark or "::" in root:
        raise StoreError(f"store {root}: a remote store is one URL, such as s3://bucket/folder")
    bucket, *folders = root.rstrip("/").partition("://")[2].split("/")
    is_bucket = re.fullmatch(r"[\w.:@-]+", bucket)  # of any of the stores, with an account or as an ARN
    if scheme in OBJECT_STORES and (not is_bucket or {"", "..", "."} & set(folders)):
        raise StoreError(
            f"store {root}: write it as {scheme}://BUCKET/FOLDER, without empty parts, . or .., and without blanks or "
            "other marks in BUCKET"
        )


def _modified_of(info: Info) -> float | None:
    """Return when a file was written by fsspec's info of it, in seconds since 1970; None if it does not say."""
    for value in filter(None, map(info.get, _MODIFIED_KEYS)):
        if isinstance(value, str):
            value = datetime.datetime.fromisoformat(value)
        if isinstance(value, datetime.datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
            return aware.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None
