"""Input files of remote stores, opened once while a step reads them several times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tokenloom.errors import FormatError, InputError, StoreError, message_of
from tokenloom.storage.stores.remote import RemoteStore
from tokenloom.storage.stores.store_file import BLOCK_BYTES, StoreFile
from tokenloom.storage.stores.urls import bucket_and_key, scheme_of

_MAX_SHARED = 3  # files that stay open, each with its blocks: tokens, their index and mask


class _InputFile(StoreFile):
    """A StoreFile that raises InputErrors, so that decoders do not mistake a failed request for damaged data."""

    def _block(self, position: int) -> tuple[int, bytes]:
        try:
            return super()._block(position)
        except FileNotFoundError as error:
            raise InputError(
                f"{message_of(error)}: the file was deleted after the build was planned; build again"
            ) from error
        except (StoreError, FormatError) as error:
            raise InputError(str(error)) from error


_shared: ContextVar[tuple[dict[str, StoreFile], int] | None] = ContextVar("_shared", default=None)


@contextmanager
def sharing_files(block_bytes: int = BLOCK_BYTES) -> Iterator[None]:
    """Make `open_url` reuse a file, with its kept blocks, each time it is opened in the with-block."""
    token = _shared.set(({}, block_bytes))
    try:
        yield
    finally:
        _shared.reset(token)


@contextmanager
def open_url(url: str) -> Iterator[StoreFile]:
    """Open a file of a remote store by its URL; errors as StoreFile."""
    files, block_bytes = _shared.get() or ({}, BLOCK_BYTES)
    if url not in files:
        bucket, key = bucket_and_key(url)
        while len(files) >= _MAX_SHARED:
            del files[next(iter(files))]
        files[url] = _InputFile(RemoteStore(f"{scheme_of(url)}://{bucket}"), key, block_bytes)
    files[url].seek(0)
    yield files[url]
