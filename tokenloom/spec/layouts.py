"""What a spec may say of where conversations are; apart from the spec, so that workers need not import pydantic."""

from __future__ import annotations

LAYOUTS = ("messages", "sharegpt", "alpaca", "prompt_completion")  # chat/layouts.py reads them
WHOLE_ROW = "."  # the `text` or `messages` of a source whose rows are texts or conversations themselves
