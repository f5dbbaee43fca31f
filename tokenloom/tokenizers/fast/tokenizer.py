"""A tokenizer that uses a fast encoder for the texts for which it is proven, and compares a sample of them.

Unicode 14 is that of the oldest supported Python. What it assigns has the same normal form in all later versions
(https://www.unicode.org/policies/stability_policy.html). What it does not assign may get any class later, and each
library learns of that in another release, so no fast encoder gets it. `unassigned.txt` lists those code points, which
newer versions of Python can't name, and the two planes for private use, which real text hardly uses: a probe then
compares half as many.

gigatoken remembers the ids of every word that it meets, in 12 bytes for each byte of new words, and forgets none. So
that a worker stays within its memory, the encoder is made again when the process has grown by _MAX_GROWTH; that takes a
tenth of a second. Texts are encoded one by one, since a batch makes awkward arrays, whose import takes longer than the
others of a worker together; with long texts that is also twice as fast.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import tempfile
import time
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.errors import EncoderMismatch
from tokenloom.storage.formats.arrays import Int64s, ranges_of, runs_of
from tokenloom.storage.formats.keys import Purpose, mix64
from tokenloom.storage.stores.local_files import read_regular, translate_temporary_errors
from tokenloom.storage.work.segments import as_segments, take_segments
from tokenloom.tokenizers.base import (
    WORKER_MARK,
    Encoded,
    Tokenizer,
    concatenate,
    library_errors,
    text_bytes,
    with_boundary_ids,
)
from tokenloom.tokenizers.fast import Unproven
from tokenloom.tokenizers.fast.proofs import installed_library
from tokenloom.tokenizers.patterns import MARKER, SPACE_MARK

if TYPE_CHECKING:
    from tokenloom.tokenizers.fast.parts import Parts  # it imports the packages of the references

_NUM_CODE_POINTS = 0x110000
_MAX_TEXT_BYTES = 16_000_000  # the memory of the reference for a long text is known
# The bytes of a character of two, three and four bytes: the first one's mask, and how many follow.
_LEAD_MASKS = np.array([0x7F] * 0xC0 + [0x1F] * 0x20 + [0x0F] * 0x10 + [0x07] * 0x10, np.uint32)
_RUN_BYTES = 1_000_000
_MAX_CHECKED_TEXT = 4_000_000
_HANG_SECONDS = 120  # time limit per batch; the slowest known text takes 2 s
_MAX_GROWTH = 256_000_000
_MAX_NUM_BYTES = 32_000_000  # where the system does not tell how large a process is
_MARKER_BYTES = len(MARKER.encode())


@cache
def left_to_reference() -> list[tuple[int, int]]:
    """Return ranges [first, last] of code points that no fast encoder gets, in order."""
    lines = read_regular(Path(__file__).with_name("unassigned.txt")).decode().splitlines()
    return [(int(first, 16), int(last, 16)) for first, last in map(str.split, lines)]


class Router:
    """Finds the texts that a fast encoder may encode differently.

    Args:
        odd: ranges [first, last] of code points that it may encode differently.
        spellings: texts that it finds in a text but the reference does not, such as those of special tokens.
    """

    def __init__(self, odd: Iterable[Sequence[int]], spellings: Collection[str]) -> None:
        self._is_odd = np.zeros(_NUM_CODE_POINTS, bool)
        for first, last in odd:
            self._is_odd[first : last + 1] = True
        characters = {text for text in spellings if len(text) == 1}
        self._is_odd[[ord(character) for character in characters]] = True
        self._has_odd = bool(self._is_odd.any())
        self._odd_ascii = self._is_odd[:0x80].copy()
        self._spellings = "|".join(map(re.escape, sorted(set(spellings) - characters)))

    def needs_reference(self, texts: pa.Array) -> NDArray[np.bool_]:
        """Return for each of n texts, a large_string array without nulls, whether only the reference may encode it."""
        data, offsets = text_bytes(texts)
        needs = np.diff(offsets) > _MAX_TEXT_BYTES
        if self._spellings:
            needs |= pc.match_substring_regex(texts, self._spellings).to_numpy(zero_copy_only=False)
        if self._has_odd:
            leads = np.flatnonzero(data >= 0xC0)
            places = [leads[self._is_odd[_code_points(data, leads)]]]
            if self._odd_ascii.any():
                ascii_places = np.flatnonzero(data < 0x80)
                places.append(ascii_places[self._odd_ascii[data[ascii_places]]])
            needs[np.searchsorted(offsets, np.concatenate(places), side="right") - 1] = True
        return needs


def _code_points(data: NDArray[np.uint8], leads: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the code points of the characters of two to four bytes that start at `leads`."""
    first = data[leads]
    codes = first & _LEAD_MASKS[first]
    for index, least in ((1, 0xC0), (2, 0xE0), (3, 0xF0)):
        has_more = first >= least
        following = data[leads[has_more] + index] & 0x3F
        codes[has_more] = (codes[has_more] << 6) | following
    return codes


