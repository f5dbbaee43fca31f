"""Reading a published version in training."""

from __future__ import annotations

from tokenloom.reader.dataset import TokenDataset

__all__ = ["TokenDataset"]
