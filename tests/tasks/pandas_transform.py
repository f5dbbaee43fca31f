"""A transform whose module imports pandas."""

from __future__ import annotations

import pandas as pd

__all__ = ["identity", "pd"]


def identity(text: str) -> str:
    """Return the text."""
    return text
