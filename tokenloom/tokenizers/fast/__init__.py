"""Fast encoders: gigatoken gives the ids of a tokenizer's reference library in a fraction of its time.

No encoder is used without proof. It is *unproven* for a tokenizer with a part that `parts` does not list, and until
`probe` has compared it with the reference library for the vocabulary; `proofs` has the results. `tokenizer` compares a
sample in every build, which ends after a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokenloom.errors import StoreError, named_message_of


class Unproven(Exception):
    """No fast encoder is known to give the ids of a tokenizer; the message says why, as a clause."""


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
