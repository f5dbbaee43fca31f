"""The fsspec file systems behind remote stores, created once per process, as a client is slow to start.

In storage/, only this module imports fsspec, which takes as long as reading a hundred megabytes. Each call has a time
limit, and is abandoned early when the program ends.
"""

from __future__ import annotations

import asyncio
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

import fsspec

from tokenloom.errors import StoreError, text_of
from tokenloom.storage.stores.remote_errors import (
    StrangeAnswer,
    Unanswered,
    is_ending,
    kind_of,
    reason_of,
    without_secrets,
)
from tokenloom.storage.stores.urls import RemoteKind, remote_kind, scheme_of

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


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    _inherited.extend(_living.values())


os.register_at_fork(after_in_child=_after_fork)


def system_of(url: str) -> Any:
    """Return this process's file system for a URL; a forked child creates its own, as the parent's event loop is gone.

    Raises StoreError if its package is not installed.
    """
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
    config: dict[str, Any] = {"connect_timeout": kind.connect_seconds, "read_timeout": kind.read_seconds}
    config |= {"retries": {"total_max_attempts": 1}}  # s3fs retries, bodies too
    for name in kind.schemes:  # else fsspec would replace the user's options with ours
        config = fsspec.config.conf.get(name, {}).get("config_kwargs", {}) | config
    return {"config_kwargs": config}


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

    Args:
        kind: Google's.
        options: the file system's options.
    """
    configured = [name for scheme in kind.schemes for name in fsspec.config.conf.get(scheme, {})]
    if "token" in options or configured or "STORAGE_EMULATOR_HOST" in os.environ or _has_google_credentials():
        return None
    # Not its subclass, which needs credentials to ask for the kind of a bucket.
    from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]

    return GCSFileSystem(token="anon", skip_instance_cache=True, **options)


def is_anonymous(system: Any) -> bool:
    """Return whether a file system of Google's store sends no credentials."""
    return getattr(getattr(system, "credentials", None), "method", None) == "anon"


def _has_google_credentials() -> bool:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        google.auth.default()
    except DefaultCredentialsError:
        return Path(os.path.expanduser(_GOOGLE_CACHE)).exists()  # also without a home folder
    return True
