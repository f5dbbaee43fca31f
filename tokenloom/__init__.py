"""tokenloom: raw text to versioned, checksummed, globally shuffled token shards, and back into training.

The names below are loaded when first used, so that `import tokenloom` costs nothing and TokenDataset needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenloom.errors import TokenloomError
    from tokenloom.reader.batch import context_shard, document_mask, segments
    from tokenloom.reader.dataset import TokenDataset
    from tokenloom.reader.loader import EvaluationPass, TokenLoader
    from tokenloom.reader.mixture import Mixture

__all__ = [
    "EvaluationPass",
    "Mixture",
    "TokenDataset",
    "TokenLoader",
    "TokenloomError",
    "context_shard",
    "document_mask",
    "segments",
]

_HOMES = {
    "EvaluationPass": "tokenloom.reader.loader",
    "Mixture": "tokenloom.reader.mixture",
    "TokenDataset": "tokenloom.reader.dataset",
    "TokenLoader": "tokenloom.reader.loader",
    "TokenloomError": "tokenloom.errors",
    "context_shard": "tokenloom.reader.batch",
    "document_mask": "tokenloom.reader.batch",
    "segments": "tokenloom.reader.batch",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("tokenloom")
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenloom' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(f"tokenloom.{name} makes tensors: pip install torch", name="torch") from error


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
