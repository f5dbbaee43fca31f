"""A tokenizer that encodes with a fast encoder what the encoder is proven for, and compares a sample of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import EncoderMismatch
from tokenloom.storage.formats.arrays import runs_of
from tokenloom.storage.formats.keys import finalise
from tokenloom.tokenizers.base import WORKER_MARK, Encoded, Tokenizer, concatenate, text_bytes
from tokenloom.tokenizers.fast.encoder import FastEncoder, failing_as
from tokenloom.tokenizers.fast.routing import Router

_RUN_BYTES = 1_000_000
_MAX_CHECKED_TEXT = 4_000_000
_HANG_SECONDS = 120  # of one run; the slowest text of a run takes 2 s


@dataclass(frozen=True)
class Check:
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


NO_CHECK, FIRST_TEXTS, SAMPLE = Check(), Check(first_bytes=100_000), Check(share=0.001, first_bytes=250_000)


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
        check: which texts are encoded by both.
    """

    def __init__(self, reference: Tokenizer, encoder: FastEncoder, router: Router, check: Check = SAMPLE) -> None:
        self.kind, self.name, self.vocab_size = reference.kind, reference.name, reference.vocab_size
        self.bos_ids = reference.bos_ids
        self.eot_id, self.fingerprint, self.files = reference.eot_id, reference.fingerprint, reference.files
        self.max_text_bytes = reference.max_text_bytes
        self.backend = reference.backend
        self.encoder = encoder.library
        self.reference, self._encoder, self._router = reference, encoder, router
        self._num_bytes = self.num_compared = 0
        self._check, self._seconds_left = check, check.seconds

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """See Tokenizer.encode; raises EncoderMismatch if the encoder fails, or differs on a text that is checked."""
        offsets = text_bytes(texts)[1]
        runs = runs_of(offsets, _RUN_BYTES)
        return concatenate([self._encode_run(texts[start:end], dtype) for start, end in runs], dtype)

    def decode(self, ids: NDArray[Any]) -> str:
        """See Tokenizer.decode."""
        return self.reference.decode(ids)

    def _encode_run(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        needs = self._router.needs_reference(texts)
        if not needs.any():
            return self._encode_fast(texts, dtype)
        if needs.all():
            return self.reference.encode(texts, dtype)
        fast, slow = (np.flatnonzero(chosen) for chosen in (~needs, needs))
        parts = [self._encode_fast(texts.take(fast), dtype), self.reference.encode(texts.take(slow), dtype)]
        return _in_order(concatenate(parts, dtype), np.concatenate([fast, slow]))

    def _encode_fast(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        with ending_if_hung(), failing_as(self._mismatch, f"{self.encoder} failed"):
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
        chosen = _choose(offsets, self._check.num_wanted(self._num_bytes) - self.num_compared)
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
    """End a worker process, whose job is then given to another one, if the block takes _HANG_SECONDS."""
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
    order = np.argsort(finalise(np.arange(len(offsets) - 1, dtype=np.uint64) + np.uint64(offsets[-1])))
    lengths = np.diff(offsets)[order]
    order, lengths = order[lengths <= _MAX_CHECKED_TEXT], lengths[lengths <= _MAX_CHECKED_TEXT]
    return np.sort(order[np.cumsum(lengths) - lengths < num_bytes])


def _select(encoded: Encoded, chosen: NDArray[np.int64]) -> Encoded:
    """Return some documents."""
    ends = np.cumsum(encoded.num_tokens, dtype=np.int64)
    starts = ends - encoded.num_tokens
    parts = [encoded.tokens[start:end] for start, end in zip(starts[chosen], ends[chosen], strict=True)]
    return Encoded(np.concatenate(parts), encoded.num_tokens[chosen])


def _in_order(encoded: Encoded, places: NDArray[np.int64]) -> Encoded:
    """Return documents in the order of `places`, the places where they belong."""
    return _select(encoded, np.argsort(places))


def differing(expected: Encoded, found: Encoded) -> NDArray[np.int64]:
    """Return the indices of the documents whose ids differ, in order."""
    if np.array_equal(expected.num_tokens, found.num_tokens) and np.array_equal(expected.tokens, found.tokens):
        return np.empty(0, np.int64)
    both = zip(_documents(expected), _documents(found), strict=True)
    return np.flatnonzero([not np.array_equal(one, other) for one, other in both])


def _documents(encoded: Encoded) -> list[NDArray[np.unsignedinteger]]:
    return np.split(encoded.tokens, np.cumsum(encoded.num_tokens, dtype=np.int64)[:-1])
