"""The steps of a build, in their order: plan, tokenize, assign, shuffle, check, validate, publish.

Worker processes load the steps once, before the first job: see preload_build.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def import_steps() -> None:
    """Import the steps that run in worker processes."""
    from tokenloom.tasks.building import check, shuffle, tokenization  # noqa: F401


def preload_build(definition: Mapping[str, Any]) -> None:
    """Import the steps, and load the tokenizer.

    Args:
        definition: of the tokenizer, as in a spec.
    """
    import_steps()
    from tokenloom.tasks.building.documents import preload_encoder

    preload_encoder(definition)
