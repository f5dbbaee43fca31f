"""Calls of a remote store's library: each with a time limit, tried again while its error may pass, told when it fails.

Retries stand here and not in the libraries below, so that they are logged, and the same for every kind of store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.stores.remote_errors import harmless, is_bucket_missing, kind_of, reason_of
from tokenloom.storage.stores.time_limit import LOOK_SECONDS, is_ending
from tokenloom.storage.stores.url_protocols import AZURE, GOOGLE, OBJECT_STORES, S3

T = TypeVar("T")

FIRST_WAIT_SECONDS = 0.5  # before the second try; doubled before each further one
_SLOWEST_BYTES = 2**18  # a second that a request must move, beyond its time limit
_LISTING_SECONDS = 3600.0  # for a million names and more; a request of it has its own limit
_FOLDER_SECONDS = 300.0  # for the names of one folder, where that is all the limit there is
_CREDENTIALS = {
    **dict.fromkeys(S3, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE"),
    **dict.fromkeys(GOOGLE, "GOOGLE_APPLICATION_CREDENTIALS"),
    **dict.fromkeys(
        AZURE, "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
    ),
}
_logger = logging.getLogger("tokenloom")


class RemoteCalls:
    """The calls of one store; pickles small.

    Args:
        url: of it or of what lies in it: s3://, gs://, abfs:// or what else fsspec knows.
        tries: of one call before giving up, at least 1.
        total_seconds: time limit of the tries of one call and the waits between them.
        read_seconds: time limit of one try; one that moves many bytes has more.
    """

    def __init__(self, url: str, tries: int = 5, total_seconds: float = 120.0, read_seconds: float = 30.0) -> None:
        self.url, self.protocol = url, url.partition("://")[0]
        self.tries, self.total_seconds, self.read_seconds = tries, total_seconds, read_seconds

    def call(
        self,
        place: str,
        name: str,
        *args: Any,
        doing: str = "read",
        num_bytes: int = 0,
        many: bool = False,
        **options: Any,
    ) -> Any:
        """Call a method of the file system, and again while that may help.

        Args:
            place: the URL at work, for messages.
            name: of the method.
            args: of the method; options too.
            doing: "read" or "written", for messages.
            num_bytes: that are moved, for which there is more time.
            many: it makes many requests, as a listing does: an hour more, five minutes where the library blocks.

        Raises FileNotFoundError, FileExistsError, FormatError (it is shorter than asked), StoreError.
        """
        listing_seconds = _LISTING_SECONDS if self.protocol in OBJECT_STORES else _FOLDER_SECONDS
        more = num_bytes / _SLOWEST_BYTES + many * listing_seconds
        return self.again(place, lambda run: run(name, *args, **options), doing, more)

    def read_range(self, place: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a file, all of them; errors as `call`."""

        def attempt(run: Callable[..., Any]) -> bytes:
            data: bytes = run("cat_file", place, start=start, end=end)
            if len(data) == end - start:
                return data
            if (num_bytes := run("info", place)["size"]) < end:
                raise FormatError(f"{place}: {num_bytes} bytes, [{start}, {end}) wanted: cut short?")
            raise EOFError(f"{len(data)} bytes of [{start}, {end}) came")

        return self.again(place, attempt, more_seconds=(end - start) / _SLOWEST_BYTES)

    def again(
        self, place: str, attempt: Callable[[Callable[..., Any]], T], doing: str = "read", more_seconds: float = 0.0
    ) -> T:
        """Return `attempt(run)`, tried again while its error may pass; `run` calls a method of the file system."""
        from tokenloom.storage.stores.remote_systems import (  # late: local stores begin without these libraries
            run,
            system_of,
        )

        end = time.monotonic() + self.total_seconds + more_seconds
        for number in range(1, self.tries + 1):
            seconds = min(self.read_seconds + more_seconds, max(0.1, end - time.monotonic()))
            try:
                return attempt(partial(run, system_of(self.url, self.read_seconds), seconds))
            except (StoreError, FormatError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001  (of any library; all are told as ours)
                pause = FIRST_WAIT_SECONDS * 2 ** (number - 1)
                is_last = number == self.tries or time.monotonic() + pause >= end or is_ending()
                if kind_of(error) != "passing" or is_last:
                    raise self._explained(error, place, number, doing) from harmless(error)
                _logger.warning("%s: %s; try %d of %d failed", place, reason_of(error), number, self.tries)
            _sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _explained(self, error: Exception, place: str, number: int, doing: str) -> Exception:
        """Return the error to raise for one of a store's libraries after `number` tries."""
        kind, reason = kind_of(error), reason_of(error)
        if kind == "missing" and is_bucket_missing(error):
            return no_bucket(place)
        if kind == "missing":
            return FileNotFoundError(place)
        if kind == "exists":
            return FileExistsError(place)
        if kind == "shorter":
            return FormatError(f"{place}: it is shorter than what was asked of it: cut short?")
        if kind == "forbidden":
            verb, verbs = ("read", "list and read") if doing == "read" else ("write", "read and write")
            named = _CREDENTIALS.get(self.protocol)
            return StoreError(
                f"{place}: no right to {verb} it, or no credentials ({reason}); give credentials of a user who may "
                f"{verbs} that store in the environment" + (f", for {self.protocol}:// {named}" if named else "")
            )
        if kind == "passing":
            return StoreError(
                f"{place}: the store did not answer well in {number} tries ({reason}); {self._credentials_first()}see "
                "whether it can be reached from here, and run the same command again"
            )
        return StoreError(f"{place}: can't be {doing} ({reason}); see whether the URL is right")

    def _credentials_first(self) -> str:
        """Return what to do about credentials where none were found, so that the store was asked without."""
        from tokenloom.storage.stores.google_credentials import is_anonymous
        from tokenloom.storage.stores.remote_systems import system_of

        if self.protocol not in GOOGLE or not is_anonymous(system_of(self.url, self.read_seconds)):
            return ""
        return f"no credentials were found, set {_CREDENTIALS[self.protocol]}; "


def no_bucket(url: str) -> StoreError:
    """Return the error to raise if the bucket or container of an object's URL is missing."""
    protocol, mark, path = url.partition("://")
    bucket = f"{protocol}{mark}{path.partition('/')[0]}"
    return StoreError(f"{bucket}: there is no such bucket or container; create it or correct the URL {url}")


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not is_ending():
        time.sleep(min(left, LOOK_SECONDS))
