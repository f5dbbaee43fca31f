"""Protocols of URLs: which of them name object stores."""

from __future__ import annotations

S3 = ("s3", "s3a")
GOOGLE = ("gs", "gcs")
AZURE = ("az", "abfs", "abfss")
OBJECT_STORES = (*S3, *GOOGLE, *AZURE)
_OBJECT_URLS = tuple(f"{protocol}://" for protocol in OBJECT_STORES)


def is_object(url: str) -> bool:
    """Return whether a URL names an object of S3, Google's or Azure's store, and no chain of file systems."""
    return url.startswith(_OBJECT_URLS) and "::" not in url
