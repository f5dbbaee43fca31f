"""The interface of fast encoders, and splintr-rs behind it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
import splintr
from tiktoken_ext import openai_public

from tokenloom.tokenizers.base import Encoded, Tokenizer
from tokenloom.tokenizers.fast.known_parts import Unproven, check_tokenizer_json, is_white_space
from tokenloom.tokenizers.huggingface_json import FILE, HuggingFaceTokenizer
from tokenloom.tokenizers.patterns import GPT_2, GPT_4, GPT_4O, QWEN_2, TEKKEN
from tokenloom.tokenizers.tiktoken_bpe import TiktokenTokenizer

ENCODER = f"splintr-rs {version('splintr-rs')}"
# The patterns that splintr-rs has under names of its own, as tiktoken and others spell them. It takes no pattern with
# possessive quantifiers, which tiktoken has.
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
    r"\s+(?!\S)|\s"
)
_PATTERNS = {
    openai_public.r50k_pat_str: splintr.GPT2_PATTERN,
    GPT_2: splintr.GPT2_PATTERN,
    _CL100K: splintr.CL100K_BASE_PATTERN,
    GPT_4: splintr.LLAMA3_PATTERN,
    GPT_4O: splintr.O200K_BASE_PATTERN,
    QWEN_2: splintr.QWEN2_PATTERN,
    TEKKEN: splintr.MISTRAL_V3_PATTERN,
}


@dataclass(frozen=True)
class FastEncoder:
    """A library that encodes what a tokenizer encodes.

    Attributes:
        library: its name and version.
        encode_flat: returns the ids of n texts (uint32) and the n + 1 offsets of the texts in them (uint64), as bytes.
        spellings: texts that it may find where the reference does not; it must not get a text with one.
        bos_ids: the ids before each document.
        eot_id: the id after each document.
    """

    library: str
    encode_flat: Callable[[list[str]], tuple[bytes, bytes]]
    spellings: list[str]
    bos_ids: list[int]
    eot_id: int

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """Return the ids of each text, see Tokenizer.encode."""
        flat, ends = self.encode_flat(texts.to_pylist())
        ids, offsets = np.frombuffer(flat, np.uint32), np.frombuffer(ends, np.int64)
        around = np.array([*self.bos_ids, self.eot_id], dtype)
        places = np.column_stack([*[offsets[:-1]] * len(self.bos_ids), offsets[1:]]).ravel()
        tokens = np.insert(ids.astype(dtype), places, np.tile(around, len(texts)))
        return Encoded(tokens, (np.diff(offsets) + len(around)).astype(np.uint32))


def check_parts(tokenizer: Tokenizer) -> None:
    """Raise Unproven if no fast encoder is known to support all parts of a tokenizer."""
    if isinstance(tokenizer, TiktokenTokenizer):
        _known_pattern(tokenizer)
    elif isinstance(tokenizer, HuggingFaceTokenizer):
        check_tokenizer_json(json.loads(tokenizer.files[FILE]))
    else:
        raise Unproven(f"no fast encoder supports the kind {tokenizer.kind}")


def make_encoder(tokenizer: Tokenizer) -> FastEncoder:
    """Return the fast encoder for a tokenizer; raise Unproven if none is known to support all parts of it."""
    if isinstance(tokenizer, TiktokenTokenizer):
        encode_flat = _for_tiktoken(tokenizer).encode_batch_flat
        return FastEncoder(ENCODER, encode_flat, [], tokenizer.bos_ids, tokenizer.eot_id)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        encoder, spellings = _for_tokenizer_json(tokenizer.files[FILE])
        return FastEncoder(ENCODER, encoder.encode_batch_flat, spellings, tokenizer.bos_ids, tokenizer.eot_id)
    raise Unproven(f"no fast encoder supports the kind {tokenizer.kind}")


def _known_pattern(tokenizer: TiktokenTokenizer) -> str:
    """Return the pattern as splintr-rs spells it."""
    if tokenizer.pattern not in _PATTERNS:
        raise Unproven("its pattern is not that of GPT-2, GPT-4, GPT-4o, Qwen 2 or Tekken")
    return _PATTERNS[tokenizer.pattern]


def _for_tiktoken(tokenizer: TiktokenTokenizer) -> splintr.Tokenizer:
    """Return an encoder that knows no special tokens."""
    pattern = _known_pattern(tokenizer)
    lines = b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in tokenizer.ranks.items())
    with _refusals():
        return splintr.Tokenizer.from_bytes(lines, pattern)


def _for_tokenizer_json(data: bytes) -> tuple[splintr.AnyTokenizer, list[str]]:
    """Return an encoder, and the added tokens that it must not get in a text."""
    bare, spellings = bare_tokenizer_json(data)
    with _refusals():
        return splintr.from_json_bytes(bare), spellings


@lru_cache(maxsize=2)
def bare_tokenizer_json(data: bytes) -> tuple[bytes, list[str]]:
    """Return a tokenizer.json as splintr-rs must read it, and the added tokens that it must not get in a text.

    Raises Unproven as make_encoder.
    """
    content = json.loads(data)
    check_tokenizer_json(content)
    # We put the ids around a text ourselves, and cut no text short.
    bare = content | {"post_processor": None, "truncation": None, "padding": None}
    spellings = [token["content"] for token in content.get("added_tokens") or [] if not is_white_space(token)]
    return json.dumps(bare).encode(), spellings


@contextmanager
def _refusals() -> Iterator[None]:
    """Translate what splintr-rs raises for a vocabulary that it can't take to Unproven."""
    try:
        yield
    except (ValueError, OverflowError, RuntimeError) as error:
        raise Unproven(f"splintr-rs does not take it: {error}") from error
