"""UTF-8 bytes as ids. End of text is 255, a byte that no UTF-8 text contains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.tokenizers.base import END_OF_TEXT, PROBE, ChatTokens, Encoded, fingerprint, text_bytes

_EOT = 255


class ByteTokenizer:
    """A vocabulary of the 256 bytes.

    Args:
        name: shown in the manifest.
    """

    kind = "byte"
    vocab_size = 256
    eot_id = _EOT
    eot = None
    backend = "byte"
    max_text_bytes = 2**31 - 1

    def __init__(self, name: str) -> None:
        self.name = name
        self.bos_ids: list[int] = []
        self.files: dict[str, bytes] = {}
        self.fingerprint = fingerprint({"kind": "byte", "eot": _EOT}, list(PROBE.encode()))

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """See Tokenizer.encode."""
        data, offsets = text_bytes(texts)
        num_tokens = np.diff(offsets) + 1
        is_text = np.ones(len(data) + len(texts), dtype=bool)
        is_text[np.cumsum(num_tokens) - 1] = False
        tokens = np.full(len(is_text), _EOT, dtype=dtype)
        tokens[is_text] = data
        return Encoded(tokens, num_tokens.astype(np.uint32))

    def chat_tokens(self) -> ChatTokens:
        """See ReferenceTokenizer.chat_tokens."""
        return ChatTokens([], np.ones(self.vocab_size, np.int64), [], needs_nfc=False, locate=None)

    def decode(self, ids: NDArray[Any]) -> str:
        """See Tokenizer.decode."""
        parts = bytes(np.asarray(ids).astype(np.uint8)).split(bytes([_EOT]))
        return END_OF_TEXT.join(part.decode("utf-8", "replace") for part in parts)


def load(definition: Mapping[str, Any], files: Mapping[str, bytes] | None) -> ByteTokenizer:
    """Return the tokenizer; only `name` of the definition is used."""
    return ByteTokenizer(str(definition.get("name") or "byte"))
