"""The texts on which a fast encoder and the reference are compared, once for each vocabulary."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import product

CODE_POINTS = [*range(0xD800), *range(0xE000, 0x110000)]  # all that text may contain
_LONGEST = 1_000_000  # takes the reference seconds
_REPEATED = " \t\n\r\u00a0\u3000\u200b-=_.#*!?/'\",0a\u00e9\u0301\u4e00"
_ODD_PIECES = [
    *(" ", "  ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\u200b", "\u200d", "\ufe0f", "\x00", "\x85"),
    *(
        "'s",
        "'S",
        "'re",
        "'LL",
        "\u2019s",
        "'\u017f",
        "\u017f",
        "a",
        "B",
        "z",
        "\u00df",
        "\u0130",
        "\u01c5",
        "\u02b0",
        "1",
        "23",
        "\u0663",
    ),
    *(
        "\u00b2",
        "\u2167",
        "\u00e9",
        "e\u0301",
        "\u0301",
        "\u0345",
        "\u4e00",
        "\u3042",
        "\uac00",
        "\u1100\u1161",
        "\u0915",
    ),
    *("\u093f", "\u05d0", "\u0628", "\U0001f469", "\U0001f1e9", "\U00010400", ".", ",", "/", "//", "_", "-", "--", "#"),
    *("'\u017f", "\u017f", "$", "+", "\u00ab", "\u3002", "\u20ac", "\ufffd", "\U0010ffff", "\ue000", "<", "|", ">"),
]


def alone(code: int) -> str:
    """Return a text of one code point."""
    return chr(code)


def in_context(code: int) -> str:
    """Return a text with one code point between letters, digits, spaces, punctuation and marks, and before the words
    and runs whose cut depends on its class. U+0345 and U+0334 have the highest and a low combining class.
    """
    c = chr(code)
    return f"a{c}a1{c}1 {c} {c}'s .{c},P\na'{c}'de{c}\u0301a\u0345{c}b\u0334{c}\u0334 '{c}a'{c}b"


def words_in_context(words: Iterable[str]) -> Iterator[str]:
    """Yield each entry of a vocabulary alone, with letters around it, and after a space."""
    for word in words:
        yield word
        yield f"e{word}e"
        yield f" {word} {word}"


def merges_in_context(merges: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the two halves of each merge together in longer words."""
    for left, right in merges:
        yield f"{left}{right}{right}"
        yield f"{left}{left}{right}"


def pairs_of_marks(codes: Container[int]) -> Iterator[str]:
    """Yield what a normal form may reorder or join: a mark with one of each class, pairs of Jamo, decompositions."""
    marks = [code for code in CODE_POINTS if code in codes and unicodedata.combining(chr(code))]
    one_of_class = {unicodedata.combining(chr(code)): code for code in reversed(marks)}.values()
    for mark, other in product(marks, one_of_class):
        yield from (f"a{chr(mark)}{chr(other)}", f"a{chr(other)}{chr(mark)}")
    leading, vowels, trailing = range(0x1100, 0x1113), range(0x1161, 0x1176), range(0x11A7, 0x11C3)
    yield from (f"{chr(one)}{chr(two)}" for one, two in product(leading, vowels))
    yield from (f"{chr(code)}{chr(two)}" for code, two in product(range(0xAC00, 0xD7A4, 28), trailing))
    for code in CODE_POINTS:
        if code in codes and unicodedata.decomposition(chr(code)):
            yield f"{unicodedata.normalize('NFD', chr(code))} {unicodedata.normalize('NFKD', chr(code))}"


def runs(lengths: Iterable[int]) -> Iterator[str]:
    """Yield runs of one character of every length up to 64, before and after others, and runs of `lengths`."""
    for repeated, length in product(_REPEATED, range(1, 65)):
        run = repeated * length
        yield from (run, f"a{run}a", f"{run}1", f"\n{run}\n", f"{run} x")
    for length in lengths:
        for repeated in " \n-=0a\u3000" if length < _LONGEST else " -a":
            yield repeated * length
            yield f"b{repeated * length}b" if length < _LONGEST else ""


def mixtures(count: int, pieces: Sequence[str] = _ODD_PIECES) -> Iterator[str]:
    """Yield random strings of odd characters or other pieces, one in 20 of them long, the same ones every time.

    A long one is made of few of the pieces, so that many have none that goes to the reference.
    """
    generator = random.Random(1)
    for i in range(count):
        yield "".join(generator.choices(pieces, k=generator.randrange(1, 24)))
        if i % 20 == 0:
            yield "".join(generator.choices(generator.sample(pieces, 12), k=generator.randrange(50, 1000)))
