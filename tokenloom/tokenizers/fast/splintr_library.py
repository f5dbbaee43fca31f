"""splintr-rs as a library of fast encoders."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise

import numpy as np
import splintr
from numpy.typing import NDArray
from tiktoken_ext import openai_public

from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.fast.encoder import FastEncoder, refusals
from tokenloom.tokenizers.fast.known_parts import (
    Unproven,
    bare_content,
    check_ids,
    check_tokenizer_json,
    routed_spellings,
)
from tokenloom.tokenizers.huggingface_json import FILE
from tokenloom.tokenizers.patterns import CL100K, GPT_2, GPT_4, GPT_4O, QWEN_2, TEKKEN
from tokenloom.tokenizers.tiktoken_bpe import TiktokenTokenizer

NAME = f"splintr-rs {version('splintr-rs')}"
# The patterns that splintr-rs has under names of its own, as tiktoken and others spell them. It takes no pattern with
# possessive quantifiers, which tiktoken has.
_PATTERNS = {
    openai_public.r50k_pat_str: splintr.GPT2_PATTERN,
    GPT_2: splintr.GPT2_PATTERN,
    CL100K: splintr.CL100K_BASE_PATTERN,
    GPT_4: splintr.LLAMA3_PATTERN,
    GPT_4O: splintr.O200K_BASE_PATTERN,
    QWEN_2: splintr.QWEN2_PATTERN,
    TEKKEN: splintr.MISTRAL_V3_PATTERN,
}


def check_parts(tokenizer: Tokenizer) -> None:
    """See Library.check_parts."""
    if isinstance(tokenizer, TiktokenTokenizer):
        _known_pattern(tokenizer)
        check_ids(tokenizer.ranks.ids.items())
    elif tokenizer.kind == "huggingface":
        check_tokenizer_json(json.loads(tokenizer.files[FILE]))
    else:
        raise Unproven(f"splintr-rs does not encode the kind {tokenizer.kind}")


def starts_thread(tokenizer: Tokenizer) -> bool:
    """See Library.starts_thread: it does when it reads a tokenizer.json."""
    return tokenizer.kind == "huggingface"


def make_encoder(tokenizer: Tokenizer) -> FastEncoder:
    """See Library.make_encoder."""
    if isinstance(tokenizer, TiktokenTokenizer):
        encode_texts = _by_text(_for_tiktoken(tokenizer))
        return FastEncoder(NAME, encode_texts, [], tokenizer.bos_ids, tokenizer.eot_id)
    if tokenizer.kind == "huggingface":
        encoder, spellings = _for_tokenizer_json(tokenizer.files[FILE])
        return FastEncoder(NAME, _by_text(encoder), spellings, tokenizer.bos_ids, tokenizer.eot_id)
    raise Unproven(f"splintr-rs does not encode the kind {tokenizer.kind}")


def _by_text(encoder: splintr.Tokenizer | splintr.AnyTokenizer) -> Callable[[list[bytes]], list[NDArray[np.uint32]]]:
    """Return an `encode_texts` for FastEncoder that calls `encoder`."""

    def encode_texts(texts: list[bytes]) -> list[NDArray[np.uint32]]:
        flat, offsets = encoder.encode_batch_flat([text.decode() for text in texts])
        ids = np.frombuffer(flat, np.uint32)
        return [ids[start:end] for start, end in pairwise(np.frombuffer(offsets, np.uint64).tolist())]

    return encode_texts


def _known_pattern(tokenizer: TiktokenTokenizer) -> str:
    """Return the pattern as splintr-rs spells it."""
    if tokenizer.pattern not in _PATTERNS:
        raise Unproven("its pattern is not that of GPT-2, GPT-4, GPT-4o, Qwen 2 or Tekken")
    return _PATTERNS[tokenizer.pattern]


def _for_tiktoken(tokenizer: TiktokenTokenizer) -> splintr.Tokenizer:
    """Return an encoder that knows no special tokens."""
    check_parts(tokenizer)
    pattern = _known_pattern(tokenizer)
    with refusals("splintr-rs"):
        return splintr.Tokenizer.from_bytes(tokenizer.ranks.file, pattern)


def _for_tokenizer_json(data: bytes) -> tuple[splintr.AnyTokenizer, list[str]]:
    """Return an encoder, and the added tokens that it must not get in a text."""
    content = json.loads(data)
    check_tokenizer_json(content)
    with refusals("splintr-rs"):
        return splintr.from_json_bytes(
            json.dumps(bare_content(content) | {"normalizer": content.get("normalizer")}).encode()
        ), routed_spellings(content)
