"""Prove a fast encoder: compare it with the reference on every part of a vocabulary and every character.

The work is one job a slice of texts (probe_texts.py), for any number of processes. Their results are the code points
that go to the reference.

Two libraries that cut a text into words differently may give the same ids for it, where no token of the vocabulary
reaches across the cut. So a third of the slices is encoded with a vocabulary of byte pairs, in which every two bytes
are a token, so that nearly every cut shows in the ids. Added tokens that are white space stay, and get the ids behind
the pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import tiktoken

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.fast.gigatoken_library import NAME, encoder_of
from tokenloom.tokenizers.fast.known_parts import Unproven, is_white_space
from tokenloom.tokenizers.fast.parts import Parts, parts_of, ranges_of
from tokenloom.tokenizers.fast.probe_texts import NUM_CUT_SLICES, NUM_SLICES, slice_groups, vocabulary_of
from tokenloom.tokenizers.fast.proofs import Proof
from tokenloom.tokenizers.fast.space_runs import MARKER
from tokenloom.tokenizers.fast.tokenizer import FastEncoder, Router, differing, failing_as, left_to_reference
from tokenloom.tokenizers.huggingface_json import FILE
from tokenloom.tokenizers.tiktoken_bpe import TiktokenTokenizer
from tokenloom.tokenizers.tiktoken_files import LETTERS, ranks_file

_NAME, _END = "byte pairs", "<|end of these pairs|>"
_PAIRS = list(product(range(256), range(256)))
_TOKENS = [bytes([byte]) for byte in range(256)] + [bytes(pair) for pair in _PAIRS]
_NUM_ORDINARY = len(_TOKENS)
_PRIVATE = "\U0010fffd"  # always left to the reference, see tokenizer.py
_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
_MAX_ODD = 10_000
_UINT32 = np.dtype(np.uint32)
Load = Callable[[], Tokenizer]


def with_byte_pairs(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with the normalizer and the cuts of one that has Parts."""
    if isinstance(tokenizer, TiktokenTokenizer):
        ranks = {token: rank for rank, token in enumerate(_TOKENS)}
        special = {_END: _NUM_ORDINARY}
        encoding = tiktoken.Encoding(_NAME, pat_str=tokenizer.pattern, mergeable_ranks=ranks, special_tokens=special)
        return TiktokenTokenizer(encoding, _NAME, _END, None, {})
    return _loaded(_content(json.loads(tokenizer.files[FILE]), _PAIRS))


