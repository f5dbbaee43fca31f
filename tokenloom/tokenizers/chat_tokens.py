"""What the encoder of conversations needs to know of a tokenizer: its added tokens, and how long each token is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in a text before it is cut into words.

    Attributes:
        text: its spelling.
        id: its id.
        special: whether it is a special token, which a text of a user must not become.
    """

    text: str
    id: int
    special: bool


@dataclass(frozen=True)
class Located:
    """The ids of a text, and where their characters are.

    Shapes: ids (n,) uint32; starts and ends (n,) int64, in characters.
    """

    ids: NDArray[np.uint32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


@dataclass(frozen=True)
class ChatTokens:
    """See the module.

    Attributes:
        added: the added tokens.
        num_bytes: of the text of each token, (vocab_size,) int64; 0 if it is not known.
        cuts: the added tokens at which a text may be cut, its parts encoded on their own; None if it must be encoded
            as a whole, by `locate`.
        needs_nfc: whether only texts in normal form C may be cut.
        locate: returns the ids of a text in which added tokens are found, except in its parts [start, end).
    """

    added: Sequence[AddedToken]
    num_bytes: NDArray[np.int64]
    cuts: Sequence[AddedToken] | None
    needs_nfc: bool
    locate: Callable[[str, Sequence[tuple[int, int]]], Located] | None


def num_bytes(
    ids: Collection[int], lengths: Iterable[int], added: Sequence[AddedToken], vocab_size: int
) -> NDArray[np.int64]:
    """Return the bytes of the text of each token, see ChatTokens.

    Args:
        ids: of ordinary tokens.
        lengths: of the same, in bytes.
        added: the added tokens.
        vocab_size: above every id.
    """
    result = np.zeros(vocab_size, np.int64)
    result[np.fromiter(ids, np.int64, len(ids))] = np.fromiter(lengths, np.int64, len(ids))
    for token in added:
        result[token.id] = len(token.text.encode())
    return result
