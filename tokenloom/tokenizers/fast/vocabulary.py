"""What a probe needs to know of a vocabulary, read from what the fast encoder gets of it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.tokenizers.fast.known_parts import SPACE_MARK
from tokenloom.tokenizers.fast.sentencepiece_parts import as_text
from tokenloom.tokenizers.tiktoken_files import bytes_of_letters

_Token = bytes | str  # letters stand for the bytes of those that are strings, see byte_letters.py
_NEVER_FOUND = ("<s>", "</s>", "<unk>", "<pad>")  # names of control pieces, which no text has


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
