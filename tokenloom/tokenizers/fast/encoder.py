"""What a fast library encodes with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import message_of
from tokenloom.tokenizers.base import Encoded, with_boundary_ids
from tokenloom.tokenizers.fast.known_parts import Unproven


@dataclass(frozen=True)
class FastEncoder:
    """A library that encodes what a tokenizer encodes.

    Attributes:
        library: its name and version.
        encode_texts: returns the ids of each text, (num_ids,) uint32; the texts are UTF-8.
        spellings: texts that it may find where the reference does not; it must not get a text with one.
        bos_ids: the ids before each document.
        eot_id: the id after each document.
    """

    library: str
    encode_texts: Callable[[list[bytes]], Sequence[NDArray[np.uint32]]]
    spellings: list[str]
    bos_ids: list[int]
    eot_id: int

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """Return the ids of each text, see Tokenizer.encode."""
        ids = self.encode_texts(texts.cast(pa.large_binary()).to_pylist())
        return with_boundary_ids(ids, self.bos_ids, self.eot_id, dtype)


@contextmanager
def refusals(library: str) -> Iterator[None]:
    """Translate what a library raises for a vocabulary that it can't take to Unproven."""
    try:
        yield
    except BaseException as error:  # a panic of the native library is not an Exception
        if (
            not isinstance(error, ValueError | OverflowError | RuntimeError)
            and type(error).__name__ != "PanicException"
        ):
            raise
        raise Unproven(f"{library} does not take it: {message_of(error)}") from error
