"""Read a published version in training: docs/project/design.md says what each module does."""

from __future__ import annotations

from tokenloom.reader.dataset import TokenDataset

__all__ = ["TokenDataset"]
