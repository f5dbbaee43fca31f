"""What a probe needs to know of a tokenizer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.byte_letters import bytes_of_letters
from tokenloom.tokenizers.huggingface_json import FILE, HuggingFaceTokenizer
from tokenloom.tokenizers.tiktoken_bpe import TiktokenTokenizer


@dataclass(frozen=True)
class Vocabulary:
    """The parts of a tokenizer.

    `words` are its entries and `merges` its pairs, those that are text. `normalizes` says whether texts get a normal
    form.
    """

    words: list[str]
    merges: list[tuple[str, str]]
    normalizes: bool


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Return the parts of a tokenizer of a kind that make_encoder knows."""
    if isinstance(tokenizer, TiktokenTokenizer):
        return Vocabulary(_texts(tokenizer.ranks), [], False)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    content = json.loads(tokenizer.files[FILE])
    model, added = content["model"], content.get("added_tokens") or []
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return Vocabulary(
        words=[*_texts(model["vocab"]), *(token["content"] for token in added if not token["special"])],
        merges=[(left[0], right[0]) for left, right in map(_halves, pairs) if left and right],
        normalizes=content.get("normalizer") is not None,
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
