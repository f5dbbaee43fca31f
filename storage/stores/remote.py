"""A store at a URL of S3, Google or Azure, read and written through fsspec.

Files are read in ranges, each a request of its own with a time limit: a stalled server causes an error, and a lost
connection costs one range. Files are written to a local temporary file first and then uploaded, with a checksum that
the store compares. An object store shows an object once it is complete, so a reader never sees part of one.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.stores import bucket_and_key, remote_kind, scheme_of
from tokenloom.storage.stores.local_files import translate_temporary_errors
from tokenloom.storage.stores.remote_calls import call, no_bucket
from tokenloom.storage.stores.s3 import Info, abort_stale_s3, delete_s3, list_s3, upload_s3
from tokenloom.storage.stores.store import STALE_SECONDS, TMP, Store, StoredFile, cut_short
from tokenloom.wording import SECRET_URL, redacted

BLOCK_BYTES = 4 * 2**20
_REQUESTS_AT_ONCE = 16
MARK = "writer"  # in an object's metadata
_MODIFIED_KEYS = ("LastModified", "last_modified", "mtime")  # of the libraries of S3, Azure and Google


class RemoteStore(Store):
    """The folder of one dataset at the URL of an object store: Amazon's S3 and compatible ones, Google's or Azure's.

    Credentials come from the environment, as the store's own tools find them.

    Args:
        root: a URL such as s3://bucket/store/dataset, without credentials.

    Raises:
        StoreError: the URL contains a secret, or no bucket.
    """

    is_local = False
    root: str

    def __init__(self, root: str) -> None:
        _check_url(root)
        self.root = root.rstrip("/")

    def __repr__(self) -> str:
        return f"RemoteStore({self.root!r})"

    @property
    def _kind(self) -> str:
        return remote_kind(self.root).name

    def place(self, path: str) -> str:
        """Return the URL of `path`, for messages."""
        if ".." in path.split("/") or path.startswith("/"):
            raise StoreError(f"{path!r} would leave the store {self.root}")
        return f"{self.root}/{path}" if path else self.root

    def creates_exclusively(self) -> bool:
        """Return whether the store refuses to create a name twice; leaves a probe in work/tmp."""
        try:
            for _ in range(2):  # the probe stays, so the next build needs one attempt
                self.create(f"{TMP}/exclusive", uuid.uuid4().bytes)
        except FileExistsError:
            return True
        return False

    # ---- listing

    def status(self, path: str) -> StoredFile | None:
        """Return the length of the file at `path` and when it was written; None if there is no file."""
        place = self.place(path)
        try:
            info: Info = call(place, "info", place)
        except FileNotFoundError:
            return None
        return _stored(info) if info["type"] == "file" else None

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder`, never from a cache; an empty list if it does not exist."""
        return [path.rpartition("/")[2] for path in self._listed(folder)]

    def lengths(self, folder: str) -> dict[str, int]:
        """Return the lengths in bytes of the files in `folder`, sorted by name; one request for each 1000 names."""
        found = self._listed(folder)
        return {path.rpartition("/")[2]: int(info["size"]) for path, info in found.items() if info["type"] == "file"}

    def files_below(self, folder: str) -> dict[str, StoredFile]:
        """Return all files in `folder` and below, by path, sorted; one request for each 1000 of them on S3."""
        found = self._listed(folder, deep=True)
        return {path: _stored(info) for path, info in found.items() if info["type"] == "file"}

    def _listed(self, folder: str, *, deep: bool = False) -> dict[str, Info]:
        """Return fsspec's info of each name in a folder, or of each file below it, by path in the store, sorted."""
        own, prefix = (f"{path}/" if path else "" for path in (bucket_and_key(self.root)[1], folder))
        try:
            listed = self._list(self.place(folder), deep=deep)
        except FileNotFoundError:
            return {}
        keys = ((info["name"].strip("/").partition("/")[2], info) for info in listed)  # without the bucket
        found = {key.removeprefix(own): info for key, info in keys}
        # Some stores have an empty object for a folder, and list by prefix: a, then a2/b.
        return {path: info for path, info in sorted(found.items()) if path.startswith(prefix) and path != prefix}

    def _list(self, place: str, *, deep: bool) -> list[Info]:
        """Return fsspec's info of each name in a folder, or of all files below; raises FileNotFoundError."""
        if self._kind == "s3":
            bucket, key = bucket_and_key(place)
            return list_s3(place, bucket, f"{key.strip('/')}/".lstrip("/"), deep=deep)
        if deep:
            return list(call(place, "find", place, detail=True, many=True).values())
        return list(call(place, "ls", place, detail=True, many=True))

    # ---- reading

    def read(self, path: str) -> bytes:
        """Return the bytes of the file at `path`, in one request; raises FileNotFoundError, StoreError."""
        data: bytes = call(self.place(path), "cat_file", self.place(path))
        return data

    def read_all(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of many small files, 16 requests at a time; see Store.read_all."""
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
            return list(threads.map(self._read_if_present, paths))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the file at `path`; errors as `Store.read_range`."""
        if start >= end:
            return b""
        place = self.place(path)
        data: bytes = call(place, "cat_file", place, start=start, end=end, num_bytes=end - start)
        if len(data) < end - start:
            raise FormatError(cut_short(place, start + len(data), start, end))
        return data

    def blocks(self, path: str) -> Iterator[memoryview]:
        """Yield the file at `path` in blocks of 4 MiB, one request each; errors as read_range."""
        num_bytes = self.num_bytes(path)
        if num_bytes is None:
            raise FileNotFoundError(self.place(path))
        for start in range(0, num_bytes, BLOCK_BYTES):
            yield memoryview(self.read_range(path, start, min(start + BLOCK_BYTES, num_bytes)))

    # ---- writing

    def create(self, path: str, data: bytes) -> None:
        """Write an object that must not exist yet; exactly one of several writers succeeds if the store supports it.

        This holds even if all writers send the same bytes. If a response is lost, the request is repeated, here or in a
        library below; a random mark in the object's metadata then shows whether this call wrote the object.

        Raises FileExistsError if the object exists, StoreError if it cannot be written.
        """
        place, mark = self.place(path), uuid.uuid4().hex
        options = {"mode": "create", "num_bytes": len(data), **self._marked(mark)}
        try:
            call(place, "pipe_file", place, data, writes=True, **options)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if self._metadata(place).get(MARK) == mark:
                    return
            raise
        except FileNotFoundError as error:
            raise no_bucket(place) from error

    def _marked(self, mark: str) -> dict[str, Any]:
        """Return the options of `pipe_file` that put a mark into an object's metadata."""
        if self._kind == "az":  # adlfs overwrites `metadata`
            return {"headers": {f"x-ms-meta-{MARK}": mark}}
        return {"Metadata" if self._kind == "s3" else "metadata": {MARK: mark}}

    def _metadata(self, place: str) -> dict[str, str]:
        if self._kind == "s3":
            return dict(call(place, "metadata", place) or {})
        return dict(call(place, "info", place).get("metadata") or {})

    @contextlib.contextmanager
    def writing(self, path: str, *, durable: bool = True) -> Iterator[IO[bytes]]:
        """Open a temporary file in TMPDIR; it is uploaded to `path` when the block ends without an error.

        The file has no name, so a killed process leaves nothing. `durable` has no effect: an upload that has ended is
        durable.
        """
        place = self.place(path)
        with translate_temporary_errors():
            file = tempfile.TemporaryFile("w+b")  # noqa: SIM115  (entered below)
        with file:
            with translate_temporary_errors():
                yield file
                file.flush()
            file.seek(0)
            try:
                # Without its type, a browser saves a page.
                self._upload(place, f"/dev/fd/{file.fileno()}", "text/html" if place.endswith(".html") else None)
            except FileNotFoundError as error:
                raise no_bucket(place) from error

    def _upload(self, place: str, path: str, content_type: str | None) -> None:
        """Write a local file to the store, which has all of it when this returns, verified by a checksum.

        Raises StoreError if it can't be written, FileNotFoundError if the bucket does not exist.
        """
        if self._kind == "s3":
            upload_s3(place, path, content_type)
            return
        options: dict[str, Any] = {"consistency": "md5", "content_type": content_type}
        if self._kind == "az":
            from azure.storage.blob import ContentSettings  # late: only the extra [azure] has it

            typed = {"content_settings": ContentSettings(content_type=content_type)} if content_type else {}
            options = {"validate_content": True, **typed}
        call(place, "put_file", path, place, writes=True, num_bytes=os.stat(path).st_size, **options)

    def remove(self, path: str) -> None:
        """Delete the file at `path` if it exists."""
        place = self.place(path)
        with contextlib.suppress(FileNotFoundError):
            call(place, "rm_file", place, writes=True)

    def remove_files(self, paths: Sequence[str]) -> None:
        """Delete the files at `paths`: up to 1000 in a request on S3, one in a request elsewhere."""
        if self._kind == "s3":
            delete_s3(self.root, [self.place(path) for path in paths])
            return
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
            list(threads.map(self.remove, paths))

    def remove_empty_folders(self, folder: str) -> None:
        """Do nothing: object stores have no folders."""

    def remove_stale_temporaries(self) -> None:
        """Delete the parts of uploads on S3 that were begun more than a day ago; the other stores do so themselves."""
        if self._kind == "s3":
            abort_stale_s3(self.root, STALE_SECONDS)


def _check_url(root: str) -> None:
    """Raise StoreError if a URL contains a secret, or has no bucket or odd parts."""
    if SECRET_URL.search(root):
        raise StoreError(
            f"store {redacted(root)}: a URL must not contain a password; set credentials in the environment"
        )
    bucket, *folders = root.rstrip("/").partition("://")[2].split("/")
    is_bucket = re.fullmatch(r"[\w.:@-]+", bucket)  # of any of the stores, with an account or as an ARN
    if not is_bucket or {"", "..", "."} & set(folders):
        raise StoreError(
            f"store {root}: write it as {scheme_of(root)}://BUCKET/FOLDER, without empty parts, . or .., and without "
            "blanks or other marks in BUCKET"
        )


def _stored(info: Info) -> StoredFile:
    """Return the length and time of a file by fsspec's info of it."""
    modified = next(info[name] for name in _MODIFIED_KEYS if info.get(name))
    return StoredFile(int(info["size"]), float(modified.timestamp()))
