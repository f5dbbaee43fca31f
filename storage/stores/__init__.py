"""Stores: local folders and object stores behind one interface; the kinds of object stores, and the parts of a URL."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from tokenloom.errors import StoreError
from tokenloom.storage.stores.store import Store
from tokenloom.wording import redacted

__all__ = ["KINDS", "RemoteKind", "Store", "bucket_and_key", "is_object", "open_store", "remote_kind", "scheme_of"]


class RemoteKind(NamedTuple):
    """A kind of remote store: what its URLs begin with, what it needs, and how its library retries requests.

    A library tries a request `tries` times, and waits `connect_seconds` for a connection and `read_seconds` for bytes.
    `total_seconds` limits a call with all its tries; one that moves many bytes has more.
    """

    name: str
    schemes: tuple[str, ...]
    extra: str
    credentials: str
    endpoints: tuple[str, ...]  # variables of the environment
    tries: int
    connect_seconds: float = 10.0
    read_seconds: float = 30.0
    total_seconds: float = 120.0


_AWS_KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE"
_AZURE_KEYS = "AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
#: s3fs waits 0.1 s before it tries again, then 1.7 times as long each time, and after the last try: 10 s in all
_S3 = RemoteKind("s3", ("s3", "s3a"), "s3", _AWS_KEYS, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), tries=8)
#: fixed in gcsfs, which waits about 1, 2, 4, 8 and 16 s
_GOOGLE = RemoteKind("gs", ("gs", "gcs"), "gcs", "GOOGLE_APPLICATION_CREDENTIALS", ("STORAGE_EMULATOR_HOST",), tries=6)
#: fixed in Azure's library, which waits about 20 s each time
_AZURE = RemoteKind("az", ("az", "abfs", "abfss"), "azure", _AZURE_KEYS, (), tries=4)
KINDS = (_S3, _GOOGLE, _AZURE)
#: scheme -> the class of the store, imported on first use, as the libraries of remote stores take long
_STORES = dict.fromkeys(("", "file"), "tokenloom.storage.stores.local.LocalStore")
_STORES |= {scheme: "tokenloom.storage.stores.remote.RemoteStore" for kind in KINDS for scheme in kind.schemes}
_OBJECT_URLS = tuple(f"{scheme}://" for kind in KINDS for scheme in kind.schemes)


def scheme_of(url: str) -> str:
    """Return the scheme of a URL: "s3://bucket/key" -> "s3"."""
    return url.partition("://")[0]


def remote_kind(url: str) -> RemoteKind:
    """Return the kind of the store at the URL of an object store."""
    return next(kind for kind in KINDS if scheme_of(url) in kind.schemes)


def bucket_and_key(url: str) -> tuple[str, str]:
    """Return the bucket or container of a URL, and the key in it: "s3://bucket/a/b" -> ("bucket", "a/b")."""
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key


def is_object(url: str) -> bool:
    """Return whether a URL names an object of S3, Google or Azure; False for a chain of file systems (::)."""
    return url.startswith(_OBJECT_URLS) and "::" not in url


def open_store(root: str) -> Store:
    """Return the folder at `root`, a local path or a URL of s3://, gs:// or az://, as a store.

    Raises StoreError for a URL of another kind, one that contains a secret, or one that names no folder.
    """
    scheme = scheme_of(root) if "://" in root else ""
    if scheme not in _STORES or "::" in root:
        raise StoreError(
            f"store {redacted(root)}: a store is a local folder, or a URL such as s3://bucket/folder (extra [s3]), "
            "gs://bucket/folder (extra [gcs]) or az://container/folder (extra [azure])"
        )
    module, _, name = _STORES[scheme].rpartition(".")
    store: Store = getattr(import_module(module), name)(root)
    return store
