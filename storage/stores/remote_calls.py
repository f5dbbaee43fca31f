"""Calls of the libraries of remote stores: each library's own retries, within limits; errors say what to do.

A call is a range, a listing page or an upload part. remote_errors.py says what an error means; tasks/running/steps.py
says who retries what on the levels above.
"""

from __future__ import annotations

import os
from typing import Any

from tokenloom.errors import FormatError, StoreError, text_of
from tokenloom.storage.stores.remote_errors import (
    chain_of,
    is_bucket_missing,
    is_unexplained,
    kind_of,
    misdirection_of,
    reason_of,
    redacted,
    without_secrets,
)
from tokenloom.storage.stores.urls import bucket_and_key, remote_kind, scheme_of

_SLOWEST_BYTES = 2**18  # bytes a second of the slowest transfer; extends the time limit of a call
_LISTING_SECONDS = 3600.0  # for a million names and more; each of its requests has a limit too
_answered: set[str] = set()  # the schemes of stores that have answered this process


def call(
    place: str, name: str, *args: Any, writes: bool = False, num_bytes: int = 0, many: bool = False, **options: Any
) -> Any:
    """Call a method of the file system of a remote store.

    Args:
        place: the URL, which chooses the file system, and is named in messages.
        name: the method's name.
        args: the method's arguments; `options` too.
        writes: whether it writes, for messages.
        num_bytes: to move; adds to the time limit.
        many: the method sends many requests, as a listing does; adds an hour to the time limit.

    Raises FileNotFoundError, FileExistsError, FormatError (the file is shorter than the range), StoreError.
    """
    from tokenloom.storage.stores.remote_systems import run, system_of  # late: local stores don't load fsspec

    scheme, system = scheme_of(place), system_of(place)
    seconds = remote_kind(place).total_seconds + num_bytes / _SLOWEST_BYTES + many * _LISTING_SECONDS
    try:
        answer = run(system, seconds, name, *args, **options)
    except Exception as error:  # noqa: BLE001  (of any library; translated)
        if kind_of(error) != "transient":
            _answered.add(scheme)
        raise _translated(error, place, "written" if writes else "read") from without_secrets(error)
    _answered.add(scheme)
    return answer


def _translated(error: Exception, place: str, doing: str) -> Exception:
    """Return the error to raise for an error of a store's library."""
    kind, reason = kind_of(error), reason_of(error)
    again = "and run the same command again"
    if kind == "missing":
        return no_bucket(place) if is_bucket_missing(error) else FileNotFoundError(place)
    if kind == "exists":
        return FileExistsError(place)
    if kind == "shorter":
        return FormatError(f"{place}: it is shorter than the range that was read: it was cut short; restore it")
    if kind == "forbidden":
        return _forbidden(place, reason, doing, is_unexplained(error))
    if kind == "transient" and (misdirected := misdirection_of(error)):
        return StoreError(
            f"{place}: no store answers at its endpoint ({reason_of(misdirected)}); {_credentials_first(place)}"
            f"{_endpoint_advice(place)}, {again}"
        )
    if kind == "transient":
        return StoreError(
            f"{place}: the store did not answer correctly, although its library retried ({reason}); "
            f"{_credentials_first(place)}check whether it can be reached from here, {again}"
        )
    named = _named_endpoint(place)
    return StoreError(f"{place}: can't be {doing} ({reason}); check the URL" + (f"; {named}" if named else ""))


def _forbidden(place: str, reason: str, doing: str, is_unexplained: bool) -> StoreError:
    verb, verbs = ("read", "list and read") if doing == "read" else ("write", "read and write")
    why = f"no permission to {verb} it, or no credentials ({reason})"
    if is_unexplained:
        why = (
            f"the store refused the request and did not say why ({reason}): the credentials have expired or are "
            f"wrong, the clock of this machine is wrong, or there is no permission to {verb} it"
        )
    return StoreError(
        f"{place}: {why}; set credentials of a user who may {verbs} that store in the environment, "
        f"for {scheme_of(place)}:// {remote_kind(place).credentials}"
    )


def _credentials_first(place: str) -> str:
    """Return the advice to set credentials if none were found and requests were anonymous, else ""."""
    from tokenloom.storage.stores.remote_systems import is_anonymous, system_of

    if not is_anonymous(system_of(place)):
        return ""
    return f"no credentials were found, set {remote_kind(place).credentials}; "


def never_answered(error: BaseException) -> bool:
    """Return whether an error is that of a store whose endpoint is likely wrong: it has not answered this process."""
    place = next((text_of(link) for link in chain_of(error) if isinstance(link, StoreError)), "")
    return bool(place) and misdirection_of(error) is not None and scheme_of(place) not in _answered


def _named_endpoint(place: str) -> str:
    """Return the variable of the environment that sets the endpoint, and its value; "" if none does."""
    name = next((name for name in remote_kind(place).endpoints if os.environ.get(name)), None)
    return f"{name} is {redacted(os.environ[name])}" if name else ""


def _endpoint_advice(place: str) -> str:
    if named := _named_endpoint(place):
        return f"{named}: correct it, or start the server there"
    names = remote_kind(place).endpoints
    if not names:
        return "check the URL and the network"
    return f"check the network, and set {names[-1]} if the store is another one"


def no_bucket(place: str) -> StoreError:
    """Return the error to raise if the bucket or container of a URL does not exist."""
    bucket = f"{scheme_of(place)}://{bucket_and_key(place)[0]}"
    return StoreError(f"{bucket}: no such bucket or container; create it or correct the URL {place}")
