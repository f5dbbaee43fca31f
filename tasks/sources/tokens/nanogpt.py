"""nanoGPT's files, train.bin and val.bin: raw ids of 16 bits; the end-of-text id alone says where documents end.

The meta.pkl beside them is never opened, because reading a pickle runs what it says.
"""

from __future__ import annotations

import numpy as np

from tokenloom.errors import InputError
from tokenloom.tasks.sources.files.opening import input_bytes
from tokenloom.tasks.sources.tokens.indexed import Layout, whole_ids
from tokenloom.tasks.sources.tokens.inferred import InferringFormat


class Format(InferringFormat):
    """Raw ids; `dtype` is that of a script that writes others than nanoGPT's."""

    name = "nanogpt"

    def check_name(self, url: str) -> None:
        """See TokenFormat.check_name."""
        if not url.endswith(".bin"):
            raise InputError(f"{url}: the ids of nanogpt are in .bin files; write a path such as data/*.bin")

    def layout(self, url: str) -> Layout:
        """See IndexedFormat.layout."""
        dtype = np.dtype(self.options.get("dtype") or "uint16").newbyteorder("<")
        return Layout(0, whole_ids(url, input_bytes(url), dtype), dtype)
