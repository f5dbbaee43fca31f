"""llm.c's data files: a header of 256 int32, then the ids; each document begins with the end-of-text id.

Magic 20240520 (version 1) holds uint16: llm.c, modded-nanogpt, nemo-automodel. 20240801 (version 7) holds uint32, for
llm.c's train_llama3.py. 278895051 (version 1) holds 2 or 4 bytes an id, header[3] says which, for nemo-automodel.

An end-of-text id that begins a document ends the one before it. llm.c's tools cut a document where a file is full: its
parts are documents of their own here.
"""

from __future__ import annotations

import numpy as np

from tokenloom.errors import InputError
from tokenloom.storage.formats.arrays import TOKEN_DTYPES, AnyDtype
from tokenloom.tasks.sources.base import REPAIR
from tokenloom.tasks.sources.files import input_bytes, open_input
from tokenloom.tasks.sources.tokens.base import Layout, TokenFormat, read_values

HEADER_INTS = 256
GPT2, LLAMA3, AUTOMODEL = MAGICS = (20240520, 20240801, 278895051)
VERSIONS = {GPT2: 1, LLAMA3: 7, AUTOMODEL: 1}


class Format(TokenFormat):
    """Files of three magic numbers; the header says the type of ids, and how many there are."""

    name = "llmc"
    suffix = ".bin"
    eot_leads = True

    def layout(self, url: str) -> Layout:
        """See TokenFormat.layout; compares the header with the length of the file."""
        with open_input(url) as file:
            header = read_values(file, url, 0, HEADER_INTS, np.dtype("<i4"))
        dtype, count = _dtype(url, *header[[0, 1, 3]].tolist()), int(header[2])
        num_bytes = input_bytes(url) - header.nbytes
        if num_bytes != count * dtype.itemsize:
            raise InputError(
                f"{url}: its header says {count:,} tokens of {dtype.itemsize} bytes, but {num_bytes:,} bytes follow: "
                "it was cut or changed; copy the file again"
            )
        return Layout(0, count, dtype, header.nbytes)


def _dtype(url: str, magic: int, version: int, num_bytes: int) -> AnyDtype:
    """Return the type of ids that a header says."""
    if VERSIONS.get(magic) != version:
        known = ", ".join(f"{each} version {VERSIONS[each]}" for each in MAGICS)
        raise InputError(
            f"{url}: it begins with {magic} version {version}, and files of llm.c with {known}; check the format"
        )
    width = {GPT2: 2, LLAMA3: 4}.get(magic, num_bytes)
    if width not in (2, 4):
        raise InputError(f"{url}: its header says {width} bytes an id, not 2 or 4; {REPAIR}")
    return TOKEN_DTYPES[width]
