"""What a probe needs to know of a tokenizer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.byte_letters import bytes_of_letters
from tokenloom.tokenizers.fast.sentencepiece_parts import FILE as MODEL_FILE
from tokenloom.tokenizers.fast.sentencepiece_parts import SPACE_MARK, Model, as_text, read_model
from tokenloom.tokenizers.huggingface_json import FILE, HuggingFaceTokenizer
from tokenloom.tokenizers.tiktoken_bpe import TiktokenTokenizer


@dataclass(frozen=True)
class Vocabulary:
    """The parts of a tokenizer.

    `words` are its entries and `merges` its pairs, those that are text. `normalizes` says whether texts get a normal
    form, `cuts` whether they are cut into words before pairs are merged.
    """

    words: list[str]
    merges: list[tuple[str, str]]
    normalizes: bool
    cuts: bool = True


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Return the parts of a tokenizer of a kind that make_encoder knows."""
    if isinstance(tokenizer, TiktokenTokenizer):
        return Vocabulary(_texts(tokenizer.ranks.ids), [], False)
    if tokenizer.kind == "sentencepiece":
        return _of_model(read_model(tokenizer.files[MODEL_FILE]))
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    content = json.loads(tokenizer.files[FILE])
    model, added = content["model"], content.get("added_tokens") or []
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return Vocabulary(
        words=[*_texts(model["vocab"]), *(token["content"] for token in added if not token["special"])],
        merges=[(left[0], right[0]) for left, right in map(_halves, pairs) if left and right],
        normalizes=content.get("normalizer") is not None,
    )


def _of_model(model: Model) -> Vocabulary:
    """Return the parts of a SentencePiece model.

    Two merges can make the same piece of three neighbours, as `--` and `-`, or `-` and `--`, of `----`. Their order
    is the place in the text for one library, and the halves for the other, so such neighbours are words too.
    """
    pieces = [*model.scores, *model.user_defined]
    overlaps = [
        piece[:-length] + piece
        for piece in model.scores
        for length in range(1, len(piece))
        if piece[:length] == piece[-length:]
    ]
    words = [*pieces, *model.others, *overlaps]
    return Vocabulary(
        words=[*map(as_text, words), *(word for word in words if SPACE_MARK in word)],
        merges=[(as_text(left), as_text(right)) for left, right in model.merges()],
        normalizes=False,
        cuts=False,
    )


def _texts(tokens: Iterable[bytes | str]) -> list[str]:
    """Return the tokens that are text by themselves, as text; letters stand for the bytes of those that are strings."""
    texts = []
    for token in tokens:
        with contextlib.suppress(KeyError, UnicodeDecodeError):  # letters of no byte, or a part of a character
            texts.append((bytes_of_letters(token) if isinstance(token, str) else token).decode())
    return texts


def _halves(merge: Iterable[str]) -> tuple[list[str], list[str]]:
    left, right = merge
    return _texts([left]), _texts([right])
