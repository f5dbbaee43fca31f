"""Open text files, plain or compressed, as a stream of the bytes of their text."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

import pyarrow as pa

from tokenloom.errors import InputError, message_of
from tokenloom.tasks.sources.files.opening import announce, input_bytes, is_local, open_input

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_NOT_TEXT = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh91AY&SY": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"PK\x03\x04": "zip",
    b"PAR1": "parquet",
    b"ARROW1": "Arrow",
}
_UNSUPPORTED = (".xz", ".lz4", ".lzma", ".zip", ".7z", ".br", ".Z")
_BUFFER_BYTES = 2**20


def compression(url: str) -> str | None:
    """Return the compression that a file's name implies: gzip, bz2, zstd or None; raises InputError for any other."""
    if url.endswith(_UNSUPPORTED):
        raise InputError(f"{url}: this compression is not supported; recreate it with {', '.join(_CODECS)} or none")
    return next((codec for suffix, codec in _CODECS.items() if url.endswith(suffix)), None)


def _check_plain(url: str, file: IO[bytes]) -> None:
    """Raise InputError for a file that is clearly not text, whatever the rules for bad bytes say."""
    head = file.read(10)
    file.seek(0)
    for mark, what in _NOT_TEXT.items():
        if head.startswith(mark):
            raise InputError(
                f"{url}: its first bytes are those of {what}; end its name in {', '.join(_CODECS)} if it is such a "
                "file, set the kind that reads it, or leave it out"
            )


@contextmanager
def open_decompressed(url: str) -> Iterator[IO[bytes]]:
    """Open an input file for reading forwards, decompressed if its name implies it.

    Arrow's codecs read several members and detect a truncated file; its gzip is 2.5 times as fast as Python's.

    Raises InputError if it is missing, can't be read, or is broken.
    """
    codec = compression(url)
    with open_input(url) as file:
        if codec is None:
            _check_plain(url, file)
            # The readline of fsspec's files takes no maximum.
            yield file if is_local(url) else cast(IO[bytes], io.BufferedReader(cast(io.RawIOBase, file), _BUFFER_BYTES))
            return
        num_bytes = input_bytes(url)
        announce(file, [(0, num_bytes)])
        if num_bytes == 0:
            raise InputError(f"{url}: the file is empty, so it is not a {codec} file; recreate it")
        try:
            stream = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
            yield cast(IO[bytes], io.BufferedReader(stream, _BUFFER_BYTES))
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:  # not raised by the codec
                raise
            reason = message_of(error)
            broken = f"broken {codec}: {reason}; recreate the file or leave it out"
            raise InputError(f"{url}: {too_large_window(reason) or broken}") from error


def too_large_window(reason: str) -> str:
    """Return what to do if the reason of a decoder is that the window of zstd is too large; "" for any other."""
    if "requires too much memory" not in reason:
        return ""
    return (
        "compressed with a window of more than 128 MiB (zstd --long=28 or more), which may not fit into a worker's "
        "memory; recreate it with 27 or less: zstd -dc --long=31 FILE | zstd --long=27 -o NEW"
    )
