"""The text of a spec file, which lies on this machine or at an fsspec URL."""

from __future__ import annotations

from pathlib import Path

from tokenloom.errors import SpecError, StoreError, said
from tokenloom.spec.base import SECRET_URL


def read_spec_text(where: str) -> tuple[str, str]:
    """Return the text of a spec file and the folder from which its relative paths count.

    Args:
        where: a local path or an fsspec URL.

    Raises:
        SpecError: there is no such file, it is not UTF-8, or a URL carries a secret.
        StoreError: a remote store does not give it.
    """
    try:
        if "://" in where:
            data, folder = _read_url(where)
        else:
            data, folder = Path(where).read_bytes(), str(Path(where).parent.absolute())
        return data.decode("utf-8"), folder
    except FileNotFoundError as error:
        advice = "see whether the URL is right" if "://" in where else f"`tokenloom init {where}` writes a starter spec"
        raise SpecError(f"{where}: no such file; {advice}") from error
    except IsADirectoryError as error:
        raise SpecError(f"{where}: this is a folder; name the YAML file of the spec") from error
    except StoreError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{where}: can't be read: {getattr(error, 'strerror', None) or said(error)}") from error


def _read_url(url: str) -> tuple[bytes, str]:
    """Return the bytes at a URL, and the URL of its folder."""
    from tokenloom.storage.stores.remote import RemoteStore

    if SECRET_URL.search(url):
        place = SECRET_URL.sub("***", url)
        raise SpecError(f"{place}: a URL must not carry a password; give credentials in the environment")
    protocol, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    if protocol in ("http", "https"):
        rest = rest.partition("?")[0]
    return RemoteStore(f"{protocol}://{host}").read(path), f"{protocol}://{rest.rpartition('/')[0]}"
