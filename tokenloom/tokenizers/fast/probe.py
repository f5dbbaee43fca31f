"""Prove a fast encoder: compare it with the reference on every part of a vocabulary and every character.

The texts are a function of the vocabulary alone, in slices, for any number of processes. Each slice has texts of every
group, and is made without the others. The result is the code points that go to the reference. Each group finds what no
other one does:

- characters: a library that puts one code point into another class, cuts beside it, or joins it with its neighbours.
- marks: a library that reorders or composes marks in another way; only where texts get a normal form.
- runs: a repetition whose length decides where it is cut, or in which order its many equal pairs are merged.
- mixtures: a cut that depends on more neighbours than a character's text has, and state that a long text leaves behind.
- words: one entry of the vocabulary that is missing, or has another id; alone, after a space, and twice in one word.
- merges: two merges whose order is another one, as their halves compete for a neighbour.
- mixtures of entries: the same over distances, in vocabularies that do not cut texts into words.

Two libraries that cut a text into words differently may give the same ids for it, where no token of the vocabulary
reaches across the cut. So the first NUM_CUT_SLICES are encoded with a vocabulary of byte pairs, in which every two
bytes are a token, so that nearly every cut shows in the ids. Added tokens that are white space stay, and get the ids
behind the pairs.

Only Random.random() is used, whose stream never changes (https://docs.python.org/3/library/random.html), and of Unicode
only assigned characters, which don't either.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import tiktoken

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import Tokenizer, library_errors
from tokenloom.tokenizers.fast import Unproven
from tokenloom.tokenizers.fast.parts import Parts, is_white_space, parts_of, ranges_of
from tokenloom.tokenizers.fast.proofs import Proof, installed_library
from tokenloom.tokenizers.fast.tokenizer import FastEncoder, Router, differing, left_to_reference
from tokenloom.tokenizers.huggingface_json import FILE
from tokenloom.tokenizers.patterns import MARKER, SPACE_MARK
from tokenloom.tokenizers.sentencepiece_file import as_text
from tokenloom.tokenizers.tiktoken_bpe import TiktokenTokenizer
from tokenloom.tokenizers.tiktoken_files import LETTERS, bytes_of_letters, ranks_file

NUM_SLICES, NUM_CUT_SLICES = 300, 100
_MAX_ODD = 10_000
_NAME, _END = "byte pairs", "<|end of these pairs|>"
_PAIRS = list(product(range(256), range(256)))
_TOKENS = [*((byte,) for byte in range(256)), *_PAIRS]
_RANKS = {bytes(token): rank for rank, token in enumerate(_TOKENS)}
_PRIVATE = "\U0010fffd"  # always left to the reference, see tokenizer.py
_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
_UINT32 = np.dtype(np.uint32)

_NEVER_FOUND = ("<s>", "</s>", "<unk>", "<pad>")  # names of control pieces, which no text has
_MIXTURES = 20_000  # texts of each kind
_ALONE, _BETWEEN_OTHERS = "{0}", "{0}1a{0}a\n{0}\n.{0} x{0}"
# U+0345 and U+0334 have the highest and a low combining class.
_CHARACTER = "{0}a{0}a1{0}1 {0} {0}'s .{0},P\na'{0}'de{0}\u0301a\u0345{0}b\u0334{0}\u0334 '{0}a'{0}b {0}"
_CHARACTER_ALONE, _WORD = "{0} {0}{0}a{0}\n{0}", "{0} {0}{0}e\n{0}"
_LENGTHS, _LONGEST = (100, 500, 1000, 4095, 10_000, 100_000), 1_000_000
_REPEATED = " \t\n\r\u00a0\u3000\u200b-=_.#*!?/'\",0a\u00e9\u0301\u4e00"
_LONG_REPEATED = " \n-=0a\u3000"
_HANGUL = range(0x1100, 0x1113), range(0x1161, 0x1176), range(0x11A7, 0x11C3), range(0xAC00, 0xD7A4, 28)
PIECES = (
    *(" ", "  ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\u200b", "\u200d", "\ufe0f", "\0", "\x85"),
    *("'s", "'S", "'re", "'LL", "\u2019s", "'\u017f", "\u017f"),
    *("a", "B", "z", "\u00df", "\u0130", "\u01c5", "\u02b0", "\u00e9", "e\u0301", "\u0301", "\u0345", "\u4e00"),
    *("\u3042", "\uac00", "\u1100\u1161", "\u0915", "\u093f", "\u05d0", "\u0628", "\U00010400", "\U0002a6d6"),
    *("1", "23", "\u0663", "\u00b2", "\u2167"),
    *(".", ",", "/", "//", "_", "-", "--", "#", "$", "+", "<", "|", ">", "\u00ab", "\u3002", "\u20ac"),
    *("\U0001f469", "\U0001f1e9", "\ufffd", "\ue000"),
)
_SURROGATES = range(0xD800, 0xE000)  # no text contains them


@dataclass(frozen=True)
class SliceJob:
    """A slice of texts; `load` returns the reference, `key` is that of its Parts, which jobs of one tokenizer share."""

    load: Callable[[], Tokenizer] = field(compare=False)
    key: str
    index: int = field(compare=False)


Pool = Callable[[Callable[[SliceJob], Any], Iterable[SliceJob]], Iterable[Any]]


def prove(reference: Tokenizer, parts: Parts, load: Callable[[], Tokenizer], pool: Pool = map) -> Proof:
    """Compare gigatoken with the reference of a tokenizer; raise Unproven if it is not used for that vocabulary.

    Args:
        reference: the tokenizer.
        parts: its parts.
        load: returns the tokenizer in another process; it pickles.
        pool: calls a function for each of some jobs, as map does, in any processes.
    """
    jobs = [SliceJob(load, parts.key, index) for index in range(NUM_SLICES)]
    odd = ranges_of(sorted(_odd_code_points(pool(compare_slice, jobs))))
    return Proof(parts.key, str(installed_library()), reference.backend, tuple(odd))


def compare_slice(job: SliceJob) -> list[tuple[str, str]]:
    """Return the texts that are encoded differently, and the groups that they belong to."""
    subject = subject_of(job)
    return [
        (group, text)
        for group, texts in slice_groups(subject.vocabulary, job.index)
        for text in subject.differing(list(texts), job.index)
    ]


class _Subject:
    """A tokenizer and its fast encoder; both also with byte pairs for a vocabulary, and the same cuts."""

    def __init__(self, reference: Tokenizer) -> None:
        parts = parts_of(reference)
        self.key, self.vocabulary = parts.key, vocabulary_of(parts)
        self._router = Router(left_to_reference(), [MARKER] if parts.run_ids else [])
        self._words = self._cuts = _pair(without_added_tokens(reference), parts)
        if self.vocabulary.cuts:
            self._cuts = _pair(with_byte_pairs(reference), parts_with_byte_pairs(parts))

    def differing(self, texts: list[str], index: int) -> list[str]:
        """Return the texts that the encoder of a slice would be given, and encodes differently."""
        reference, encoder = self._cuts if index < NUM_CUT_SLICES else self._words
        array = pa.array(texts, pa.large_string())
        array = array.filter(pa.array(~self._router.needs_reference(array)))
        with library_errors("its probe failed", make=Unproven):
            found = encoder.encode(array, _UINT32)
        return [array[int(i)].as_py() for i in differing(reference.encode(array, _UINT32), found)]


def _pair(reference: Tokenizer, parts: Parts) -> tuple[Tokenizer, FastEncoder]:
    return reference, FastEncoder(parts, reference.bos_ids, reference.eot_id)


@lru_cache(maxsize=1)  # equal jobs have the same key
def subject_of(job: SliceJob) -> _Subject:
    """Load the tokenizer of a job, and make its fast encoders."""
    subject = _Subject(job.load())
    if subject.key != job.key:
        raise TokenizerError("the tokenizer's files changed while its fast encoder was proven; try again")
    return subject


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


# ---- a vocabulary of byte pairs


def with_byte_pairs(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with the normalizer and the cuts of one that has Parts."""
    if isinstance(tokenizer, TiktokenTokenizer):
        special = {_END: len(_RANKS)}
        encoding = tiktoken.Encoding(_NAME, pat_str=tokenizer.pattern, mergeable_ranks=_RANKS, special_tokens=special)
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
    last = max([*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"])])
    end = {"content": _END, "special": True, "id": last + 1, **_FLAGS}
    data = json.dumps(content | {"added_tokens": [*content["added_tokens"], end]}).encode()
    return load_tokenizer({"kind": "huggingface", "eot": _END}, {FILE: data})


def parts_with_byte_pairs(parts: Parts) -> Parts:
    """Return the parts of with_byte_pairs for a tokenizer with these parts."""
    if parts.pattern is not None:
        return replace(parts, content=ranks_file(_RANKS).decode(), id_ranges=[(0, len(_RANKS) - 1)])
    first, second = MARKER.encode()
    merges = [(first, second), *(pair for pair in _PAIRS if pair != (first, second))] if parts.run_ids else _PAIRS
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
        run_ids=[*parts.run_ids[:2], *(len(_RANKS) + runs.index(i) for i in parts.run_ids[2:])],
        marker_id=256 + 256 * first + second,
    )


def _content(content: dict[str, Any], pairs: list[tuple[int, int]]) -> dict[str, Any]:
    """Return the content of a tokenizer.json with another vocabulary, whose pairs are merged in this order."""
    added = sorted(filter(is_white_space, content.get("added_tokens") or []), key=lambda token: int(token["id"]))
    model = content["model"] | {
        "vocab": {"".join(LETTERS[byte] for byte in token): rank for token, rank in _RANKS.items()},
        "merges": [f"{LETTERS[first]} {LETTERS[second]}" for first, second in pairs],
    }
    added = [token | {"id": len(_RANKS) + i} for i, token in enumerate(added)]
    unused = dict.fromkeys(("post_processor", "truncation", "padding"))
    return content | unused | {"model": model, "added_tokens": added}


# ---- the texts


@dataclass(frozen=True)
class Vocabulary:
    """The entries of a vocabulary and the halves of its merges, as text; "" for one that is not text.

    `normalizes` says whether texts get a normal form, `cuts` whether they are cut into words before pairs are merged.
    """

    words: Sequence[str]
    merges: Sequence[tuple[str, str]]
    normalizes: bool
    cuts: bool = True


def vocabulary_of(parts: Parts) -> Vocabulary:
    """Return the entries and merges of a tokenizer."""
    if parts.pattern is not None:
        tokens = [base64.b64decode(line.split()[0]) for line in parts.content.splitlines() if line]
        return Vocabulary(list(map(_text, tokens)), [], parts.normalizes)
    content = json.loads(parts.content)
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in content["model"]["merges"]]
    added = [token["content"] for token in content["added_tokens"]]
    if content["model"].get("byte_fallback"):
        return _of_pieces([*content["model"]["vocab"], *added], pairs)
    merges = [(_text_of_letters(left), _text_of_letters(right)) for left, right in pairs]
    return Vocabulary([*map(_text_of_letters, content["model"]["vocab"]), *added], merges, parts.normalizes)


