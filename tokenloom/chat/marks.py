"""Private marks around the strings of a conversation, which show where its template writes them.

Two private-use characters open a piece: one that opens any, and one for its number. A third closes the innermost piece.
marker.py puts them into conversations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import BadConversation
from tokenloom.storage.formats.classes import ASSISTANT, REASONING, ROLE_BITS, TOOL_CALL

NO_SPANS = "no_spans"  # the reason of a row whose spans are not certain
Span = tuple[int, int]  # [start, end) in characters
OF_ASSISTANT = (ASSISTANT, REASONING, TOOL_CALL)
_IS_OF_ASSISTANT = [kind & ROLE_BITS in OF_ASSISTANT for kind in range(256)]
NO_MESSAGE = -1
_ESCAPED = re.compile(r"\\(?:u([0-9a-f]{4})|.)")  # in JSON


@dataclass(slots=True)
class Piece:
    """A part of a string of a conversation, or a block `generation` of its template.

    Attributes:
        message: the index of its message; -1 for a tool's description, or if it is not known.
        kind: its class, see storage.formats.classes.
        is_spelling: whether it is the spelling of a special token, which must be text.
        is_block: whether it is a block.
    """

    message: int
    kind: int
    is_spelling: bool = False
    is_block: bool = False


@dataclass(frozen=True)
class Call:
    """A call of a function: its message, its name, and the indices of the pieces of its name and of its arguments."""

    message: int
    name: str
    name_pieces: range
    pieces: range


@dataclass(slots=True)
class Place:
    """Where a piece is in a text, [start, end) in characters; `index` numbers the pieces of a conversation."""

    start: int
    end: int
    index: int
    piece: Piece

    @property
    def is_of_assistant(self) -> bool:
        """Whether it is of what the assistant wrote."""
        return _IS_OF_ASSISTANT[self.piece.kind] and not self.piece.is_block


def unclear(why: str) -> BadConversation:
    """Return the error of a row whose spans are not certain."""
    return BadConversation(
        f"the spans of its messages in the rendered text are not certain: {why}; leave it out, or give a chat.template "
        "with {% generation %}",
        NO_SPANS,
    )


class TooFewMarks(Exception):
    """There are more strings than marks."""


class Marks:
    """The private-use characters that mark the pieces of one conversation: one that opens, its number, one that closes.

    Args:
        first: the code point of the first.
        last: that of the last.
    """

    def __init__(self, first: int, last: int) -> None:
        self._opening, self.closing, self._first_piece = chr(first), chr(first + 1), first + 2
        self._limit = last - self._first_piece
        self._pattern = re.compile(f"[{chr(first)}-{chr(last)}]")

    def are_in(self, text: str) -> bool:
        """Return whether a text has one of the characters."""
        return not text.isascii() and self._pattern.search(text) is not None

    def opening(self, piece: int) -> str:
        """Return the mark that opens a piece; raises TooFewMarks if there is none for its number."""
        if piece > self._limit:
            raise TooFewMarks
        return self._opening + chr(self._first_piece + piece)

    def around_json(self, value: Any, text: str) -> str:
        """Return JSON with marks around it if it is that of a value with a mark, and with none that JSON escaped."""
        text = _ESCAPED.sub(self._unescaped, text) if "\\u" in text else text
        return f"{value.tokenloom_mark}{text}{self.closing}" if isinstance(value, MarkedValue) else text

    def _unescaped(self, match: re.Match[str]) -> str:
        """Return what an escape in JSON spells if it is one of the characters, else the escape."""
        spelled = chr(int(match[1], 16)) if match[1] else ""
        return spelled if self._pattern.match(spelled) else match[0]

    def read(self, text: str, pieces: Sequence[Piece]) -> tuple[str, list[Place]]:
        """Return a text without its marks, and where the pieces are in it, in the order of their starts.

        A piece that holds others comes before them. Raises BadConversation if the marks are not balanced.
        """
        first, *rest = text.split(self._opening)
        parts, places, begun = [first], list[Place](), list[Place]()
        position = len(first)
        is_cut = self.closing in first
        for part in rest:
            within, *after = part.split(self.closing)
            index = ord(within[0]) - self._first_piece if within else -1
            if not 0 <= index < len(pieces):
                raise _cut()
            end = position + len(within) - 1
            place = Place(position, end, index, pieces[index])
            position = end
            places.append(place)
            parts.append(within[1:])
            if len(after) == 1:  # it holds no other
                parts.append(after[0])
                position += len(after[0])
                continue
            begun.append(place)
            for other in after:
                if not begun:
                    raise _cut()
                begun.pop().end = position
                parts.append(other)
                position += len(other)
        if is_cut or begun:
            raise _cut()
        return "".join(parts), places


def _cut() -> BadConversation:
    return unclear("the template cuts its strings")


class MarkedValue:
    """A value that is a piece where it is written; the JSON of an object or an array is one too."""

    tokenloom_mark = tokenloom_closing = ""  # a template looks for attributes before keys
    tokenloom_value: Any = None

    def __str__(self) -> str:
        return f"{self.tokenloom_mark}{self.tokenloom_value!r}{self.tokenloom_closing}"


class MarkedDict(MarkedValue, dict[str, Any]):
    """An object in the arguments of a call."""


class MarkedList(MarkedValue, list[Any]):
    """An array there."""


class MarkedInt(MarkedValue, int):
    """An integer there."""


class MarkedFloat(MarkedValue, float):
    """A number there."""


@dataclass(frozen=True)
class Marked:
    """A conversation with marks in its strings."""

    messages: list[dict[str, Any]]
    tools: Any
    pieces: list[Piece]
    marks: Marks
    calls: list[Call]

    def around_block(self, text: str, message: int) -> str:
        """Return the text of a block `generation` with marks around it."""
        self.pieces.append(Piece(message, ASSISTANT, is_block=True))
        return f"{self.marks.opening(len(self.pieces) - 1)}{text}{self.marks.closing}"
