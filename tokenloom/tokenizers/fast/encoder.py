"""The fast encoder of a tokenizer: gigatoken, and the preparation of its texts.

gigatoken remembers the ids of every word that it meets, in 12 bytes for each byte of new words, and forgets none. So
that a worker stays within its memory, the encoder is made again when the process has grown by _MAX_GROWTH; that takes a
tenth of a second. Texts are encoded one by one, since a batch makes awkward arrays, whose import takes longer than the
others of a worker together; with long texts that is also twice as fast.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import gigatoken
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.storage.formats.arrays import Int64s, ranges_of
from tokenloom.storage.stores.local_files import translate_temporary_errors
from tokenloom.storage.work.segments import as_segments, take_segments
from tokenloom.tokenizers.base import Encoded, Tokenizer, library_errors, with_boundary_ids
from tokenloom.tokenizers.fast import Unproven
from tokenloom.tokenizers.fast.parts import MARKER, Parts, parts_of
from tokenloom.tokenizers.patterns import SPACE_MARK

NAME = f"gigatoken {version('gigatoken')}"
_MAX_GROWTH = 256_000_000
_MAX_NUM_BYTES = 32_000_000  # where the system does not tell how large a process is
_SPACE = ord(" ")
_MARKER_BYTES = len(MARKER.encode())


def make_encoder(tokenizer: Tokenizer) -> FastEncoder:
    """Make the fast encoder of a tokenizer; raises Unproven as parts_of and FastEncoder."""
    return FastEncoder(parts_of(tokenizer), tokenizer.bos_ids, tokenizer.eot_id)


class FastEncoder:
    """A tokenizer of gigatoken, which is made again when it has used too much memory.

    Attributes:
        library: its name and version.
        spellings: texts that it finds in a text where the reference does not; it must not get a text with one.

    Args:
        parts: the parts of a tokenizer.
        bos_ids: the ids before each document.
        eot_id: the id after each document.

    Raises Unproven if gigatoken does not take the parts.
    """

    library = NAME

    def __init__(self, parts: Parts, bos_ids: list[int], eot_id: int) -> None:
        self._parts, self._bos_ids, self._eot_id = parts, bos_ids, eot_id
        self.spellings = parts.spellings
        ranges = [np.arange(first, last + 1, dtype=np.uint32) for first, last in parts.id_ranges]
        ids = np.concatenate([np.empty(0, np.uint32), *ranges])
        self._id_of_rank = None if np.array_equal(ids, np.arange(len(ids))) else ids
        self._renew()

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """See Tokenizer.encode."""
        ids = self.encode_texts(texts.cast(pa.large_binary()).to_pylist())
        return with_boundary_ids(ids, self._bos_ids, self._eot_id, dtype)

    def encode_texts(self, texts: list[bytes]) -> list[NDArray[np.uint32]]:
        """Return the ids of each text, (num_ids,); the texts are UTF-8."""
        resident = _resident_bytes()
        if self._num_bytes > _MAX_NUM_BYTES if resident is None else resident > self._max_resident:
            self._renew()
        self._num_bytes += sum(map(len, texts))
        if self._parts.normalizes:
            texts = list(map(_normal_form, texts))
        elif self._parts.adds_space is not None:
            before = b" " if self._parts.adds_space else b""
            texts = [_spaced(text, before) for text in texts]
        if self._parts.run_ids:
            texts, runs = mark_runs(texts, self._parts.run_ids)
            return restore_runs(list(map(self._tokenizer.encode, texts)), runs, self._parts.marker_id)
        ids = list(map(self._tokenizer.encode, texts))
        return ids if self._id_of_rank is None else [self._id_of_rank[ranks] for ranks in ids]

    def _renew(self) -> None:
        self._tokenizer: Any = None  # frees the memory of the one before
        with library_errors("gigatoken does not take it", make=Unproven):
            self._tokenizer = _load(self._parts)
        self._num_bytes = 0
        self._max_resident = (_resident_bytes() or 0) + _MAX_GROWTH


def _load(parts: Parts) -> gigatoken.Tokenizer:
    content = parts.content.encode()
    if parts.pattern is None:
        return gigatoken.Tokenizer.from_json(content)
    with _file_of(content) as path:
        return gigatoken.Tokenizer.from_tiktoken(path, parts.pattern, {})


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """Yield the path of a file with these bytes: in memory, or in TMPDIR on systems that have no such files."""
    if sys.platform == "linux" and Path("/proc/self/fd").is_dir():
        with os.fdopen(os.memfd_create("ranks"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with translate_temporary_errors(), tempfile.NamedTemporaryFile(suffix=".tiktoken") as temporary:
        temporary.write(content)
        temporary.flush()
        yield temporary.name


def _resident_bytes() -> int | None:
    """Return the memory of this process; None where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return int(pages) * resource.getpagesize()


