"""Tokenizers without a library: UTF-8 bytes as ids, and ids that were made elsewhere.

The end of text of bytes is 255, a byte that no UTF-8 text contains. "Encoding" a document of ids only puts the ids
around it: its text is the bytes of its ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.base import (
    END_OF_TEXT,
    PROBE,
    ChatTokens,
    Encoded,
    ReferenceTokenizer,
    Tokenizer,
    decode_between,
    fingerprint,
    text_bytes,
)

_EOT = 255
_DTYPE = np.dtype("<u4")


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
        return _with_boundary_ids(data, np.diff(offsets), self, dtype)

    def chat_tokens(self) -> ChatTokens:
        """See ReferenceTokenizer.chat_tokens."""
        return ChatTokens([], np.ones(self.vocab_size, np.int64), [], needs_nfc=False, locate=None)

    def decode(self, ids: NDArray[Any]) -> str:
        """See Tokenizer.decode."""
        parts = bytes(np.asarray(ids).astype(np.uint8)).split(bytes([_EOT]))
        return END_OF_TEXT.join(part.decode("utf-8", "replace") for part in parts)


class IdsTokenizer:
    """A vocabulary of which only the size and the marks of documents are known.

    Attributes:
        decoder: the tokenizer that made the ids, None if it is not known.

    Args:
        definition: see load_tokenizer.
        decoder: the tokenizer that made the ids; None if it is not known.
    """

    kind = "ids"
    eot = None
    backend = "ids"
    max_text_bytes = 2**31 - 1

    def __init__(self, definition: Mapping[str, Any], decoder: ReferenceTokenizer | None) -> None:
        self.name = str(definition.get("name") or "ids")
        self.vocab_size, self.eot_id = int(definition["vocab_size"]), int(definition["eot_id"])
        bos_id = definition.get("bos_id")
        self.bos_ids = [] if bos_id is None else [int(bos_id)]
        self.decoder = decoder
        self.files: dict[str, bytes] = {} if decoder is None else decoder.files
        self.fingerprint = self._fingerprint()

    def _fingerprint(self) -> str:
        """Return that of the decoder if these are its ids, so that texts and tokens can be members of a mixture."""
        mine, decoder = (self.vocab_size, self.eot_id, self.bos_ids), self.decoder
        if decoder is not None and mine == (decoder.vocab_size, decoder.eot_id, decoder.bos_ids):
            return decoder.fingerprint
        decides = {"kind": "ids", "vocab_size": self.vocab_size, "eot": self.eot_id, "bos": self.bos_ids}
        return fingerprint(decides | ({"decode": decoder.fingerprint} if decoder else {}), [])

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """See Tokenizer.encode; `texts` are large_binary, the ids of a document as little-endian uint32."""
        data, offsets = text_bytes(texts)
        return _with_boundary_ids(data.view(_DTYPE), np.diff(offsets) // _DTYPE.itemsize, self, dtype)

    def chat_tokens(self) -> ChatTokens:
        """Raise TokenizerError: ids can't encode conversations."""
        raise TokenizerError("the tokenizer ids encodes no conversations; give the tokenizer that made the ids")

    def decode(self, ids: NDArray[Any]) -> str:
        """See Tokenizer.decode; ids that the decoder does not have are shown as numbers, without one all are."""
        ids, decoder = np.asarray(ids), self.decoder
        if decoder is None:
            return " ".join(END_OF_TEXT if number == self.eot_id else str(number) for number in ids.tolist())
        unknown = np.unique(ids[ids >= decoder.vocab_size]).tolist()
        spellings = {number: f"<|{number}|>" for number in unknown} | {self.eot_id: END_OF_TEXT}
        return decode_between(ids, spellings, lambda run: decoder.decode(np.array(run, np.uint32)))


def _with_boundary_ids(
    ids: NDArray[Any], num_ids: NDArray[np.int64], tokenizer: Tokenizer, dtype: np.dtype[Any]
) -> Encoded:
    """Return documents with the ids around them; `ids` are those of all texts, `num_ids` (n,) their numbers."""
    num_tokens = num_ids + len(tokenizer.bos_ids) + 1
    ends = np.cumsum(num_tokens)
    tokens = np.full(int(num_tokens.sum()), tokenizer.eot_id, dtype)
    is_inside = np.ones(len(tokens), bool)
    is_inside[ends - 1] = False
    for bos_id in tokenizer.bos_ids:  # at most one
        begins = ends - num_tokens
        tokens[begins], is_inside[begins] = bos_id, False
    tokens[is_inside] = ids
    return Encoded(tokens, num_tokens.astype(np.uint32))
