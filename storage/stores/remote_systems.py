"""The fsspec file systems behind remote stores, created once per process, as a client is slow to start.

In storage/, only this module imports fsspec, which takes as long as reading a hundred megabytes. Each call has a time
limit, and is abandoned early when the program ends. Python cannot end a blocking call, so it runs in a daemon thread.
Once a call is abandoned, nothing waits for its thread, and its file system is not used again.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

import fsspec

from tokenloom.errors import StoreError
from tokenloom.storage.stores.remote_errors import StrangeAnswer, is_ending, reason_of, without_secrets
from tokenloom.storage.stores.urls import AZURE, GOOGLE, S3, scheme_of

_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.1  # between looks whether the program ends
_GOOGLE_CACHE = "~/.gcs_tokens"  # of a login in a browser; gcsfs reads it
_MAX_SYSTEMS = 8
_EXTRAS = {
    **dict.fromkeys(S3, "'tokenloom[s3]'"),
    **dict.fromkeys(GOOGLE, "'tokenloom[gcs]'"),
    **dict.fromkeys(AZURE, "'tokenloom[azure]'"),
}

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


def system_of(url: str, read_seconds: float) -> Any:
    """Return this process's file system for a URL; a forked child creates its own, as the parent's event loop is gone.

    Args:
        url: the URL of the file or folder.
        read_seconds: time limit of one request.

    Raises StoreError if the URL's scheme is unknown or its package is not installed.
    """
    scheme = scheme_of(url)
    kind = _class_of(scheme)
    options = kind._get_kwargs_from_urls(url) if kind else {}  # such as a host or an account
    environment = tuple(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT))
    configured = {name: fsspec.config.conf.get(name) for name in _names_of(scheme)}
    key = os.getpid(), scheme, read_seconds, environment, repr((options, configured))
    with _making:
        if key not in _systems:
            make = partial(_make_system, scheme, read_seconds, options)
            is_blocking = kind and not kind.async_impl
            _systems[key] = _BlockingFileSystem(scheme, make) if is_blocking else make()
            for old in list(_systems)[:-_MAX_SYSTEMS]:  # of credentials that have changed since
                del _systems[old]
        return _systems[key]


def _names_of(scheme: str) -> tuple[str, ...]:
    """Return the schemes whose configured options fsspec passes to the file system of this one."""
    return next((names for names in (S3, GOOGLE, AZURE) if scheme in names), (scheme,))


def _class_of(scheme: str) -> Any:
    """Return the class of the file systems of a scheme, None if there is none or its package is not installed."""
    try:
        return fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError):  # _make_system reports it
        return None


def _make_system(scheme: str, read_seconds: float, options: dict[str, Any]) -> Any:
    """Return a new fsspec file system without a listings cache and without retries of its own."""
    if scheme in S3:
        config: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": read_seconds}
        config |= {"retries": {"total_max_attempts": 1}}
        for name in _names_of(scheme):  # else fsspec would replace the user's options with ours
            config = fsspec.config.conf.get(name, {}).get("config_kwargs", {}) | config
        options = options | {"config_kwargs": config}
    if (kind := _class_of(scheme)) and kind.async_impl:  # the libraries of others refuse options they do not know
        options = options | {"use_listings_cache": False}
    try:
        anonymous = _anonymous_google(options) if scheme in GOOGLE else None
        system = anonymous or fsspec.filesystem(scheme, skip_instance_cache=True, **options)
    except ImportError as error:
        package = _EXTRAS.get(scheme)
        advice = f"pip install {package}" if package else str(error)
        raise StoreError(f"store {scheme}://: the package that reads it is not installed: {advice}") from error
    except (ValueError, TypeError) as error:  # an unknown option
        if scheme not in fsspec.registry and scheme not in fsspec.available_protocols():
            raise StoreError(
                f"store {scheme}://: unknown URL scheme; a store is a local folder or a URL of s3:// (extra [s3]), "
                "gs:// (extra [gcs]), az:// (extra [azure]) or another scheme of fsspec"
            ) from None
        raise StoreError(f"store {scheme}://: {reason_of(error)}") from without_secrets(error)
    if scheme in S3:
        system.retries = 1
        system._call_s3 = partial(_call_s3, system._call_s3)
    _living[id(system)] = system
    return system


async def _call_s3(call: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
    """Send a request to S3; raises StrangeAnswer for one of another server, whose missing fields no library checks."""
    try:
        answer = await call(*args, **options)
    except OSError as error:  # botocore makes one that is not XML an error of the server
        _check_is_s3(getattr(error.__cause__, "response", None))
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
    if isinstance(system, _BlockingFileSystem):
        return system.run(seconds, name, *args, **options)
    call = getattr(system, f"_{name}")(*args, **options)
    return _result_of(asyncio.run_coroutine_threadsafe(call, system.loop), seconds)


def _result_of(answer: Future[Any], seconds: float) -> Any:
    """Return the result of a future; raises TimeoutError if it takes longer, or if the program ends."""
    end = time.monotonic() + seconds
    try:
        while not wait([answer], timeout=min(_POLL_SECONDS, max(0.0, end - time.monotonic()))).done:
            if is_ending() or time.monotonic() >= end:
                raise TimeoutError(f"no answer in {seconds:.1f} s")
        return answer.result()
    finally:
        answer.cancel()


class _BlockingFileSystem:
    """A file system whose library blocks, as that of sftp:// does; makes one call at a time, each with a time limit.

    Most such libraries have one connection, which two threads would corrupt. After a failure the next call makes a
    new file system: a lost connection stays lost, and an abandoned thread may still use the old one.

    Args:
        scheme: the scheme of its URLs.
        make: returns a new file system; it may connect to its server.
    """

    def __init__(self, scheme: str, make: Callable[[], Any]) -> None:
        self._urls, self._make, self._free = f"{scheme}://", make, threading.Lock()
        self._system: Any = None

    def run(self, seconds: float, name: str, *args: str, **options: Any) -> Any:
        """Call a method of the file system with paths in place of URLs, as many libraries accept only paths.

        Connecting and the call have `seconds` each, counted from the end of the calls before this one.

        Raises what the method raises, and TimeoutError.
        """
        with self._free:
            try:
                if self._system is None:
                    self._system = _result_of(_start(self._make), seconds)
                self._system.invalidate_cache()  # of listings
                paths = [self._system._strip_protocol(arg) if arg.startswith(self._urls) else arg for arg in args]
                return _result_of(_start(partial(getattr(self._system, name), *paths, **options)), seconds)
            except (FileNotFoundError, FileExistsError, PermissionError):  # answers, not failures
                raise
            except BaseException:
                self._system = None
                raise


def _start(call: Callable[[], Any]) -> Future[Any]:
    """Start a call in a thread that does not delay the program's exit."""
    answer: Future[Any] = Future()

    def work() -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  (raised by _result_of)
            answer.set_exception(error)

    threading.Thread(target=work, name="tokenloom-call", daemon=True).start()
    return answer


def _anonymous_google(options: dict[str, Any]) -> Any:
    """Return an anonymous file system of Google's store; None if this machine may have credentials.

    The library (gcsfs 2026.8) searches for credentials in four ways, which takes 17 seconds, and then sends each
    anonymous request six times. Here google.auth's own search decides.

    Args:
        options: the file system's options.
    """
    configured = [name for scheme in GOOGLE for name in fsspec.config.conf.get(scheme, {})]
    if "token" in options or configured or "STORAGE_EMULATOR_HOST" in os.environ or _has_google_credentials():
        return None
    # Not its subclass, which needs credentials to ask for the kind of a bucket.
    from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]

    system = GCSFileSystem(token="anon", skip_instance_cache=True, **options)
    system._request = _once(system)
    return system


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


def _once(system: Any) -> Any:
    """Return the method that sends a request, without the library's retries, which no option switches off."""
    return type(system)._request.__wrapped__.__get__(system)
