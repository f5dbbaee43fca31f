"""nanoGPT's files, train.bin and val.bin: raw ids of 16 bits; the end-of-text id alone says where documents end.

The length of such a file is all that says what it holds. The meta.pkl beside it is never opened, because reading a
pickle runs what it says.
"""

from __future__ import annotations

import numpy as np

from tokenloom.errors import InputError
from tokenloom.storage.formats.arrays import AnyDtype
from tokenloom.tasks.sources.files import input_bytes, open_input
from tokenloom.tasks.sources.tokens.base import Layout, TokenFormat
from tokenloom.tasks.sources.tokens.llmc import VERSIONS

_NUMPY = b"\x93NUMPY"
_HEAD_BYTES = 8


class Format(TokenFormat):
    """Raw ids; `dtype` is that of a script that writes others than nanoGPT's."""

    name = "nanogpt"
    suffix = ".bin"

    def layout(self, url: str) -> Layout:
        """See TokenFormat.layout."""
        if not self.options.get("dtype") and self.vocab_size > 2**16:
            raise InputError(f"{url}: nanoGPT's 16 bits can't hold {self.vocab_size:,} ids; set dtype")
        dtype = np.dtype(self.options.get("dtype") or "uint16").newbyteorder("<")
        return Layout(0, count_ids(url, dtype), dtype)


def count_values(url: str, dtype: AnyDtype) -> int:
    """Return how many values a file has; raises InputError if the last one is cut."""
    num_bytes = input_bytes(url)
    if num_bytes % dtype.itemsize:
        raise InputError(
            f"{url}: {num_bytes:,} bytes are not a multiple of the {dtype.itemsize} of {dtype.name}: it was cut, or is "
            "of another type; copy the file again, or set dtype"
        )
    return num_bytes // dtype.itemsize


def count_ids(url: str, dtype: AnyDtype) -> int:
    """Return how many ids a file has; raises InputError if the last one is cut, or if it begins with a header."""
    with open_input(url) as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_NUMPY):
        raise InputError(f"{url}: it begins with numpy's header, not with ids; write the array with tofile()")
    magic, version = np.frombuffer(head.ljust(_HEAD_BYTES, b"\0"), "<i4").tolist()
    if VERSIONS.get(magic) == version:
        raise InputError(f"{url}: it begins with the header of llm.c, not with ids; set format: llmc")
    return count_values(url, dtype)
