"""The libraries of fast encoders, the fastest first."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import cast

from tokenloom.errors import named_message_of
from tokenloom.tokenizers.fast.encoder import Library

_MODULES = {"gigatoken": "gigatoken_library", "splintr-rs": "splintr_library"}


@cache
def libraries() -> tuple[list[Library], list[str]]:
    """Return those that can be imported, and for each other one a clause that says why it can't."""
    found, missing = [], []
    for name, module in _MODULES.items():
        try:
            found.append(cast(Library, import_module(f"tokenloom.tokenizers.fast.{module}")))
        except Exception as error:  # noqa: BLE001  (whatever a missing, broken or other version of the package raises)
            missing.append(f"{name} can't be imported ({named_message_of(error)})")
    return found, missing


def library_of(name: str) -> Library:
    """Return the library with a NAME."""
    return next(library for library in libraries()[0] if name == library.NAME)


def is_fastest(library: Library) -> bool:
    """Return whether no other library, installed or not, is faster."""
    return library.NAME.split()[0] == next(iter(_MODULES))