def make_encoder(tokenizer: Tokenizer) -> FastEncoder:
    """Make the fast encoder of a tokenizer; raises Unproven as parts_of and FastEncoder."""
    from tokenloom.tokenizers.fast.parts import parts_of

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

    def __init__(self, parts: Parts, bos_ids: list[int], eot_id: int) -> None:
        self._parts, self._bos_ids, self._eot_id = parts, bos_ids, eot_id
        self.library, self.spellings = str(installed_library()), parts.spellings
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
            before, mark = b" " if self._parts.adds_space else b"", SPACE_MARK.encode()
            texts = [before + text.replace(mark, b" ") if text else text for text in texts]
        if self._parts.run_ids:
            texts, runs = mark_runs(texts, self._parts.run_ids)
            return restore_runs(list(map(self._tokenizer.encode, texts)), runs, self._parts.marker_id)
        ids = list(map(self._tokenizer.encode, texts))
        return ids if self._id_of_rank is None else [self._id_of_rank[ranks] for ranks in ids]

    def _renew(self) -> None:
        import gigatoken  # late: it may be missing

        self._tokenizer: Any = None  # frees the memory of the one before
        content, pattern = self._parts.content.encode(), self._parts.pattern
        with library_errors("gigatoken does not take it", make=Unproven):
            if pattern is None:
                self._tokenizer = gigatoken.Tokenizer.from_json(content)
            else:
                with _file_of(content) as path:
                    self._tokenizer = gigatoken.Tokenizer.from_tiktoken(path, pattern, {})
        self._num_bytes = 0
        self._max_resident = (_resident_bytes() or 0) + _MAX_GROWTH


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """Yield the path of a file with these bytes: in memory, or in TMPDIR on systems that have no such files."""
    is_linux = sys.platform == "linux"
    with (
        translate_temporary_errors(),
        os.fdopen(os.memfd_create("ranks"), "wb") if is_linux else tempfile.TemporaryFile() as file,
    ):
        file.write(content)
        file.seek(0)  # also writes what is buffered
        yield f"/dev/fd/{file.fileno()}"


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


# ---- runs of spaces that are added tokens, see parts.py


def mark_runs(texts: list[bytes], run_ids: list[int]) -> tuple[list[bytes], NDArray[np.uint32]]:
    """Return texts, UTF-8, with markers for their runs of spaces, and the ids of all runs in order.

    A run is taken from the left: as many of the longest token as fit, then one for the rest; a single space stays.
    """
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    data = np.frombuffer(b"".join(texts), np.uint8)
    follows = np.zeros(len(data) + 1, bool)  # which bytes are spaces after a space of the same text
    is_space = data == ord(" ")
    np.logical_and(is_space[1:], is_space[:-1], out=follows[1:-1])
    follows[offsets] = False
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


def _cut_runs(starts: Int64s, lengths: Int64s, longest: int) -> tuple[Int64s, Int64s]:
    """Return starts and lengths of the tokens of n runs: as many of the longest as fit into each, one for the rest."""
    num_longest, rest = np.divmod(lengths, longest)
    num_tokens = num_longest + (rest > 1)
    index = ranges_of(num_tokens)  # within its run
    is_longest = index < np.repeat(num_longest, num_tokens)
    return np.repeat(starts, num_tokens) + index * longest, np.where(is_longest, longest, np.repeat(rest, num_tokens))


# ---- the sample


@dataclass(frozen=True)
class Overlap:
    """Which of the texts that a fast encoder gets are encoded by the reference too.

    A `share` of their bytes, in [0, 1], but of the first texts at least `first_bytes` bytes; both only as long as that
    takes less than `seconds`.
    """

    share: float = 0.0
    first_bytes: int = 0
    seconds: float = 5.0

    def num_wanted(self, num_bytes: int) -> float:
        """Return how many of the first `num_bytes` bytes are encoded by both."""
        return max(self.share * num_bytes, min(self.first_bytes, num_bytes))


NO_OVERLAP, FIRST_TEXTS = Overlap(), Overlap(first_bytes=100_000)
SAMPLE = Overlap(share=0.001, first_bytes=250_000)


