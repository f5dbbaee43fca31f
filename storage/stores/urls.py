"""URLs of stores: the schemes of object stores, and the parts of a URL."""

from __future__ import annotations

S3 = ("s3", "s3a")
GOOGLE = ("gs", "gcs")
AZURE = ("az", "abfs", "abfss")
OBJECT_STORES = (*S3, *GOOGLE, *AZURE)
_OBJECT_URLS = tuple(f"{scheme}://" for scheme in OBJECT_STORES)


def scheme_of(url: str) -> str:
    """Return the scheme of a URL: "s3://bucket/key" -> "s3"."""
    return url.partition("://")[0]


def bucket_and_key(url: str) -> tuple[str, str]:
    """Return the bucket or container of a URL, and the key in it: "s3://bucket/a/b" -> ("bucket", "a/b")."""
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key


def is_object(url: str) -> bool:
    """Return whether a URL names an object of S3, Google or Azure; False for a chain of file systems (::)."""
    return url.startswith(_OBJECT_URLS) and "::" not in url
