"""Whether this machine has Google credentials, asked once: its store's library looks for them for half a minute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec

from tokenloom.storage.protocols import GOOGLE

_CACHE = "~/.gcs_tokens"  # of a login in a browser, which the library of the store reads


def google_system(options: dict[str, Any]) -> Any:
    """Return a file system of Google's store that asks without credentials, None if there may be some.

    The library (gcsfs 2026.8) looks for them in four ways, which take 17 seconds, and then asks without any, six times
    for each request. Here Google's own way of looking decides.

    Args:
        options: of the file system.
    """
    configured = [name for protocol in GOOGLE for name in fsspec.config.conf.get(protocol, {})]
    if "token" in options or configured or "STORAGE_EMULATOR_HOST" in os.environ or _has_credentials():
        return None
    # Not its subclass, which asks for the kind of a bucket, with credentials.
    from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]

    system = GCSFileSystem(token="anon", skip_instance_cache=True, **options)
    system._request = _once(system)
    return system


def is_anonymous(system: Any) -> bool:
    """Return whether a file system of Google's store asks without credentials."""
    return getattr(getattr(system, "credentials", None), "method", None) == "anon"


def _has_credentials() -> bool:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        google.auth.default()
    except DefaultCredentialsError:
        return Path(_CACHE).expanduser().exists()
    return True


def _once(system: Any) -> Any:
    """Return the method that makes a request, without the library's retries: remote_calls.py has its own."""
    return type(system)._request.__wrapped__.__get__(system)
