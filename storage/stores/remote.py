"""The folder of one dataset in a remote store, read and written through fsspec: the twin of `Store`.

Files are read in ranges, each a request of its own with a time limit, so that a stalled server ends in an error and a
lost connection costs one range. They are written to a local temporary first and go up from there (uploads.py); an
object store shows an object when it is complete, so a name stands for all of its bytes or for nothing.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.stores import exclusive, uploads
from tokenloom.storage.stores.disk_errors import write_told
from tokenloom.storage.stores.local import TMP, Store, write_all
from tokenloom.storage.stores.remote_calls import RemoteCalls
from tokenloom.storage.stores.remote_errors import SECRET_URL, redacted
from tokenloom.storage.stores.s3_listing import list_s3
from tokenloom.storage.stores.url_protocols import OBJECT_STORES, S3

BLOCK_BYTES = 4 * 2**20
_OR_ELSE = ", or set TMPDIR to another folder,"
_READERS = 16  # requests at a time where many small files are read; one where the library has one connection


class RemoteStore:
    """The folder of one dataset at an fsspec URL; every `path` below is relative to it, with '/'. Pickles small.

    Credentials come from the environment, as the store's own tools find them.

    Args:
        root: a URL such as s3://bucket/store/dataset, without credentials.
        tries: requests made for one range, part or listing before giving up, at least 1.
        total_seconds: time limit of those requests and the waits between them.
        read_seconds: time limit of one request.

    Raises:
        StoreError: the URL carries a secret, or is a chain of URLs.
    """

    def __init__(self, root: str, *, tries: int = 5, total_seconds: float = 120.0, read_seconds: float = 30.0) -> None:
        if SECRET_URL.search(root):
            raise StoreError(
                f"store {redacted(root)}: a URL must not carry a password; give credentials in the environment"
            )
        self.protocol, mark, _ = root.partition("://")
        if not mark or "::" in root:
            raise StoreError(f"store {root}: a remote store is one URL, such as s3://bucket/folder")
        bucket, *folders = root.rstrip("/").partition("://")[2].split("/")
        if self.protocol in OBJECT_STORES and (not bucket or {"", "..", "."} & set(folders)):
            raise StoreError(f"store {root}: write it as {self.protocol}://BUCKET/FOLDER, without empty parts, . or ..")
        self.root = root.rstrip("/")
        self._calls = RemoteCalls(self.root, tries, total_seconds, read_seconds)

    def __repr__(self) -> str:
        return f"RemoteStore({self.root!r})"

    def place(self, path: str) -> str:
        """Return the URL of `path`, for messages; raises StoreError for a name that would leave the store."""
        if ".." in path.split("/") or path.startswith("/"):
            raise StoreError(f"{path!r} would leave the store {self.root}")
        return f"{self.root}/{path}" if path else self.root

    def exists(self, path: str) -> bool:
        """Return whether a file or folder stands at `path`; raises StoreError if the store does not answer."""
        return self.info(path) is not None

    def num_bytes(self, path: str) -> int | None:
        """Return the length of the file at `path` in bytes, None if there is none; raises StoreError."""
        info = self.info(path)
        return int(info["size"]) if info and info["type"] == "file" else None

    def free_bytes(self) -> None:
        """Return None: a remote store does not tell what room it has."""

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder` as they are now, none if it does not exist; raises StoreError."""
        return sorted(self._listed(folder))

    def lengths(self, folder: str) -> dict[str, int]:
        """Return the lengths of the files in `folder` by name, sorted; one request a thousand. Raises StoreError."""
        found = self._listed(folder)
        return {name: int(info["size"]) for name, info in sorted(found.items()) if info["type"] == "file"}

    def _listed(self, folder: str) -> dict[str, dict[str, Any]]:
        place = self.place(folder)
        own = place.rpartition("://")[2].strip("/")
        try:
            if self.protocol in S3:
                bucket, _, key = own.partition("/")
                found = list_s3(self._calls, place, bucket, f"{key}/", deep=False)
            else:
                found = self._calls.call(place, "ls", place, detail=True, many=True)
        except FileNotFoundError:
            return {}
        named = {info["name"].strip("/"): info for info in found}
        # Some stores hold an empty object for the folder itself.
        return {name.rpartition("/")[2]: info for name, info in named.items() if name != own}

    def read(self, path: str) -> bytes:
        """Return the bytes of the file at `path`, in one request; raises FileNotFoundError, StoreError."""
        place = self.place(path)
        try:
            data: bytes = self._calls.call(place, "cat_file", place, start=0)  # else s3fs asks for the length first
        except FormatError:  # no store gives a range of an empty file
            if self.num_bytes(path) != 0:
                raise
            return b""
        return data

    def read_all(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of many small files, None for one that is missing; raises StoreError."""

        def read(path: str) -> bytes | None:
            with suppress(FileNotFoundError):
                return self.read(path)
            return None

        with ThreadPoolExecutor(_READERS if self.protocol in OBJECT_STORES else 1) as threads:
            return list(threads.map(read, paths))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the file at `path`, all of them.

        Raises:
            FileNotFoundError: there is no such file.
            FormatError: the file is shorter than `end`.
            StoreError: the store can't be read.
        """
        if start >= end:
            return b""
        return self._calls.read_range(self.place(path), start, end)

    def blocks(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of the file at `path`, at most BLOCK_BYTES at a time; errors as read_range."""
        num_bytes = self.num_bytes(path)
        if num_bytes is None:
            raise FileNotFoundError(self.place(path))
        for start in range(0, num_bytes, BLOCK_BYTES):
            yield self.read_range(path, start, min(start + BLOCK_BYTES, num_bytes))

    def info(self, path: str) -> dict[str, Any] | None:
        """Return what the store says of `path` (fsspec's "size", "type" and its own), None if nothing is there."""
        place = self.place(path)
        try:
            info: dict[str, Any] = self._calls.call(place, "info", place)
        except FileNotFoundError:
            return None
        return info

    def create(self, path: str, data: bytes) -> None:
        """Write a file that must not exist yet; of several writers exactly one succeeds, see exclusion_problem.

        Raises FileExistsError if there is a file at `path`, StoreError if it can't be written.
        """
        exclusive.create(self._calls, self.place(path), data)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, over one that may be there; readers see the old or the new bytes, never a mix."""
        with self.writing(path, durable=durable) as file:
            write_all(file, data)

    @contextmanager
    def writing(self, path: str, *, durable: bool = True) -> Iterator[IO[bytes]]:
        """Open a local temporary for writing and reading, which goes up to `path` when the block ends well.

        It lies in TMPDIR. `durable` says nothing here: what a store has taken, it keeps.
        """
        place = self.place(path)
        with write_told(Path(tempfile.gettempdir()), or_else=_OR_ELSE):
            temporary = tempfile.NamedTemporaryFile("w+b", prefix=uploads.PREFIX)  # noqa: SIM115  (entered below)
        with temporary as file:
            with write_told(Path(file.name), or_else=_OR_ELSE):
                yield file
                file.flush()
            uploads.upload(self._calls, place, file.name)

    def remove(self, path: str) -> None:
        """Delete the file at `path` if there is one."""
        with suppress(FileNotFoundError):
            self._calls.call(self.place(path), "rm_file", self.place(path), doing="written")

    def remove_stale_temporaries(self) -> None:
        """Delete what killed processes left more than a day ago: their local files, and parts of uploads."""
        uploads.remove_stale_files()
        uploads.remove_stale_uploads(self._calls, self.root)

    def check_writable(self) -> None:
        """Raise StoreError if an object store can't be written, by an object that is deleted again.

        Other stores are not probed, since a probe would leave folders there.
        """
        if self.protocol in OBJECT_STORES:
            probe = f"{TMP}/{uuid.uuid4().hex}"
            self.create(probe, b"")
            with suppress(StoreError):  # a user may write and not delete
                self.remove(probe)

    def exclusion_problem(self) -> str | None:
        """Return why several builds at a time are not safe here: None where the store refuses to create a name twice.

        Raises StoreError if the store can't be written.
        """
        return exclusive.exclusion_problem(self._calls, self.place(TMP))


AnyStore = Store | RemoteStore