class FastTokenizer:
    """A tokenizer with the ids of its reference.

    Attributes:
        encoder: the fast encoder's name and version; `backend` is the reference's.
        reference: the tokenizer.
        num_compared: bytes of text that both have encoded, so far.

    Args:
        reference: the tokenizer.
        encoder: a fast encoder for it.
        router: finds the texts that only the reference may encode.
        overlap: which texts are encoded by both.
    """

    def __init__(self, reference: Tokenizer, encoder: FastEncoder, router: Router, overlap: Overlap = SAMPLE) -> None:
        self.kind, self.name, self.vocab_size = reference.kind, reference.name, reference.vocab_size
        self.bos_ids = reference.bos_ids
        self.eot_id, self.fingerprint, self.files = reference.eot_id, reference.fingerprint, reference.files
        self.max_text_bytes = reference.max_text_bytes
        self.backend = reference.backend
        self.encoder = encoder.library
        self.reference, self._encoder, self._router = reference, encoder, router
        self._num_bytes = self.num_compared = 0
        self._overlap, self._seconds_left = overlap, overlap.seconds

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """See Tokenizer.encode; raises EncoderMismatch if the encoder fails, or differs on a text that is checked."""
        runs = runs_of(text_bytes(texts)[1], _RUN_BYTES)
        return concatenate([self._encode_run(texts[start:end], dtype) for start, end in runs], dtype)

    def decode(self, ids: NDArray[Any]) -> str:
        """See Tokenizer.decode."""
        return self.reference.decode(ids)

    def _encode_run(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        needs = self._router.needs_reference(texts)
        if not needs.any():
            return self._encode_fast(texts, dtype)
        fast = np.flatnonzero(~needs)
        slow = np.flatnonzero(needs)
        parts = [self._encode_fast(texts.take(fast), dtype), self.reference.encode(texts.take(slow), dtype)]
        return _select(concatenate(parts, dtype), np.argsort(np.concatenate([fast, slow])))

    def _encode_fast(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        with ending_if_hung(), library_errors(f"{self.encoder} failed", make=self._mismatch):
            encoded = self._encoder.encode(texts, dtype)
        self._compare_some(texts, encoded, dtype)
        return encoded

    def _mismatch(self, message: str) -> EncoderMismatch:
        return EncoderMismatch(message, (self.encoder,))

    def _compare_some(self, texts: pa.Array, encoded: Encoded, dtype: np.dtype[Any]) -> None:
        """Encode some of the texts by the reference too, as long as there is time left for it."""
        if self._seconds_left <= 0:
            return
        offsets = text_bytes(texts)[1]
        self._num_bytes += int(offsets[-1])
        chosen = _choose(offsets, self._overlap.num_wanted(self._num_bytes) - self.num_compared)
        if not len(chosen):
            return
        start = time.monotonic()
        differ = differing(self.reference.encode(texts.take(pa.array(chosen)), dtype), _select(encoded, chosen))
        if len(differ):
            text = texts[int(chosen[differ[0]])].as_py()
            raise self._mismatch(f"{self.encoder} and {self.backend} give different ids for {text[:60]!a}")
        self.num_compared += int((offsets[chosen + 1] - offsets[chosen]).sum())
        self._seconds_left -= time.monotonic() - start


@contextmanager
def ending_if_hung() -> Iterator[None]:
    """End a worker process, and so the build, if the block takes _HANG_SECONDS."""
    if WORKER_MARK not in os.environ:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, _HANG_SECONDS)  # SIGALRM ends the process, even in native code
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _choose(offsets: NDArray[np.int64], num_bytes: float) -> NDArray[np.int64]:
    """Return the indices of texts of at least `num_bytes` bytes in total, spread over all texts."""
    if num_bytes <= 0:
        return np.empty(0, np.int64)
    # A pseudo-random order without numpy.random, whose import takes 10 ms.
    texts = np.arange(len(offsets) - 1, dtype=np.uint64)
    order = np.argsort(mix64(Purpose.ORDER, int(offsets[-1]), (texts,)))
    lengths = np.diff(offsets)
    order = order[lengths[order] <= _MAX_CHECKED_TEXT]
    lengths = lengths[order]
    return np.sort(order[np.cumsum(lengths) - lengths < num_bytes])


def _select(encoded: Encoded, chosen: NDArray[np.int64]) -> Encoded:
    """Return some documents."""
    segments = as_segments(encoded.tokens, encoded.num_tokens)
    return Encoded(take_segments(segments, chosen, encoded.tokens.dtype), encoded.num_tokens[chosen])


def differing(expected: Encoded, found: Encoded) -> NDArray[np.int64]:
    """Return the indices of the documents whose ids differ, in order."""
    if np.array_equal(expected.num_tokens, found.num_tokens) and np.array_equal(expected.tokens, found.tokens):
        return np.empty(0, np.int64)
    documents = (np.split(each.tokens, np.cumsum(each.num_tokens, dtype=np.int64)[:-1]) for each in (expected, found))
    return np.flatnonzero([not np.array_equal(one, other) for one, other in zip(*documents, strict=True)])
