"""The parts of a message's content that are learned, as axolotl writes them.

    "train_detail": [{"begin_offset": 0, "end_offset": 4, "train": true}]

Offsets are those of the first and the last character of a part. What is of no part is not learned either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenloom.chat.calls import Message, bad, parsed
from tokenloom.wording import counted


def details_of(place: str, value: Any, content: Any) -> list[Message]:
    """Return the parts of a content, from a list or JSON text; raises BadConversation if one is not of the content."""
    parts = parsed(value, place)
    if not isinstance(parts, list) or not parts or not isinstance(content, str):
        raise bad(
            f"{place} is not a list of parts of a content that is text; repair the row, or put train in its place"
        )
    return [_part(f"{place}[{number}]", part, content) for number, part in enumerate(parts)]


def _part(place: str, part: Any, content: str) -> Message:
    names = ("begin_offset", "end_offset", "train")
    begin, end, train = map(part.get, names) if isinstance(part, Mapping) else (None, None, None)
    if not (type(begin) is type(end) is int and type(train) is bool and 0 <= begin <= end < len(content)):
        raise bad(
            f"{place} is {repr(part)[:80]}; it must have begin_offset and end_offset, those of its first and last "
            f"of the content's {counted(len(content), 'character')}, and train (true or false): repair the row"
        )
    return dict(zip(names, (begin, end, train), strict=True))


def kept_out(content: str, details: list[Message]) -> set[int]:
    """Return the offsets of the characters of a content that are not learned."""
    learned = [range(part["begin_offset"], part["end_offset"] + 1) for part in details if part["train"]]
    return set(range(len(content))).difference(*learned)
