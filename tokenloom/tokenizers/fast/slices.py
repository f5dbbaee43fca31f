"""The hashes of the ids that a fast encoder gives for slices of the probe's texts, without the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from tokenloom.tokenizers.fast.byte_pairs import parts_with_byte_pairs
from tokenloom.tokenizers.fast.encoder import FastEncoder
from tokenloom.tokenizers.fast.gigatoken_library import encoder_of
from tokenloom.tokenizers.fast.parts import Parts
from tokenloom.tokenizers.fast.probe_texts import NUM_CUT_SLICES, slice_texts
from tokenloom.tokenizers.fast.routing import Router
from tokenloom.tokenizers.fast.space_runs import MARKER
from tokenloom.tokenizers.fast.unicode_14 import left_to_reference
from tokenloom.tokenizers.fast.vocabulary import vocabulary_of

Ranges = Sequence[tuple[int, int]]  # [first, last]


def ids_hash(ids: Sequence[NDArray[np.uint32]]) -> str:
    """Return the hash of the ids of some texts, without ids around them: xxh3_64 in hexadecimal."""
    found = xxhash.xxh3_64(np.array(list(map(len, ids)), np.uint32).tobytes())
    found.update(np.concatenate([np.empty(0, np.uint32), *ids]).tobytes())
    return found.hexdigest()


class SliceEncoder:
    """The fast encoder of a vocabulary, and that of the byte pairs with the same cuts.

    Args:
        parts: of the tokenizer.

    Raises Unproven as encoder_of.
    """

    def __init__(self, parts: Parts) -> None:
        is_ranks = parts.pattern is not None
        self.vocabulary = vocabulary_of(parts.content, is_ranks=is_ranks, normalizes=parts.normalizes)
        self._encoder = encoder_of(parts, [], 0)
        self._pairs = encoder_of(parts_with_byte_pairs(parts), [], 0) if self.vocabulary.cuts else self._encoder
        self._markers = [MARKER] if parts.run_ids else []

    def of_slice(self, index: int) -> FastEncoder:
        """Return what encodes a slice."""
        return self._pairs if index < NUM_CUT_SLICES else self._encoder

    def ids_hash(self, index: int, odd: Ranges) -> str:
        """Return the hash of the ids of the texts of a slice that the encoder gets.

        Texts with an added token are among them: which ones there are is not a part of what is proven.
        """
        texts = slice_texts(self.vocabulary, index)
        router = Router([*left_to_reference(), *odd], self._markers)
        needs = router.needs_reference(pa.array(texts, pa.large_string())).tolist()
        given = [text.encode() for text, is_left in zip(texts, needs, strict=True) if not is_left]
        return ids_hash(self.of_slice(index).encode_texts(given))
