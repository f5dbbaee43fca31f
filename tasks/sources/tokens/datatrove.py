"""datatrove's tokenized files: raw ids of 2 or 4 bytes in .ds; beside it .ds.index, .ds.metadata and .ds.loss.

The index has the end of each document in tokens (u64), the loss file a byte a token: 1 if it is learned. The metadata
says in its first two lines the tokenizer and the bytes of an id, and the tokens. Each of the three may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tokenloom.errors import InputError
from tokenloom.storage.formats.arrays import TOKEN_DTYPES, AnyDtype, Int64s
from tokenloom.tasks.sources.base import INDEX, MASK, REPAIR
from tokenloom.tasks.sources.files import open_input
from tokenloom.tasks.sources.tokens.base import MISMATCH, Layout, Side, TokenFormat, read_values
from tokenloom.tasks.sources.tokens.nanogpt import count_ids, count_values

METADATA = "metadata"
BESIDE = {INDEX: ".index", MASK: ".loss", METADATA: ".metadata"}  # suffixes of the files beside X.ds
_METADATA_BYTES = 65_536
END = np.dtype("<u8")


class _Metadata(NamedTuple):
    """What metadata says."""

    tokenizer: str
    dtype: AnyDtype
    num_tokens: int


class Format(TokenFormat):
    """X.ds and the files beside it; without metadata, `dtype` or the vocabulary says the type of ids."""

    name = "datatrove"
    suffix = ".ds"

    def sides(self, url: str) -> Sequence[Side]:
        """See TokenFormat.sides."""
        return [Side(role, url + suffix, is_required=False) for role, suffix in BESIDE.items()]

    def notes(self, url: str) -> list[str]:
        """See TokenFormat.notes; its name does not say whether `decode` is that tokenizer."""
        made = [_read_metadata(f"{url}.metadata").tokenizer] if METADATA in self.options["has"] else []
        advice = "check that `tokenizer` of the spec means the same"
        return [*super().notes(url), *(f"{url}: its metadata says that {name} made the ids; {advice}" for name in made)]

    def layout(self, url: str) -> Layout:
        """See TokenFormat.layout; compares the tokens with what the metadata says."""
        narrow = self.vocab_size <= 2**16
        dtype = np.dtype(self.options.get("dtype") or ("uint16" if narrow else "uint32")).newbyteorder("<")
        described = None
        if METADATA in self.options["has"]:
            _, dtype, described = _read_metadata(f"{url}.metadata")
        num_tokens = count_ids(url, dtype)
        if described is not None and described != num_tokens:
            raise InputError(f"{url}: {num_tokens:,} tokens, and {url}.metadata says {described:,}: {MISMATCH}")
        return Layout(0 if self.infers else _num_documents(url, num_tokens), num_tokens, dtype)

    def bounds(self, url: str, start: int, end: int) -> Int64s:
        """See TokenFormat.bounds."""
        bounds = _read_ends(f"{url}.index", max(0, start - 1), end)
        bounds = bounds if start else np.append(0, bounds)
        if bounds[0] < 0 or (np.diff(bounds) < 0).any():
            raise InputError(f"{url}.index: the ends of documents [{start:,}, {end:,}) do not ascend; {REPAIR}")
        return bounds


def _num_documents(url: str, num_tokens: int) -> int:
    """Return how many documents an index has; compares where the last one ends with the tokens."""
    index = f"{url}.index"
    count = count_values(index, END)
    if (last := int(_read_ends(index, count - 1, count)[0]) if count else 0) != num_tokens:
        raise InputError(f"{index}: its documents end at token {last:,}, and {url} has {num_tokens:,}: {MISMATCH}")
    return count


def _read_ends(index: str, start: int, end: int) -> Int64s:
    """Return the ends of documents [start, end); one above the largest int64 becomes negative."""
    with open_input(index) as file:
        return read_values(file, index, start * END.itemsize, end - start, END).astype(np.int64)


def _read_metadata(url: str) -> _Metadata:
    with open_input(url) as file:
        lines = file.read(_METADATA_BYTES).decode(errors="replace").split("\n")
    name, _, width = lines[0].rpartition("|")
    if width not in ("2", "4") or len(lines) < 2 or not re.fullmatch("[0-9]{1,20}", lines[1]):
        raise InputError(
            f"{url}: not metadata of datatrove, which says TOKENIZER|2 or TOKENIZER|4, and the tokens in its next "
            "line; copy the file again, or delete it and set dtype"
        )
    return _Metadata(name, TOKEN_DTYPES[int(width)], int(lines[1]))