def _normal_form(text: bytes) -> bytes:
    """Return a text, UTF-8, in normal form C."""
    if text.isascii() or unicodedata.is_normalized("NFC", decoded := text.decode()):
        return text
    return unicodedata.normalize("NFC", decoded).encode()


def _spaced(text: bytes, before: bytes) -> bytes:
    """Replace U+2581 by spaces, and put `before` before a text that is not empty."""
    return before + text.replace(SPACE_MARK.encode(), b" ") if text else text


# ---- runs of spaces that are added tokens, see parts.py


def mark_runs(texts: list[bytes], run_ids: list[int]) -> tuple[list[bytes], NDArray[np.uint32]]:
    """Return texts, UTF-8, with markers for their runs of spaces, and the ids of all runs in order.

    A run is taken from the left: as many of the longest token as fit, then one for the rest; a single space stays.
    """
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    data = np.frombuffer(b"".join(texts), np.uint8)
    follows = _follows_space(data, offsets)
    edges = np.flatnonzero(follows[1:] != follows[:-1])
    starts, ends = edges[::2], edges[1::2] + 1
    starts, lengths = _cut_runs(starts, ends - starts, len(run_ids) - 1)
    marked = data.copy()
    marked[starts], marked[starts + 1] = MARKER.encode()
    cuts = np.column_stack([starts + _MARKER_BYTES, starts + lengths]).ravel()  # the rest of each run
    segments = as_segments(marked, np.diff(cuts, prepend=0, append=len(data)))
    joined = take_segments(segments, np.arange(0, len(cuts) + 1, 2), marked.dtype).tobytes()
    num_removed = np.cumsum(np.append(0, lengths - _MARKER_BYTES))
    bounds = (offsets - num_removed[np.searchsorted(starts, offsets)]).tolist()
    return [joined[start:end] for start, end in pairwise(bounds)], np.array(run_ids, np.uint32)[lengths]


def restore_runs(ids: list[NDArray[np.uint32]], runs: NDArray[np.uint32], marker_id: int) -> list[NDArray[np.uint32]]:
    """Return the ids of each text with those of the runs in place of markers; raise ValueError if some are lost."""
    tokens = np.concatenate([np.empty(0, np.uint32), *ids])
    is_marker = tokens == marker_id
    if (num_markers := np.count_nonzero(is_marker)) != len(runs):
        raise ValueError(f"{len(runs)} runs of spaces became {num_markers} markers")
    tokens[is_marker] = runs
    bounds = np.cumsum([0, *map(len, ids)]).tolist()
    return [tokens[start:end] for start, end in pairwise(bounds)]


def _follows_space(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which bytes are spaces after a space of the same text, and False for the end, (num_bytes + 1,)."""
    is_space = data == _SPACE
    follows = np.zeros(len(data) + 1, bool)
    np.logical_and(is_space[1:], is_space[:-1], out=follows[1:-1])
    follows[offsets] = False
    return follows


def _cut_runs(starts: Int64s, lengths: Int64s, longest: int) -> tuple[Int64s, Int64s]:
    """Return starts and lengths of the tokens of n runs: as many of the longest as fit into each, one for the rest."""
    num_longest, rest = np.divmod(lengths, longest)
    num_tokens = num_longest + (rest > 1)
    index = ranges_of(num_tokens)  # within its run
    is_longest = index < np.repeat(num_longest, num_tokens)
    return np.repeat(starts, num_tokens) + index * longest, np.where(is_longest, longest, np.repeat(rest, num_tokens))
