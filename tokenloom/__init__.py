"""tokenloom: raw text to versioned, checksummed, globally shuffled token shards, and back into training.

The names below are loaded when first used, so that `import tokenloom` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenloom.errors import TokenloomError
    from tokenloom.reader import TokenDataset

__all__ = ["TokenDataset", "TokenloomError"]

__version__ = "0.1.0"

_HOMES = {"TokenDataset": "tokenloom.reader", "TokenloomError": "tokenloom.errors"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenloom' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
