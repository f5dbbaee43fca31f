"""nanoGPT's files, train.bin and val.bin: raw ids of 16 bits; the end-of-text id alone says where documents end.

The meta.pkl beside them is never opened, because reading a pickle runs what it says.
"""

from __future__ import annotations

import numpy as np

from tokenloom.errors import InputError
from tokenloom.tasks.sources.tokens.base import Layout, TokenFormat
from tokenloom.tasks.sources.tokens.raw import count_ids


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
