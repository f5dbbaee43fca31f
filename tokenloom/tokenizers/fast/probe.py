"""Compare a fast encoder with the reference on every part of a vocabulary and every character, once a machine.

Where a text is cut into words is compared with a vocabulary that shows it, see byte_pairs.py.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.fast import probe_texts
from tokenloom.tokenizers.fast.byte_pairs import with_byte_pairs
from tokenloom.tokenizers.fast.comparison import differing
from tokenloom.tokenizers.fast.encoder import FastEncoder
from tokenloom.tokenizers.fast.libraries import library_of
from tokenloom.tokenizers.fast.routing import Router
from tokenloom.tokenizers.fast.verdict import Verdict
from tokenloom.tokenizers.fast.vocabulary import Vocabulary

_CHUNK = 5_000  # texts that are compared at a time
_MAX_ODD = 10_000
_NUM_COMMON = 0x10000  # code points whose ids are compared; those above are in few words, which are compared too
_UINT32 = np.dtype(np.uint32)
_Group = tuple[str, Iterable[str]]  # what is compared, and its texts


@dataclass(frozen=True)
class ProbeSize:
    """How much a probe compares: code points, lengths of long runs, and the number of random mixtures."""

    code_points: Sequence[int]
    run_lengths: Sequence[int]
    num_mixtures: int


FULL_SIZE = ProbeSize(probe_texts.CODE_POINTS, (100, 500, 1000, 4095, 10_000, 100_000, 1_000_000), 20_000)


class _Refused(Exception):
    """The encoder is not used for this vocabulary; the message says why, as a clause."""


def probe(
    reference: Tokenizer,
    encoder: FastEncoder,
    vocabulary: Vocabulary,
    report: Callable[[str, int], None],
    size: ProbeSize = FULL_SIZE,
) -> Verdict:
    """Compare an encoder with the reference and return the verdict.

    Args:
        reference: the tokenizer.
        encoder: a fast encoder for it.
        vocabulary: its parts.
        report: called with what was compared and the number of texts so far.
        size: how much is compared.
    """
    num_texts = 0

    def count(what: str, num_more: int) -> None:
        nonlocal num_texts
        num_texts += num_more
        report(what, num_texts)

    ids = cuts = _Comparison(reference, encoder, count)
    if vocabulary.cuts:
        pairs = with_byte_pairs(reference)
        cuts = _Comparison(pairs, library_of(encoder.library).make_encoder(pairs), count)
    refused = None
    try:
        odd = cuts.odd_code_points(size.code_points)
        if vocabulary.cuts:
            odd |= ids.odd_code_points([code for code in size.code_points if code < _NUM_COMMON])
        if vocabulary.normalizes:
            odd |= cuts.odd_marks(odd, frozenset(size.code_points))
        if len(odd) > _MAX_ODD:
            raise _Refused(f"it encodes {len(odd):,} characters differently")
        if vocabulary.normalizes:
            odd |= _unassigned()
        if vocabulary.cuts:
            cuts.compare(odd, _any_texts(size))
        ids.compare(odd, chain(_texts_of(vocabulary, size), [("special tokens", encoder.spellings)], _any_texts(size)))
    except _Refused as error:
        refused, odd = str(error), set()
    return Verdict(reference.fingerprint, reference.backend, encoder.library, refused, _ranges(odd))


class _Comparison:
    """The texts that an encoder and the reference encode differently."""

    def __init__(self, reference: Tokenizer, encoder: FastEncoder, count: Callable[[str, int], None]) -> None:
        self._reference, self._encoder, self._count = reference, encoder, count

    def odd_code_points(self, codes: Sequence[int]) -> set[int]:
        """Return the code points that are encoded differently alone or next to others."""
        router = Router([], self._encoder.spellings)
        odd: set[int] = set()
        for text_of in (probe_texts.alone, probe_texts.in_context):
            for start in range(0, len(codes), _CHUNK):
                some = codes[start : start + _CHUNK]
                differ = self._differing("characters", [text_of(code) for code in some], router)
                odd.update(some[i] for i in differ)
        return odd

    def compare(self, odd: set[int], groups: Iterable[_Group]) -> None:
        """Raise _Refused if a text without odd code points is encoded differently."""
        router = Router(_ranges(odd), self._encoder.spellings)
        for what, texts in groups:
            for chunk in _chunks(texts):
                for index in self._differing(what, chunk, router)[:1].tolist():
                    raise _Refused(f"it encodes {chunk[index][:40]!a} differently")

    def odd_marks(self, odd: set[int], codes: Container[int]) -> set[int]:
        """Return the code points of other pairs and sequences that only one of the libraries joins or reorders."""
        router = Router(_ranges(odd), self._encoder.spellings)
        found: set[int] = set()
        for chunk in _chunks(probe_texts.pairs_of_marks(codes)):
            for index in self._differing("marks", chunk, router).tolist():
                found.update(code for code in map(ord, chunk[index]) if code >= 0x80)
        return found

    def _differing(self, what: str, texts: Sequence[str], router: Router) -> NDArray[np.int64]:
        """Return the indices of the texts that the encoder would be given, and encodes differently."""
        array = pa.array(texts, pa.large_string())
        given = np.flatnonzero(~router.needs_reference(array))
        array = array.take(pa.array(given))
        expected = self._reference.encode(array, _UINT32)
        found = self._encoder.encode(array, _UINT32)
        self._count(what, len(texts))
        return given[differing(expected, found)]


def _texts_of(vocabulary: Vocabulary, size: ProbeSize) -> list[_Group]:
    num_mixtures = 0 if vocabulary.cuts else 10 * size.num_mixtures
    return [
        ("vocabulary", probe_texts.words_in_context(vocabulary.words)),
        ("merges", probe_texts.merges_in_context(vocabulary.merges)),
        ("mixtures of entries", probe_texts.mixtures(num_mixtures, vocabulary.words)),
    ]


def _any_texts(size: ProbeSize) -> list[_Group]:
    return [("runs", probe_texts.runs(size.run_lengths)), ("mixtures", probe_texts.mixtures(size.num_mixtures))]


def _unassigned() -> set[int]:
    """Return code points that Python's Unicode tables do not know.

    Normal forms of text without them are the same in all newer versions of Unicode
    (https://www.unicode.org/policies/stability_policy.html); those of older tables were compared.
    """
    return {code for code in probe_texts.CODE_POINTS if unicodedata.category(chr(code)) == "Cn"}


def _ranges(codes: Iterable[int]) -> list[tuple[int, ...]]:
    """Return integers as ranges [first, last]."""
    runs = groupby(enumerate(sorted(codes)), lambda pair: pair[1] - pair[0])
    return [(codes[0], codes[-1]) for codes in ([code for _, code in run] for _, run in runs)]


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    texts = iter(texts)
    while chunk := list(islice(texts, _CHUNK)):
        yield chunk
