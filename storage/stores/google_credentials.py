"""Whether this machine has Google credentials, decided before the store's library searches for half a minute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec

from tokenloom.storage.stores.url_protocols import GOOGLE

_CACHE = "~/.gcs_tokens"  # of a login in a browser, which the library of the store reads


def google_system(options: dict[str, Any]) -> Any:
    """Return a file system of Google's store that sends no credentials; None if there may be some.

    The library (gcsfs 2026.8) looks for them in four ways, which take 17 seconds, and then sends each request without
    any six times. Here Google's own search decides.

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
    """Return whether a file system of Google's store sends no credentials."""
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
    """Return the method that makes a request, without the library's retries, which it has no option for."""
    return type(system)._request.__wrapped__.__get__(system)
