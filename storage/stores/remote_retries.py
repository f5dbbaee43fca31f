"""Retries of requests to a remote store: each request has a time limit and is repeated while its error is transient.

A request is a range, a listing page or an upload part. The libraries' own retries are switched off, so that every retry
is logged and all kinds of store behave alike. remote_errors.py decides which errors are transient;
tasks/running/steps.py says who retries what on the levels above.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from tokenloom.errors import FormatError, StoreError, text_of
from tokenloom.storage.stores.remote_errors import (
    chain_of,
    is_bucket_missing,
    is_ending,
    is_unexplained,
    kind_of,
    misdirection_of,
    reason_of,
    redacted,
    without_secrets,
)
from tokenloom.storage.stores.store import cut_short
from tokenloom.storage.stores.urls import AZURE, GOOGLE, S3, bucket_and_key, scheme_of

T = TypeVar("T")

FIRST_WAIT_SECONDS = 0.5  # before the second try; doubled before each further one
_POLL_SECONDS = 0.1  # between looks whether the program ends
_SLOWEST_BYTES = 2**18  # bytes a second of the slowest transfer; extends the time limit of a request
_LISTING_SECONDS = 3600.0  # for a million names and more; each of its requests has a limit too
_CREDENTIALS = {
    **dict.fromkeys(S3, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE"),
    **dict.fromkeys(GOOGLE, "GOOGLE_APPLICATION_CREDENTIALS"),
    **dict.fromkeys(
        AZURE, "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
    ),
}
_ENDPOINTS = {
    **dict.fromkeys(S3, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")),
    **dict.fromkeys(GOOGLE, ("STORAGE_EMULATOR_HOST",)),
}
_logger = logging.getLogger("tokenloom")
_answered: set[str] = set()  # the schemes of stores that have answered this process
_said: dict[str, str] = {}  # what was logged last of the requests that fail, by their URL


class TimeLimits(NamedTuple):
    """How long a call of a remote store is tried.

    `tries` are its attempts, at least 1; `total_seconds` limits all of them and the waits between them, `read_seconds`
    one of them. A call that moves many bytes has more time.
    """

    tries: int = 5
    total_seconds: float = 120.0
    read_seconds: float = 30.0


TIME_LIMITS = TimeLimits()


class RemoteCalls:
    """Calls of one store's file system, with time limits and retries. Pickles small.

    Args:
        url: the URL of the store or of a file in it: s3://, gs:// or abfs://.
        limits: how long each call is tried.
    """

    def __init__(self, url: str, limits: TimeLimits = TIME_LIMITS) -> None:
        self.url, self.scheme, self.limits = url, scheme_of(url), limits

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
        """Call a method of the file system, and retry it while its error is transient.

        Args:
            place: the URL, for messages.
            name: the method's name.
            args: the method's arguments; `options` too.
            doing: "read" or "written", for messages.
            num_bytes: to move; adds to the time limit.
            many: the method sends many requests, as a listing does; adds an hour to the time limit.

        Raises FileNotFoundError, FileExistsError, FormatError (the file is shorter than the range), StoreError.
        """
        more = num_bytes / _SLOWEST_BYTES + many * _LISTING_SECONDS
        return self.retry(place, lambda run: run(name, *args, **options), doing, more)

    def read_range(self, place: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of a file, all of them; errors as `call`."""

        def attempt(run: Callable[..., Any]) -> bytes:
            data: bytes = run("cat_file", place, start=start, end=end)
            if len(data) == end - start:
                return data
            if (num_bytes := run("info", place)["size"]) < end:
                raise FormatError(cut_short(place, num_bytes, start, end))
            raise EOFError(f"the store sent {len(data)} bytes of [{start}, {end})")

        return self.retry(place, attempt, more_seconds=(end - start) / _SLOWEST_BYTES)

    def retry(
        self, place: str, attempt: Callable[[Callable[..., Any]], T], doing: str = "read", more_seconds: float = 0.0
    ) -> T:
        """Return `attempt(run)`, retried while its error is transient; `run` calls a method of the file system."""
        from tokenloom.storage.stores.remote_systems import run, system_of  # late: local stores don't load fsspec

        end = time.monotonic() + self.limits.total_seconds + more_seconds
        for number in range(1, self.limits.tries + 1):
            seconds = min(self.limits.read_seconds + more_seconds, max(0.1, end - time.monotonic()))
            try:
                result = attempt(partial(run, system_of(self.url, self.limits.read_seconds), seconds))
                _answered.add(self.scheme)
                _said.pop(place, None)
                return result
            except (StoreError, FormatError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001  (of any library; translated)
                pause = FIRST_WAIT_SECONDS * 2 ** (number - 1)
                is_last = number == self.limits.tries or time.monotonic() + pause >= end or is_ending()
                if (kind := kind_of(error)) != "transient":
                    _answered.add(self.scheme)
                if kind != "transient" or is_last:
                    raise self._translated(error, place, number, doing) from without_secrets(error)
                if _said.get(place) != (reason := reason_of(misdirection_of(error) or error)):
                    _logger.warning("%s: %s; try %d of %d failed", place, reason, number, self.limits.tries)
                    _said[place] = reason
            _sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _translated(self, error: Exception, place: str, number: int, doing: str) -> Exception:
        """Return the error to raise for an error of a store's library after `number` tries."""
        kind, reason = kind_of(error), reason_of(error)
        if kind == "missing":
            return no_bucket(self.url) if is_bucket_missing(error) else FileNotFoundError(place)
        if kind == "exists":
            return FileExistsError(place)
        if kind == "shorter":
            return FormatError(f"{place}: it is shorter than the range that was read: it was cut short; restore it")
        if kind == "forbidden":
            return self._forbidden(place, reason, doing, is_unexplained(error))
        if kind == "transient" and (found := misdirection_of(error)):
            return StoreError(
                f"{place}: no store answers at its endpoint, in {number} tries ({reason_of(found)}); "
                f"{self._credentials_first()}{_endpoint_advice(self.scheme)}, and run the same command again"
            )
        if kind == "transient":
            return StoreError(
                f"{place}: the store did not answer correctly in {number} tries ({reason}); "
                f"{self._credentials_first()}check whether it can be reached from here, and run the same command again"
            )
        named = _named_endpoint(self.scheme)
        return StoreError(f"{place}: can't be {doing} ({reason}); check the URL" + (f"; {named}" if named else ""))

    def _forbidden(self, place: str, reason: str, doing: str, is_unexplained: bool) -> StoreError:
        verb, verbs = ("read", "list and read") if doing == "read" else ("write", "read and write")
        why = f"no permission to {verb} it, or no credentials ({reason})"
        if is_unexplained:
            why = (
                f"the store refused the request and did not say why ({reason}): the credentials have expired or are "
                f"wrong, the clock of this machine is wrong, or there is no permission to {verb} it"
            )
        return StoreError(
            f"{place}: {why}; set credentials of a user who may {verbs} that store in the environment, "
            f"for {self.scheme}:// {_CREDENTIALS[self.scheme]}"
        )

    def _credentials_first(self) -> str:
        """Return the advice to set credentials if none were found and requests were anonymous, else ""."""
        from tokenloom.storage.stores.remote_systems import is_anonymous, system_of

        if self.scheme not in GOOGLE or not is_anonymous(system_of(self.url, self.limits.read_seconds)):
            return ""
        return f"no credentials were found, set {_CREDENTIALS[self.scheme]}; "


def never_answered(error: BaseException) -> bool:
    """Return whether an error is that of a store whose endpoint is likely wrong: it has not answered this process."""
    place = next((text_of(link) for link in chain_of(error) if isinstance(link, StoreError)), "")
    return bool(place) and misdirection_of(error) is not None and scheme_of(place) not in _answered


def _named_endpoint(scheme: str) -> str:
    """Return the variable of the environment that sets the endpoint, and its value; "" if none does."""
    name = next((name for name in _ENDPOINTS.get(scheme, ()) if os.environ.get(name)), None)
    return f"{name} is {redacted(os.environ[name])}" if name else ""


def _endpoint_advice(scheme: str) -> str:
    if named := _named_endpoint(scheme):
        return f"{named}: correct it, or start the server there"
    names = _ENDPOINTS.get(scheme)
    return (
        f"check the network, and set {names[-1]} if the store is another one"
        if names
        else "check the URL and the network"
    )


def no_bucket(url: str) -> StoreError:
    """Return the error to raise if the bucket or container of a store's URL does not exist."""
    bucket = f"{scheme_of(url)}://{bucket_and_key(url)[0]}"
    return StoreError(f"{bucket}: no such bucket or container; create it or correct the URL {url}")


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not is_ending():
        time.sleep(min(left, _POLL_SECONDS))
