"""A tokenizer that cuts texts as another one does, and shows where.

Two libraries that cut a text into words differently may give the same ids for it, where no token of the vocabulary
reaches across the cut. In this vocabulary every two bytes are a token, so that nearly every cut shows in the ids.
"""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import tiktoken

from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.byte_letters import LETTERS
from tokenloom.tokenizers.huggingface_json import FILE
from tokenloom.tokenizers.named_encodings import Ranks
from tokenloom.tokenizers.tiktoken_bpe import TiktokenTokenizer

_NAME, _END = "byte pairs", "<|end of these pairs|>"
_PAIRS = list(product(range(256), repeat=2))
_NUM_ORDINARY = 256 + len(_PAIRS)


def with_byte_pairs(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with the normalizer and the cuts of one that make_encoder supports."""
    if isinstance(tokenizer, TiktokenTokenizer):
        tokens = [bytes([byte]) for byte in range(256)] + [bytes(pair) for pair in _PAIRS]
        ranks = {token: rank for rank, token in enumerate(tokens)}
        special = {_END: _NUM_ORDINARY}
        encoding = tiktoken.Encoding(_NAME, pat_str=tokenizer.pattern, mergeable_ranks=ranks, special_tokens=special)
        return TiktokenTokenizer(encoding, _NAME, _END, None, {}, Ranks(ranks))
    content = _content(json.loads(tokenizer.files[FILE]))
    return load_tokenizer({"kind": tokenizer.kind, "eot": _END}, {FILE: json.dumps(content).encode()})


def _content(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a tokenizer.json with another vocabulary and an end of text."""
    pairs = [(LETTERS[first], LETTERS[second]) for first, second in _PAIRS]
    tokens = [*(LETTERS[byte] for byte in range(256)), *(first + second for first, second in pairs)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [*(content.get("added_tokens") or []), {"content": _END, "special": True, **flags}]
    model = content["model"] | {
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": [f"{first} {second}" for first, second in pairs],
    }
    return content | {
        "model": model,
        "added_tokens": [token | {"id": _NUM_ORDINARY + i} for i, token in enumerate(added)],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