def _of_pieces(pieces: Sequence[str], pairs: Iterable[Sequence[str]]) -> Vocabulary:
    """Return the entries and merges of a model with byte fallback.

    Two merges can make the same piece of three neighbours, as `--` and `-`, or `-` and `--`, of `----`. Their order
    is the place in the text for one library, and the halves for the other, so such neighbours are words too.
    """
    overlaps = [
        piece[:-length] + piece
        for piece in pieces
        for length in range(1, len(piece))
        if piece[:length] == piece[-length:]
    ]
    words = [*pieces, *_NEVER_FOUND, *overlaps]
    marked = [word for word in words if SPACE_MARK in word]
    merges = [(as_text(left), as_text(right)) for left, right in pairs]
    return Vocabulary([*map(as_text, words), *marked], merges, normalizes=False, cuts=False)


def _text(token: bytes) -> str:
    """Return a token as text; "" for a part of a character."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return ""


def _text_of_letters(token: str) -> str:
    """Return the text whose bytes letters stand for, see LETTERS; "" if there is none."""
    try:
        return bytes_of_letters(token).decode()
    except ValueError:
        return ""


@cache
def assigned() -> list[int]:
    """Return the code points that a fast encoder may get, in order."""
    left = {code for first, last in left_to_reference() for code in range(first, last + 1)}
    return [code for code in range(0x110000) if code not in left and code not in _SURROGATES]


def slice_groups(vocabulary: Vocabulary, index: int) -> list[tuple[str, Iterable[str]]]:
    """Return the texts of a slice by the names of their groups."""
    if index < NUM_CUT_SLICES:
        part = slice(index, None, NUM_CUT_SLICES)
        return [
            ("characters", map(_CHARACTER.format, map(chr, assigned()[part]))),
            ("marks", _marks()[part] if vocabulary.normalizes else []),
            ("runs", map(_run, _runs()[part])),
            ("mixtures", _mixtures(index, _MIXTURES // NUM_CUT_SLICES, PIECES)),
        ]
    num_slices = NUM_SLICES - NUM_CUT_SLICES
    part, count = slice(index - NUM_CUT_SLICES, None, num_slices), _MIXTURES // num_slices
    words, merges = filter(None, vocabulary.words[part]), filter(all, vocabulary.merges[part])
    entries = [] if vocabulary.cuts else list(filter(None, vocabulary.words))
    return [
        ("characters", map(_CHARACTER_ALONE.format, map(chr, assigned()[part]))),
        ("words", map(_WORD.format, words)),
        ("merges", (f"{left}{right}{right}\n{left}{left}{right}" for left, right in merges)),
        ("runs", map(_run, _runs()[part])),
        ("mixtures", _mixtures(index, count, PIECES)),
        ("mixtures of entries", _mixtures(-index, 5 * count, entries) if entries else []),
    ]


@cache
def _marks() -> list[str]:
    """List texts that a normal form may change: a mark with one of each class, pairs of Jamo, decompositions."""
    marks = [chr(code) for code in assigned() if unicodedata.combining(chr(code))]
    one_of_class = {unicodedata.combining(mark): mark for mark in reversed(marks)}.values()
    leading, vowels, trailing, syllables = ([*map(chr, codes)] for codes in _HANGUL)
    decomposed = [c for c in map(chr, assigned()) if unicodedata.decomposition(c)]
    return [
        *(f"a{mark}{other}a{other}{mark}" for mark, other in product(marks, one_of_class)),
        *(f"{first}{second}" for first, second in [*product(leading, vowels), *product(syllables, trailing)]),
        *(f"{unicodedata.normalize('NFD', c)} {unicodedata.normalize('NFKD', c)}" for c in decomposed),
    ]


def _run(kind: tuple[str, str, int]) -> str:
    template, repeated, length = kind
    return template.format(repeated * length)


@cache
def _runs() -> list[tuple[str, str, int]]:
    """Return where each run stands, its character and its length: all lengths up to 64, and long ones of a few."""
    return [
        *((template, c, n) for c, n in product(_REPEATED, range(65)) for template in (_ALONE, _BETWEEN_OTHERS)),
        *((template, c, n) for c, n in product(_LONG_REPEATED, _LENGTHS) for template in (_ALONE, "b{0}b")),
        *((_ALONE, c, _LONGEST) for c in " -a"),
    ]


def _mixtures(seed: int, count: int, pieces: Sequence[str]) -> Iterator[str]:
    """Yield random strings of pieces, one in 20 of them long.

    A long one is made of few of the pieces, so that many have none that goes to the reference.
    """
    draw = Random(seed).random

    def some(count: int, pieces: Sequence[str]) -> list[str]:
        return [pieces[int(draw() * len(pieces))] for _ in range(count)]

    for i in range(count):
        yield "".join(some(1 + int(draw() * 23), pieces))
        if i % 20 == 0:
            yield "".join(some(50 + int(draw() * 950), some(12, pieces)))
