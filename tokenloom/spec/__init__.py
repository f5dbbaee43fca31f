"""The spec of a build: the options of a YAML file or a form, validated."""

from __future__ import annotations

from tokenloom.spec.build_spec import BuildSpec

__all__ = ["BuildSpec"]
