"""The references of a probe: a tokenizer without most of its added tokens, and one that shows where it cuts texts.

Two libraries that cut a text into words differently may give the same ids for it, where no token of the vocabulary
reaches across the cut. In a vocabulary of byte pairs every two bytes are a token, so that nearly every cut shows in the
ids. Added tokens that are white space stay, and get the ids behind the pairs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

import tiktoken

from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.fast.known_parts import is_white_space
from tokenloom.tokenizers.fast.parts import Parts
from tokenloom.tokenizers.fast.space_runs import MARKER
from tokenloom.tokenizers.huggingface_json import FILE
from tokenloom.tokenizers.tiktoken_bpe import TiktokenTokenizer
from tokenloom.tokenizers.tiktoken_files import LETTERS, ranks_file

_NAME, _END = "byte pairs", "<|end of these pairs|>"
_PAIRS = list(product(range(256), range(256)))
_TOKENS = [bytes([byte]) for byte in range(256)] + [bytes(pair) for pair in _PAIRS]
_NUM_ORDINARY = len(_TOKENS)
_PRIVATE = "\U0010fffd"  # always left to the reference, see unicode_14.py
_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


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
