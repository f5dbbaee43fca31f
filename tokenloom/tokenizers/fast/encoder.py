"""What a fast library encodes with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import StoreError, named_message_of
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
def failing_as(make: Callable[[str], Exception], what: str) -> Iterator[None]:
    """Translate whatever a fast library raises in the block to what `make` makes of a message that begins with `what`.

    A panic of native code is a BaseException, as are KeyboardInterrupt and SystemExit, which stay as they are.
    """
    try:
        yield
    except (Unproven, MemoryError, StoreError):  # the last two are of the machine, not of the library
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise make(f"{what} ({named_message_of(error)})") from error
