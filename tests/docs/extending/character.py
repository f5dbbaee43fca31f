"""Unicode code points as ids. End of text is the number after the last one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokenloom.tokenizers.base import END_OF_TEXT, PROBE, ChatTokens, Encoded, fingerprint, text_bytes

_EOT = 0x110000


class CharacterTokenizer:
    """A vocabulary of all code points.

    Args:
        name: as the manifest shows it.
    """

    kind = "character"
    vocab_size = _EOT + 1
    eot_id = _EOT
    eot = None
    backend = "character"
    max_text_bytes = 2**28

    def __init__(self, name: str) -> None:
        self.name = name
        self.files: dict[str, bytes] = {}
        self.bos_ids: list[int] = []
        self.fingerprint = fingerprint({"kind": "character", "eot": _EOT}, list(map(ord, PROBE)))

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """See Tokenizer.encode."""
        data, _ = text_bytes(texts)
        num_tokens = pc.utf8_length(texts).to_numpy(zero_copy_only=False).astype(np.uint32) + 1
        is_text = np.ones(int(num_tokens.sum()), dtype=bool)
        is_text[np.cumsum(num_tokens, dtype=np.int64) - 1] = False
        tokens = np.full(len(is_text), _EOT, dtype)
        tokens[is_text] = np.frombuffer(bytes(data).decode("utf-8").encode("utf-32-le"), "<u4")
        return Encoded(tokens, num_tokens)

    def chat_tokens(self) -> ChatTokens:
        """See ReferenceTokenizer.chat_tokens: no token of its own marks a turn."""
        return ChatTokens([], np.ones(self.vocab_size, np.int64), [], needs_nfc=False, locate=None)

    def decode(self, ids: NDArray[Any]) -> str:
        """See Tokenizer.decode."""
        return "".join(END_OF_TEXT if i == _EOT else chr(i) for i in np.asarray(ids).tolist())


def load(definition: Mapping[str, Any], files: Mapping[str, bytes] | None) -> CharacterTokenizer:
    """Make the tokenizer; only `name` of the definition is used."""
    return CharacterTokenizer(str(definition.get("name") or "character"))
