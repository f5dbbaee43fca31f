"""What the worker processes of a build need before their first job, loaded once for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def import_steps() -> None:
    """Import the steps that run in worker processes."""
    from tokenloom.tasks.encoding import tokenization  # noqa: F401
    from tokenloom.tasks.shuffling import shuffle  # noqa: F401
    from tokenloom.tasks.verification import sample  # noqa: F401


def preload_build(definition: Mapping[str, Any]) -> None:
    """Import the steps, and load the tokenizer.

    Args:
        definition: of the tokenizer, as in a spec.
    """
    import_steps()
    from tokenloom.tasks.encoding.encoders import preload_encoder

    preload_encoder(definition)