def without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that finds only the added tokens of white space, so that all texts can be compared.

    A proof does not depend on which others a tokenizer.json has. Those that are not in the vocabulary are renamed to
    what no compared text contains, because the library gives such tokens their ids in order.
    """
    if tokenizer.kind != "huggingface":
        return tokenizer
    content, kept = json.loads(tokenizer.files[FILE]), []
    for i, token in enumerate(content.get("added_tokens") or []):
        if is_white_space(token):
            kept.append(token)
        elif token["content"] not in content["model"]["vocab"]:
            kept.append({"content": f"{_PRIVATE}{i}", "id": token["id"], "special": False, **_FLAGS})
    return _loaded(content | {"added_tokens": kept})


def _loaded(content: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json that gets an end of text behind all other ids."""
    ids = [*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"])]
    end = {"content": _END, "special": True, "id": max(ids) + 1, **_FLAGS}
    data = json.dumps(content | {"added_tokens": [*content["added_tokens"], end]}).encode()
    return load_tokenizer({"kind": "huggingface", "eot": _END}, {FILE: data})


def parts_with_byte_pairs(parts: Parts) -> Parts:
    """Return the parts of with_byte_pairs for a tokenizer with these parts."""
    if parts.pattern is not None:
        content = ranks_file({token: rank for rank, token in enumerate(_TOKENS)})
        return replace(parts, content=content.decode(), id_ranges=[(0, _NUM_ORDINARY - 1)])
    first, second = MARKER.encode()
    marker = first, second
    merges = [marker, *(pair for pair in _PAIRS if pair != marker)] if parts.run_ids else _PAIRS  # see SpaceRuns
    runs = sorted(parts.run_ids[2:])
    given = json.loads(parts.content)
    with_pairs = _content(given, merges)
    # The others are digits, which keep the ids of their bytes.
    digits = [token for token in given["added_tokens"] if not is_white_space(token)]
    with_pairs["added_tokens"] += [token | {"id": ord(token["content"])} for token in digits]
    return replace(
        parts,
        content=json.dumps(with_pairs),
        spellings=[MARKER] if parts.run_ids else [],
        run_ids=[*parts.run_ids[:2], *(_NUM_ORDINARY + runs.index(i) for i in parts.run_ids[2:])],
        marker_id=256 + 256 * first + second,
    )


def _content(content: dict[str, Any], pairs: list[tuple[int, int]]) -> dict[str, Any]:
    """Return the content of a tokenizer.json with another vocabulary, whose pairs are merged in this order."""
    added = [token for token in content.get("added_tokens") or [] if is_white_space(token)]
    model = content["model"] | {
        "vocab": {"".join(LETTERS[byte] for byte in token): i for i, token in enumerate(_TOKENS)},
        "merges": [f"{LETTERS[first]} {LETTERS[second]}" for first, second in pairs],
    }
    return content | {
        "model": model,
        "added_tokens": [
            token | {"id": _NUM_ORDINARY + i} for i, token in enumerate(sorted(added, key=lambda token: token["id"]))
        ],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }


@dataclass(frozen=True)
class SliceJob:
    """A slice of texts; `load` returns the reference, `key` is that of its Parts."""

    load: Load
    key: str
    index: int


Pool = Callable[[Callable[[SliceJob], Any], Iterable[SliceJob]], Iterable[Any]]


def prove(reference: Tokenizer, parts: Parts, load: Load, pool: Pool = map) -> Proof:
    """Compare gigatoken with the reference of a tokenizer; raise Unproven if it is not used for that vocabulary.

    Args:
        reference: the tokenizer.
        parts: its parts.
        load: returns the tokenizer in another process; it pickles.
        pool: calls a function for each of some jobs, as map does, in any processes.
    """

    jobs = [SliceJob(load, parts.key, index) for index in range(NUM_SLICES)]
    odd = ranges_of(sorted(_odd_code_points(pool(compare_slice, jobs))))
    return Proof(parts.key, NAME, reference.backend, tuple(odd))


def compare_slice(job: SliceJob) -> list[tuple[str, str]]:
    """Return the texts that are encoded differently, and the groups that they belong to."""
    subject = _subject_of(job)
    return [
        (group, text)
        for group, texts in slice_groups(subject.fast.vocabulary, job.index)
        for text in subject.differing(list(texts), job.index)
    ]


class SliceEncoder:
    """The fast encoder of a vocabulary, and that of the byte pairs with the same cuts.

    Args:
        parts: of the tokenizer.

    Raises Unproven as encoder_of.
    """

    def __init__(self, parts: Parts) -> None:
        is_ranks = parts.pattern is not None
        self.vocabulary = vocabulary_of(parts.content, is_ranks=is_ranks, normalizes=parts.normalizes)
        self._encoder = encoder_of(parts, [], 0)
        self._pairs = encoder_of(parts_with_byte_pairs(parts), [], 0) if self.vocabulary.cuts else self._encoder
        self._markers = [MARKER] if parts.run_ids else []

    def router(self) -> Router:
        """Return what finds the texts that the encoder does not get; which added tokens there are is not proven."""
        return Router(left_to_reference(), self._markers)

    def of_slice(self, index: int) -> FastEncoder:
        """Return what encodes a slice."""
        return self._pairs if index < NUM_CUT_SLICES else self._encoder


class _Subject:
    """A tokenizer and its fast encoder."""

    def __init__(self, reference: Tokenizer) -> None:
        parts = parts_of(reference)
        self.key = parts.key
        self.fast = SliceEncoder(parts)
        self._reference = without_added_tokens(reference)
        self._pairs = with_byte_pairs(reference) if self.fast.vocabulary.cuts else self._reference
        self._router = self.fast.router()

    def differing(self, texts: list[str], index: int) -> list[str]:
        """Return the texts that the encoder of a slice would be given, and encodes differently."""
        reference = self._pairs if index < NUM_CUT_SLICES else self._reference
        encoder = replace(self.fast.of_slice(index), bos_ids=reference.bos_ids, eot_id=reference.eot_id)
        given = _given(texts, self._router)
        array = _array(given)
        with failing_as(Unproven, "its probe failed"):
            found = encoder.encode(array, _UINT32)
        return [given[i] for i in differing(reference.encode(array, _UINT32), found)]


def _given(texts: list[str], router: Router) -> list[str]:
    """Return the texts that the fast encoder gets."""
    needs = router.needs_reference(_array(texts)).tolist()
    return [text for text, is_left in zip(texts, needs, strict=True) if not is_left]


def _array(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string())


_subjects: dict[str, _Subject] = {}  # of this process: one by its key


def _subject_of(job: SliceJob) -> _Subject:
    if job.key not in _subjects:
        subject = _Subject(job.load())
        if subject.key != job.key:
            raise TokenizerError("the tokenizer's files changed while its fast encoder was proven; try again")
        _subjects.clear()
        _subjects[job.key] = subject
    return _subjects[job.key]


def _odd_code_points(found: Iterable[list[tuple[str, str]]]) -> set[int]:
    """Return the code points that go to the reference; raise Unproven if other texts are encoded differently too.

    ASCII never goes to the reference, as nearly all texts would.

    Args:
        found: the results of compare_slice.
    """
    differ = [each for texts in found for each in texts]
    odd = {ord(text[0]) for group, text in differ if group == "characters" and not text[0].isascii()}
    for group, text in differ:
        if group == "marks" and odd.isdisjoint(map(ord, text)):
            odd |= {ord(character) for character in text if not character.isascii()}
    if len(odd) > _MAX_ODD:
        raise Unproven(f"it encodes {len(odd):,} characters differently")
    for _, text in differ:
        if odd.isdisjoint(map(ord, text)):
            raise Unproven(f"it encodes {text[:40]!a} differently")
    return odd
