"""Detect missing Google credentials at once; the store's own library would search for half a minute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec

from tokenloom.storage.stores.urls import GOOGLE

_CACHE = "~/.gcs_tokens"  # of a login in a browser; gcsfs reads it


def google_system(options: dict[str, Any]) -> Any:
    """Return an anonymous file system of Google's store; None if this machine may have credentials.

    The library (gcsfs 2026.8) searches for credentials in four ways, which takes 17 seconds, and then sends each
    anonymous request six times. Here google.auth's own search decides.

    Args:
        options: the file system's options.
    """
    configured = [name for scheme in GOOGLE for name in fsspec.config.conf.get(scheme, {})]
    if "token" in options or configured or "STORAGE_EMULATOR_HOST" in os.environ or _has_credentials():
        return None
    # Not its subclass, which needs credentials to ask for the kind of a bucket.
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
        return Path(os.path.expanduser(_CACHE)).exists()  # also without a home folder
    return True


def _once(system: Any) -> Any:
    """Return the method that sends a request, without the library's retries, which no option switches off."""
    return type(system)._request.__wrapped__.__get__(system)
