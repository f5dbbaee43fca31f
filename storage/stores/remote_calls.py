"""Calls of the libraries of remote stores: each library's own retries, within limits; errors say what to do.

A call is a range, a listing page or an upload part. It has a time limit, and is abandoned early when the program ends.
The fsspec file systems are created once per process, as a client is slow to start. remote_errors.py says what an error
means; tasks/running/steps.py says who retries what on the levels above.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Any

from tokenloom.errors import FormatError, StoreError, text_of
from tokenloom.process import is_ending
from tokenloom.storage.stores import RemoteKind, bucket_and_key, is_object, remote_kind, scheme_of
from tokenloom.storage.stores.remote_errors import (
    StrangeAnswer,
    Unanswered,
    chain_of,
    is_bucket_missing,
    kind_of,
    reason_of,
    without_secrets,
)
from tokenloom.wording import redacted

_SLOWEST_BYTES = 2**18  # bytes a second of the slowest transfer; extends the time limit of a call
_LISTING_SECONDS = 3600.0  # for a million names and more; each of its requests has a limit too
_answered: set[str] = set()  # the schemes of stores that have answered this process
_POLL_SECONDS = 0.1  # between looks whether the program ends
_GOOGLE_CACHE = "~/.gcs_tokens"  # of a login in a browser; gcsfs reads it
_MAX_SYSTEMS = 8

# A forked child must not close the connections it inherited: parent and child share one epoll, so closing one would
# remove it from the parent's event loop too. These references keep them open.
_living: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id, as many compare equal
_inherited: list[Any] = []
_making = threading.Lock()  # so that threads share one file system
_systems: dict[Any, Any] = {}
_ENVIRONMENT = ("AWS_", "FSSPEC_", "GOOGLE_", "STORAGE_EMULATOR_", "AZURE_")  # read by file systems


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
    if kind == "missing":
        return no_bucket(place) if is_bucket_missing(error) else FileNotFoundError(place)
    if kind == "exists":
        return FileExistsError(place)
    if kind == "shorter":
        return FormatError(f"{place}: it is shorter than the range that was read: it was cut short; restore it")
    if kind == "forbidden":
        verb = "read" if doing == "read" else "write"
        return StoreError(
            f"{place}: no permission to {verb} it, or no credentials, or they are wrong or have expired, or the clock "
            f"of this machine is wrong ({reason}); set credentials of a user who may {verb} it in the "
            f"environment, for {scheme_of(place)}:// {remote_kind(place).credentials}"
        )
    if kind == "transient":
        return StoreError(
            f"{place}: the store did not answer correctly, although its library retried ({reason}); check the network, "
            f"the endpoint{_endpoint(place)} and the credentials ({remote_kind(place).credentials}), and run the same "
            "command again"
        )
    return StoreError(f"{place}: can't be {doing} ({reason}); check the URL and the endpoint{_endpoint(place)}")


def never_answered(error: BaseException) -> bool:
    """Return whether an error is that of a store whose endpoint may be wrong: it has not answered this process."""
    messages = (text_of(link) for link in chain_of(error) if isinstance(link, StoreError))
    return any(is_object(message) and scheme_of(message) not in _answered for message in messages)


def _endpoint(place: str) -> str:
    """Return the variable of the environment that sets the endpoint, and its value, in brackets; "" for Azure."""
    names = remote_kind(place).endpoints
    name = next((name for name in names if os.environ.get(name)), names[-1] if names else "")
    return f" ({name} is {redacted(os.environ.get(name, 'not set'))})" if name else ""


def no_bucket(place: str) -> StoreError:
    """Return the error to raise if the bucket or container of a URL does not exist."""
    bucket = f"{scheme_of(place)}://{bucket_and_key(place)[0]}"
    return StoreError(f"{bucket}: no such bucket or container; create it or correct the URL {place}")


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    _inherited.extend(_living.values())


os.register_at_fork(after_in_child=_after_fork)


def system_of(url: str) -> Any:
    """Return this process's file system for a URL; a forked child creates its own, as the parent's event loop is gone.

    Raises StoreError if its package is not installed.
    """
    import fsspec  # takes as long as reading a hundred megabytes, and a local store does not need it

    scheme, kind = scheme_of(url), remote_kind(url)
    try:
        options = fsspec.get_filesystem_class(scheme)._get_kwargs_from_urls(url)  # such as an account
    except ImportError as error:
        advice = f"pip install 'tokenloom[{kind.extra}]'"
        raise StoreError(f"store {scheme}://: the package that reads it is not installed: {advice}") from error
    environment = tuple(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT))
    configured = {name: fsspec.config.conf.get(name) for name in kind.schemes}
    key = os.getpid(), scheme, kind, environment, repr((options, configured))
    with _making:
        if key not in _systems:
            _systems[key] = _make_system(scheme, kind, options)
            for old in list(_systems)[:-_MAX_SYSTEMS]:  # of credentials that have changed since
                del _systems[old]
        return _systems[key]


def _make_system(scheme: str, kind: RemoteKind, options: dict[str, Any]) -> Any:
    """Return a new fsspec file system without a listings cache, whose requests keep to the limits of its kind."""
    import fsspec

    options = options | {"use_listings_cache": False} | _limits(kind)
    try:
        anonymous = _anonymous_google(kind, options) if kind.name == "gs" else None
        system = anonymous or fsspec.filesystem(scheme, skip_instance_cache=True, **options)
    except (ValueError, TypeError) as error:  # an unknown option
        raise StoreError(f"store {scheme}://: {reason_of(error)}") from without_secrets(error)
    if kind.name == "s3":
        from s3fs.core import set_custom_error_handler

        set_custom_error_handler(_retries_s3)
        system.retries = kind.tries
        system._call_s3 = partial(_call_s3, system._call_s3)
    _living[id(system)] = system
    return system


def _limits(kind: RemoteKind) -> dict[str, Any]:
    """Return the options of a file system that limit its requests."""
    if kind.name == "gs":
        import aiohttp  # as gcsfs does

        logging.getLogger("gcsfs").addHandler(logging.NullHandler())  # it logs the errors that it raises

        limits = aiohttp.ClientTimeout(total=None, sock_connect=kind.connect_seconds, sock_read=kind.read_seconds)
        return {"requests_timeout": limits}
    if kind.name == "az":
        return {"connection_timeout": kind.connect_seconds, "read_timeout": kind.read_seconds}
    import fsspec

    config: dict[str, Any] = {"connect_timeout": kind.connect_seconds, "read_timeout": kind.read_seconds}
    config |= {"retries": {"total_max_attempts": 1}}  # s3fs retries, bodies too
    for name in kind.schemes:  # else fsspec would replace the user's options with ours
        config = fsspec.config.conf.get(name, {}).get("config_kwargs", {}) | config
    return {"config_kwargs": config, "max_concurrency": 1}  # with more, s3fs asks for the length of what it reads


def _retries_s3(error: Exception) -> bool:
    """Return whether s3fs retries after an error, as it does itself after some; it does on two levels."""
    return kind_of(error) == "transient" and not isinstance(error, Unanswered) and not is_ending()


async def _call_s3(call: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
    """Send a request to S3; raises StrangeAnswer for one of another server, whose missing fields no library checks."""
    try:
        answer = await call(*args, **options)
    except Exception as error:
        _check_is_s3(getattr(error.__cause__, "response", None))  # botocore makes a page an error of the server
        if kind_of(error) == "transient":
            raise Unanswered(text_of(error)) from error
        raise
    _check_is_s3(answer)
    return answer


def _check_is_s3(answer: Any) -> None:
    metadata = answer.get("ResponseMetadata", {}) if isinstance(answer, dict) else {}
    status, headers = metadata.get("HTTPStatusCode", 0), metadata.get("HTTPHeaders", {})
    is_of_s3 = "etag" in headers or any(name.startswith("x-amz") for name in headers)
    kind = headers.get("content-type", "xml")
    if (status == 200 or status >= 500) and not is_of_s3 and "xml" not in kind:
        what = "a web page" if "html" in kind else f"an answer of type {kind}"
        raise StrangeAnswer(f"{what} from {headers.get('server', 'a server without a name')}, not an answer of S3")


def run(system: Any, seconds: float, name: str, *args: Any, **options: Any) -> Any:
    """Call a method of a file system that `system_of` returned; give up after `seconds`, or when the program ends."""
    import asyncio  # as fsspec does

    answer = asyncio.run_coroutine_threadsafe(getattr(system, f"_{name}")(*args, **options), system.loop)
    end = time.monotonic() + seconds
    try:
        while not wait([answer], timeout=min(_POLL_SECONDS, max(0.0, end - time.monotonic()))).done:
            if is_ending() or time.monotonic() >= end:
                raise TimeoutError(f"no answer in {seconds:.1f} s")
        return answer.result()
    finally:
        answer.cancel()


def _anonymous_google(kind: RemoteKind, options: dict[str, Any]) -> Any:
    """Return an anonymous file system of Google's store; None if this machine may have credentials.

    The library (gcsfs 2026.8) searches for credentials in four ways, which takes 17 seconds. Here google.auth's own
    search decides.
    """
    import fsspec
    import google.auth
    from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]
    from google.auth.exceptions import DefaultCredentialsError

    configured = [name for scheme in kind.schemes for name in fsspec.config.conf.get(scheme, {})]
    has_login = Path(os.path.expanduser(_GOOGLE_CACHE)).exists()  # also without a home folder
    if "token" in options or configured or "STORAGE_EMULATOR_HOST" in os.environ or has_login:
        return None
    try:
        google.auth.default()
    except DefaultCredentialsError:
        # Not its subclass, which needs credentials to ask for the kind of a bucket.
        return GCSFileSystem(token="anon", skip_instance_cache=True, **options)
    return None
