"""The spec of a build: what a YAML file or a form may say, checked."""

from __future__ import annotations

from tokenloom.spec.build_spec import BuildSpec

__all__ = ["BuildSpec"]
