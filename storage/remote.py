"""The folder of one dataset in a remote store, read through fsspec: the read-only twin of `Store`.

Files are read in ranges, each a request of its own with a time limit, so that a stalled server ends in an error and a
lost connection costs one range. What can pass is tried again here and not by the libraries below, so that it is logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from typing import Any, TypeVar

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.filesystem import Store
from tokenloom.storage.remote_errors import SECRET_URL, harmless, kind_of, reason_of, redacted

T = TypeVar("T")

BLOCK_BYTES = 4 * 2**20
FIRST_WAIT_SECONDS = 0.5  # before the second try; doubled before each further one
_CONNECT_SECONDS = 10.0
_LOOK_SECONDS = 0.1  # between looks whether the program ends
_EXTRAS = {"s3": "'tokenloom[s3]'", "s3a": "'tokenloom[s3]'"}
_logger = logging.getLogger("tokenloom")

# Closing a connection that a fork copied would unhook it from the parent's event loop too: they share one epoll. So
# the child never lets go of what it inherited.
_living: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id: equal ones are many
_inherited: list[Any] = []
_making = threading.Lock()  # one file system a store, though several threads begin at once


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    _inherited.extend(_living.values())


os.register_at_fork(after_in_child=_after_fork)


class RemoteStore:
    """The folder of one dataset at an fsspec URL; every `path` below is relative to it, with '/'. Pickles small.

    Credentials come from the environment, as the store's own tools find them.

    Args:
        root: a URL such as s3://bucket/store/dataset, without credentials.
        tries: requests made for one range or listing before giving up, at least 1.
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
        self.root = root.rstrip("/")
        self.tries, self.total_seconds, self.read_seconds = tries, total_seconds, read_seconds
        self._made: tuple[int, Any] | None = None  # process, file system

    def __repr__(self) -> str:
        return f"RemoteStore({self.root!r})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": None}

    def place(self, path: str) -> str:
        """Return the URL of `path`, for messages; raises StoreError for a name that would leave the store."""
        if ".." in path.split("/") or path.startswith("/"):
            raise StoreError(f"{path!r} would leave the store {self.root}")
        return f"{self.root}/{path}" if path else self.root

    def exists(self, path: str) -> bool:
        """Return whether a file or folder stands at `path`; raises StoreError if the store does not answer."""
        return self._info(path) is not None

    def num_bytes(self, path: str) -> int | None:
        """Return the length of the file at `path` in bytes, None if there is none; raises StoreError."""
        info = self._info(path)
        return int(info["size"]) if info and info["type"] == "file" else None

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in `folder` as they are now, none if it does not exist; raises StoreError."""
        try:
            found = self._again(folder, lambda system, path, left: _run(system, "ls", left, path, detail=False))
        except FileNotFoundError:
            return []
        own = self.place(folder).rpartition("://")[2].strip("/")
        paths = [path.strip("/") for path in found]
        # Some stores hold an empty object for the folder itself.
        return sorted({path.rpartition("/")[2] for path in paths if path != own})

    def read(self, path: str) -> bytes:
        """Return the bytes of the file at `path`; raises FileNotFoundError, StoreError."""
        return b"".join(self.blocks(path))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the file at `path`, all of them.

        Raises:
            FileNotFoundError: there is no such file.
            FormatError: the file is shorter than `end`.
            StoreError: the store can't be read.
        """
        if start >= end:
            return b""

        def attempt(system: Any, full: str, left: float) -> bytes:
            data: bytes = _run(system, "cat_file", left, full, start=start, end=end)
            if len(data) == end - start:
                return data
            if (num_bytes := _run(system, "info", left, full)["size"]) < end:
                raise FormatError(f"{self.place(path)}: {num_bytes} bytes, [{start}, {end}) wanted: cut short?")
            raise EOFError(f"{len(data)} bytes of [{start}, {end}) came")

        return self._again(path, attempt)

    def blocks(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of the file at `path`, at most BLOCK_BYTES at a time; errors as read_range."""
        num_bytes = self.num_bytes(path)
        if num_bytes is None:
            raise FileNotFoundError(self.place(path))
        for start in range(0, num_bytes, BLOCK_BYTES):
            yield self.read_range(path, start, min(start + BLOCK_BYTES, num_bytes))

    def _info(self, path: str) -> dict[str, Any] | None:
        try:
            info: dict[str, Any] = self._again(path, lambda system, full, left: _run(system, "info", left, full))
        except FileNotFoundError:
            return None
        return info

    def _again(self, path: str, attempt: Callable[[Any, str, float], T]) -> T:
        """Return `attempt(file system, full path, seconds left)`, tried again while the error may pass."""
        place, end = self.place(path), time.monotonic() + self.total_seconds
        for number in range(1, self.tries + 1):
            try:
                left = min(self.read_seconds, max(0.1, end - time.monotonic()))
                return attempt(self._system(), place, left)
            except (StoreError, FormatError):
                raise
            except Exception as error:  # noqa: BLE001  (of any library; all are told as ours)
                pause = FIRST_WAIT_SECONDS * 2 ** (number - 1)
                is_last = number == self.tries or time.monotonic() + pause >= end or is_ending()
                if kind_of(error) != "passing" or is_last:
                    raise _explained(error, place, number) from harmless(error)
                _logger.warning("%s: %s; try %d of %d failed", place, reason_of(error), number, self.tries)
            _sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _system(self) -> Any:
        """Return the file system of this process: the event loop of a parent's does not run in a forked child."""
        with _making:
            if self._made is None or self._made[0] != os.getpid():
                self._made = (os.getpid(), _make_system(self.protocol, self.read_seconds))
            return self._made[1]


AnyStore = Store | RemoteStore


def is_ending() -> bool:
    """Return whether the program ends: its end waits for this thread, whose requests can't succeed any more."""
    return not threading.main_thread().is_alive()


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not is_ending():
        time.sleep(min(left, _LOOK_SECONDS))


def _make_system(protocol: str, read_seconds: float) -> Any:
    """Return a new fsspec file system that caches no listing and tries nothing again by itself."""
    import fsspec

    options: dict[str, Any] = {}
    if protocol in ("s3", "s3a"):
        timeouts = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": read_seconds}
        options = {"config_kwargs": timeouts | {"retries": {"total_max_attempts": 1}}}
    try:
        system = fsspec.filesystem(protocol, skip_instance_cache=True, use_listings_cache=False, **options)
    except ImportError as error:
        package = _EXTRAS.get(protocol)
        advice = f"pip install {package}" if package else str(error)
        raise StoreError(f"store {protocol}://: the package that reads it is not installed: {advice}") from error
    except ValueError as error:
        raise StoreError(f"store {protocol}://: {reason_of(error)}") from error
    if protocol in ("s3", "s3a"):
        system.retries = 1
    _living[id(system)] = system
    return system


def _run(system: Any, name: str, seconds: float, *args: Any, **options: Any) -> Any:
    """Call a method of a file system; one that is asynchronous is given up after `seconds`, or at the program's end."""
    if not system.async_impl:
        return getattr(system, name)(*args, **options)
    call = getattr(system, f"_{name}")(*args, **options)
    future, end = asyncio.run_coroutine_threadsafe(call, system.loop), time.monotonic() + seconds
    try:
        while not wait([future], timeout=min(_LOOK_SECONDS, max(0.0, end - time.monotonic()))).done:
            if is_ending() or time.monotonic() >= end:
                raise TimeoutError(f"no answer in {seconds:.1f} s")
        return future.result()
    finally:
        future.cancel()


def _explained(error: Exception, place: str, number: int) -> Exception:
    """Return the error to raise for one of a store's libraries after `number` tries."""
    kind = kind_of(error)
    if kind == "missing":
        return FileNotFoundError(place)
    if kind == "shorter":
        return FormatError(f"{place}: it is shorter than what was asked of it: cut short?")
    if kind == "forbidden":
        return StoreError(
            f"{place}: no right to read it, or no credentials ({reason_of(error)}); give credentials of a user who may "
            "list and read that store in the environment, for s3:// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or "
            "AWS_PROFILE"
        )
    if kind == "passing":
        return StoreError(
            f"{place}: the store did not answer well in {number} tries ({reason_of(error)}); see whether it can be "
            "reached from here, and run the same command again"
        )
    return StoreError(f"{place}: can't be read ({reason_of(error)}); see whether the URL is right")
