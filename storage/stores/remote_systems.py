"""The fsspec file systems behind remote stores, created once per process, as a client is slow to start.

In storage/, only this module and google_credentials import fsspec, whose import takes as long as reading a hundred
megabytes.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from functools import partial
from typing import Any

import fsspec

from tokenloom.errors import StoreError
from tokenloom.storage.stores.google_credentials import google_system
from tokenloom.storage.stores.remote_errors import reason_of, without_secrets
from tokenloom.storage.stores.time_limit import BlockingFileSystem, result_of
from tokenloom.storage.stores.urls import AZURE, GOOGLE, S3, scheme_of

_CONNECT_SECONDS = 10.0
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
    options = _options_of(scheme, url)
    environment = tuple(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT))
    configured = {name: fsspec.config.conf.get(name) for name in _names_of(scheme)}
    key = os.getpid(), scheme, read_seconds, environment, repr((options, configured))
    with _making:
        if key not in _systems:
            make = partial(_make_system, scheme, read_seconds, options)
            _systems[key] = make() if _is_async(scheme) else BlockingFileSystem(scheme, make)
            for old in list(_systems)[:-_MAX_SYSTEMS]:  # of credentials that have changed since
                del _systems[old]
        return _systems[key]


def _names_of(scheme: str) -> tuple[str, ...]:
    """Return the schemes whose configured options fsspec passes to the file system of this one."""
    return next((names for names in (S3, GOOGLE, AZURE) if scheme in names), (scheme,))


def _options_of(scheme: str, url: str) -> dict[str, Any]:
    """Return the options that a URL contains, such as a host or an account."""
    try:
        options: dict[str, Any] = fsspec.get_filesystem_class(scheme)._get_kwargs_from_urls(url)
    except (ImportError, ValueError):  # _make_system reports it
        return {}
    return options


def _is_async(scheme: str) -> bool:
    try:
        return bool(fsspec.get_filesystem_class(scheme).async_impl)
    except (ImportError, ValueError):  # _make_system reports it
        return True


def _is_known(scheme: str) -> bool:
    return scheme in fsspec.registry or scheme in fsspec.available_protocols()


def _make_system(scheme: str, read_seconds: float, options: dict[str, Any]) -> Any:
    """Return a new fsspec file system without a listings cache and without retries of its own."""
    if scheme in S3:
        config: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": read_seconds}
        config |= {"retries": {"total_max_attempts": 1}}
        for name in _names_of(scheme):  # else fsspec would replace the user's options with ours
            config = fsspec.config.conf.get(name, {}).get("config_kwargs", {}) | config
        options = options | {"config_kwargs": config}
    if _is_async(scheme):  # others pass unknown options to their library, which refuses them
        options = options | {"use_listings_cache": False}
    try:
        anonymous = google_system(options) if scheme in GOOGLE else None
        system = anonymous or fsspec.filesystem(scheme, skip_instance_cache=True, **options)
    except ImportError as error:
        package = _EXTRAS.get(scheme)
        advice = f"pip install {package}" if package else str(error)
        raise StoreError(f"store {scheme}://: the package that reads it is not installed: {advice}") from error
    except (ValueError, TypeError) as error:  # an unknown option
        if not _is_known(scheme):
            raise StoreError(
                f"store {scheme}://: unknown URL scheme; a store is a local folder or a URL of s3:// (extra [s3]), "
                "gs:// (extra [gcs]), az:// (extra [azure]) or another scheme of fsspec"
            ) from None
        raise StoreError(f"store {scheme}://: {reason_of(error)}") from without_secrets(error)
    if scheme in S3:
        system.retries = 1
    _living[id(system)] = system
    return system


def run(system: Any, seconds: float, name: str, *args: Any, **options: Any) -> Any:
    """Call a method of a file system that `system_of` returned; give up after `seconds`, or when the program ends."""
    if isinstance(system, BlockingFileSystem):
        return system.run(seconds, name, *args, **options)
    call = getattr(system, f"_{name}")(*args, **options)
    return result_of(asyncio.run_coroutine_threadsafe(call, system.loop), seconds)
