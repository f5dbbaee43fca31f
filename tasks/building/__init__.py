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
    """Import the steps, and load the tokenizer; a model of the hub is left to the plan, which knows its commit.

    Args:
        definition: of the tokenizer, as in a spec.
    """
    import_steps()
    from tokenloom.tokenizers import load_once, pinned_fields

    loaded = definition.get("decode") or definition
    if loaded["kind"] != "huggingface" or not loaded.get("name"):
        load_once({**definition, **pinned_fields(definition)})
