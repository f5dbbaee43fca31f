"""The texts on which a fast encoder and the reference are compared: a function of the vocabulary alone, in slices.

Each slice has texts of every group, and is made without the others. The first NUM_CUT_SLICES are encoded with a
vocabulary of byte pairs, in which nearly every cut between words shows (probe_references.py); the others with the
vocabulary itself. Each group finds what no other one does:

- characters: a library that puts one code point into another class, cuts beside it, or joins it with its neighbours.
- marks: a library that reorders or composes marks in another way; only where texts get a normal form.
- runs: a repetition whose length decides where it is cut, or in which order its many equal pairs are merged.
- mixtures: a cut that depends on more neighbours than a character's text has, and state that a long text leaves behind.
- words: one entry of the vocabulary that is missing, or has another id; alone, after a space, and twice in one word.
- merges: two merges whose order is another one, as their halves compete for a neighbour.
- mixtures of entries: the same over distances, in vocabularies that do not cut texts into words.

Only Random.random() is used, whose stream never changes (https://docs.python.org/3/library/random.html), and no data of
Unicode but that of assigned characters, which doesn't either.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random
from typing import Any

from tokenloom.tokenizers.fast.known_parts import SPACE_MARK
from tokenloom.tokenizers.fast.sentencepiece_parts import as_text
from tokenloom.tokenizers.fast.tokenizer import left_to_reference
from tokenloom.tokenizers.tiktoken_files import bytes_of_letters

_Token = bytes | str  # letters stand for the bytes of those that are strings, see LETTERS
_NEVER_FOUND = ("<s>", "</s>", "<unk>", "<pad>")  # names of control pieces, which no text has
NUM_SLICES, NUM_CUT_SLICES = 300, 100
_MIXTURES = 20_000  # of each kind
_ALONE, _BETWEEN_OTHERS = "{0}", "{0}1a{0}a\n{0}\n.{0} x{0}"
_LENGTHS = (100, 500, 1000, 4095, 10_000, 100_000)
_LONGEST = 1_000_000
_REPEATED = " \t\n\r\u00a0\u3000\u200b-=_.#*!?/'\",0a\u00e9\u0301\u4e00"
_LONG_REPEATED = " \n-=0a\u3000"
_SPACES = (
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\r",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
    "\u200d",
    "\ufe0f",
    "\0",
    "\x85",
)
_ENDINGS = ("'s", "'S", "'re", "'LL", "\u2019s", "'\u017f", "\u017f")
_LETTERS = ("a", "B", "z", "\u00df", "\u0130", "\u01c5", "\u02b0", "\u00e9", "e\u0301", "\u0301", "\u0345", "\u4e00")
_OTHER_LETTERS = (
    "\u3042",
    "\uac00",
    "\u1100\u1161",
    "\u0915",
    "\u093f",
    "\u05d0",
    "\u0628",
    "\U00010400",
    "\U0002a6d6",
)
_NUMBERS = ("1", "23", "\u0663", "\u00b2", "\u2167")
_MARKS = (".", ",", "/", "//", "_", "-", "--", "#", "$", "+", "<", "|", ">", "\u00ab", "\u3002", "\u20ac")
_HANGUL = range(0x1100, 0x1113), range(0x1161, 0x1176), range(0x11A7, 0x11C3), range(0xAC00, 0xD7A4, 28)
_SYMBOLS = ("\U0001f469", "\U0001f1e9", "\ufffd", "\ue000")
_PIECES = (*_SPACES, *_ENDINGS, *_LETTERS, *_OTHER_LETTERS, *_NUMBERS, *_MARKS, *_SYMBOLS)
_SURROGATES = range(0xD800, 0xE000)  # no text contains them


@dataclass(frozen=True)
class Vocabulary:
    """The parts of a vocabulary.

    `tokens` are its entries and `pairs` its merges. `normalizes` says whether texts get a normal form, `cuts` whether
    they are cut into words before pairs are merged.
    """

    tokens: Sequence[_Token]
    pairs: Sequence[tuple[_Token, _Token]]
    normalizes: bool
    cuts: bool = True

    def words(self, part: slice) -> list[str]:
        """Return a part of the entries: those in it that are text."""
        return [text for text in map(_text, self.tokens[part]) if text]

    def merges(self, part: slice) -> list[tuple[str, str]]:
        """Return a part of the merges: those in it whose halves are text."""
        halves = [(_text(left), _text(right)) for left, right in self.pairs[part]]
        return [(left, right) for left, right in halves if left and right]


def vocabulary_of(content: str, *, is_ranks: bool, normalizes: bool) -> Vocabulary:
    """Return the parts of a vocabulary.

    Args:
        content: a .tiktoken file if it `is_ranks`, else a tokenizer.json.
        is_ranks: see `content`.
        normalizes: whether texts get a normal form.
    """
    if is_ranks:
        return Vocabulary([base64.b64decode(line.split()[0]) for line in content.splitlines() if line], [], normalizes)
    found = json.loads(content)
    pairs: list[tuple[str, str]] = [
        (left, right)
        for left, right in (pair.split(" ") if isinstance(pair, str) else pair for pair in found["model"]["merges"])
    ]
    if found["model"].get("byte_fallback"):
        return _of_pieces(found, pairs)
    added = [token["content"].encode() for token in found.get("added_tokens") or []]
    return Vocabulary([*found["model"]["vocab"], *added], pairs, normalizes)


def _of_pieces(content: Mapping[str, Any], pairs: Iterable[tuple[str, str]]) -> Vocabulary:
    """Return the parts of a SentencePiece model.

    Two merges can make the same piece of three neighbours, as `--` and `-`, or `-` and `--`, of `----`. Their order
    is the place in the text for one library, and the halves for the other, so such neighbours are words too.
    """
    pieces = [*content["model"]["vocab"], *(token["content"] for token in content["added_tokens"])]
    overlaps = [
        piece[:-length] + piece
        for piece in pieces
        for length in range(1, len(piece))
        if piece[:length] == piece[-length:]
    ]
    words = [*pieces, *_NEVER_FOUND, *overlaps]
    return Vocabulary(
        tokens=[word.encode() for word in (*map(as_text, words), *(word for word in words if SPACE_MARK in word))],
        pairs=[(as_text(left).encode(), as_text(right).encode()) for left, right in pairs],
        normalizes=False,
        cuts=False,
    )


def _text(token: _Token) -> str:
    """Return a token as text; empty for one that is not, as a part of a character or letters of no byte."""
    try:
        return (bytes_of_letters(token) if isinstance(token, str) else token).decode()
    except ValueError:
        return ""


@cache
def assigned() -> list[int]:
    """Return the code points that a fast encoder may get, in order."""
    left = {code for first, last in left_to_reference() for code in range(first, last + 1)}
    return [code for code in range(0x110000) if code not in left and code not in _SURROGATES]


def slice_texts(vocabulary: Vocabulary, index: int) -> list[str]:
    """Return the texts of a slice, index in [0, NUM_SLICES)."""
    return [text for _, texts in slice_groups(vocabulary, index) for text in texts]


def slice_groups(vocabulary: Vocabulary, index: int) -> list[tuple[str, Iterable[str]]]:
    """Return the texts of a slice by the names of their groups."""
    if index < NUM_CUT_SLICES:
        part = slice(index, None, NUM_CUT_SLICES)
        marks = _marks()[part] if vocabulary.normalizes else []
        return [
            ("characters", map(between_others, assigned()[part])),
            ("marks", marks),
            ("runs", map(_run, _runs()[part])),
            ("mixtures", _mixtures(index, _MIXTURES // NUM_CUT_SLICES, _PIECES)),
        ]
    num_slices = NUM_SLICES - NUM_CUT_SLICES
    part = slice(index - NUM_CUT_SLICES, None, num_slices)
    count = _MIXTURES // num_slices
    return [
        ("characters", map(beside_itself, assigned()[part])),
        ("words", map(word_between_others, vocabulary.words(part))),
        ("merges", (f"{left}{right}{right}\n{left}{left}{right}" for left, right in vocabulary.merges(part))),
        ("runs", map(_run, _runs()[part])),
        ("mixtures", _mixtures(index, count, _PIECES)),
        ("mixtures of entries", [] if vocabulary.cuts else _mixtures(-index, 5 * count, vocabulary.words(slice(None)))),
    ]


def between_others(code: int) -> str:
    """Return a text with a code point at both ends, between letters, digits, spaces, punctuation and marks, and before
    the words and runs whose cut depends on its class. U+0345 and U+0334 have the highest and a low combining class.
    """
    c = chr(code)
    return f"{c}a{c}a1{c}1 {c} {c}'s .{c},P\na'{c}'de{c}\u0301a\u0345{c}b\u0334{c}\u0334 '{c}a'{c}b {c}"


def beside_itself(code: int) -> str:
    """Return a text with a code point alone in a word, after a space and twice."""
    c = chr(code)
    return f"{c} {c}{c}a{c}\n{c}"


def word_between_others(word: str) -> str:
    """Return a text with an entry of a vocabulary at both ends, after a space, and twice in a word."""
    return f"{word} {word}{word}e\n{word}"


@cache
def _marks() -> list[str]:
    """Return what a normal form may reorder or join: a mark with one of each class, pairs of Jamo, decompositions."""
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
