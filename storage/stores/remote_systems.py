"""The file systems behind remote stores: one a process, kept, since a client takes a while to begin.

This alone imports fsspec and its event loop, which take as long as reading a hundred megabytes.
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
from tokenloom.storage.stores.remote_errors import harmless, reason_of
from tokenloom.storage.stores.time_limit import OneConnection, awaited
from tokenloom.storage.stores.url_protocols import AZURE, GOOGLE, S3

_CONNECT_SECONDS = 10.0
_MAX_SYSTEMS = 8
_EXTRAS = {
    **dict.fromkeys(S3, "'tokenloom[s3]'"),
    **dict.fromkeys(GOOGLE, "'tokenloom[gcs]'"),
    **dict.fromkeys(AZURE, "'tokenloom[azure]'"),
}

# Closing a connection that a fork copied would unhook it from the parent's event loop too: they share one epoll. So
# the child never lets go of what it inherited.
_living: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id: equal ones are many
_inherited: list[Any] = []
_making = threading.Lock()  # one file system, though several threads begin at once
_systems: dict[Any, Any] = {}  # a client takes a while to begin
_ENVIRONMENT = ("AWS_", "FSSPEC_", "GOOGLE_", "STORAGE_EMULATOR_", "AZURE_")  # what a file system takes from there


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    _inherited.extend(_living.values())


os.register_at_fork(after_in_child=_after_fork)


def system_of(url: str, read_seconds: float) -> Any:
    """Return the file system of this process: the event loop of a parent's does not run in a forked child.

    Args:
        url: of what is read or written.
        read_seconds: time limit of one request.

    Raises StoreError if the URL's protocol is not known here.
    """
    protocol = url.partition("://")[0]
    options = _options_of(protocol, url)
    environment = tuple(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT))
    configured = {name: fsspec.config.conf.get(name) for name in _names_of(protocol)}
    key = os.getpid(), protocol, read_seconds, environment, repr((options, configured))
    with _making:
        if key not in _systems:
            make = partial(_make_system, protocol, read_seconds, options)
            _systems[key] = make() if _is_async(protocol) else OneConnection(protocol, make)
            for old in list(_systems)[:-_MAX_SYSTEMS]:  # credentials change in a process that lives long
                del _systems[old]
        return _systems[key]


def _names_of(protocol: str) -> tuple[str, ...]:
    """Return the protocols whose options fsspec gives to the file system of this one."""
    return next((names for names in (S3, GOOGLE, AZURE) if protocol in names), (protocol,))


def _options_of(protocol: str, url: str) -> dict[str, Any]:
    """Return what a URL says of its file system, such as a host or an account."""
    try:
        options: dict[str, Any] = fsspec.get_filesystem_class(protocol)._get_kwargs_from_urls(url)
    except (ImportError, ValueError):  # told when it is made
        return {}
    return options


def _is_async(protocol: str) -> bool:
    try:
        return bool(fsspec.get_filesystem_class(protocol).async_impl)
    except (ImportError, ValueError):  # told when it is made
        return True


def _is_known(protocol: str) -> bool:
    return protocol in fsspec.registry or protocol in fsspec.available_protocols()


def _make_system(protocol: str, read_seconds: float, options: dict[str, Any]) -> Any:
    """Return a new fsspec file system that caches no listing and tries nothing again by itself."""
    if protocol in S3:
        config: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": read_seconds}
        config |= {"retries": {"total_max_attempts": 1}}
        for name in _names_of(protocol):  # fsspec would let ours replace all of the user's
            config = fsspec.config.conf.get(name, {}).get("config_kwargs", {}) | config
        options = options | {"config_kwargs": config}
    if _is_async(protocol):  # others hand what they do not know to their library, which refuses it
        options = options | {"use_listings_cache": False}
    try:
        anonymous = google_system(options) if protocol in GOOGLE else None
        system = anonymous or fsspec.filesystem(protocol, skip_instance_cache=True, **options)
    except ImportError as error:
        package = _EXTRAS.get(protocol)
        advice = f"pip install {package}" if package else str(error)
        raise StoreError(f"store {protocol}://: the package that reads it is not installed: {advice}") from error
    except (ValueError, TypeError) as error:  # an option that it does not know
        if not _is_known(protocol):
            raise StoreError(
                f"store {protocol}://: unknown protocol; a store is a local folder or a URL of s3:// (extra [s3]), "
                "gs:// (extra [gcs]), az:// (extra [azure]) or another protocol of fsspec"
            ) from None
        raise StoreError(f"store {protocol}://: {reason_of(error)}") from harmless(error)
    if protocol in S3:
        system.retries = 1
    _living[id(system)] = system
    return system


def run(system: Any, seconds: float, name: str, *args: Any, **options: Any) -> Any:
    """Call a method of what system_of returned; it is given up after `seconds`, or at the program's end."""
    if isinstance(system, OneConnection):
        return system.run(seconds, name, *args, **options)
    call = getattr(system, f"_{name}")(*args, **options)
    return awaited(asyncio.run_coroutine_threadsafe(call, system.loop), seconds)
