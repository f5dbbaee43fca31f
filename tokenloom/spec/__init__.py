"""The spec of a build: the options of a YAML file or a form, validated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenloom.spec.build_spec import BuildSpec

__all__ = ["BuildSpec"]


def __getattr__(name: str) -> Any:
    """Import BuildSpec when it is first used: workers import this package and must not import pydantic."""
    if name != "BuildSpec":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tokenloom.spec.build_spec import BuildSpec

    return BuildSpec
