"""What every tokenizer offers, and how its fingerprint is made."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# Encoded into every fingerprint: a library that encodes any of it differently is another tokenizer.
PROBE = (
    "Hello, world! It's 2026; we've 1234567 reasons.\r\n\tdef f(x):\n        return x**2  # naïve café\n\n\n"
    "多言語のテキスト。한국어 텍스트. Русский текст. नमस्ते दुनिया مرحبا "
    "👩‍👩‍👧‍👦🇪🇺 e\u0301 \u200b\u00a0\u3000|\x00\x1b[0m <|endoftext|> <s> https://example.org/a?b=c&d=1.5e-3 AAAAAAAA"
)


@dataclass(frozen=True)
class Encoded:
    """The ids of n documents, one after the other, each with its end-of-text id.

    Shapes: tokens (sum of num_tokens,) of the asked dtype; num_tokens (n,) uint32.
    """

    tokens: NDArray[Any]
    num_tokens: NDArray[np.uint32]


class Tokenizer(Protocol):
    """Text to ids and back; every id is in [0, vocab_size)."""

    kind: str
    name: str
    vocab_size: int
    eot_id: int
    fingerprint: str  # SHA-256 of the whole definition and of the ids of PROBE, in hexadecimal
    backend: str  # the library that encodes, with its version
    files: dict[str, bytes]  # what it was read from, by fixed names; empty for a built-in or named one

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """Encode documents: ids of each text as ordinary text, then the end-of-text id.

        Args:
            texts: (n,) large_string without nulls, valid UTF-8.
            dtype: unsigned type that holds every id.

        Raises TokenizerError if the library can't encode one.
        """

    def decode(self, ids: NDArray[Any]) -> str:
        """Return the text of ids; end-of-text reads <|endoftext|>, bytes that are no UTF-8 read U+FFFD."""


def fingerprint(definition: dict[str, Any], probe_ids: list[int]) -> str:
    """Return the SHA-256 of a definition (JSON values) and of the ids of PROBE, in hexadecimal."""
    value = json.dumps({"definition": definition, "probe": probe_ids}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(value.encode()).hexdigest()


def text_bytes(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the UTF-8 bytes of a large_string array without a copy, and where each text starts and ends.

    Returns:
        (num_bytes,) uint8 and (n + 1,) int64 offsets into it, the first of them 0.
    """
    _, offset_buffer, data = texts.buffers()
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    flat = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return flat[offsets[0] : offsets[-1]], offsets - offsets[0]
