"""Private marks around the strings of a conversation, which show where its template writes them.

A mark is one private-use character: one that opens piece k, and one that closes the innermost piece. They stand inside
the white space of a string, so that a template may trim it. A string is cut at the tokens that templates look for, such
as <think>, and these stay outside, so that a template may still find them or split there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tokenloom.errors import BadConversation
from tokenloom.storage.formats.classes import (
    ASSISTANT,
    DEVELOPER,
    MAY_LEARN,
    REASONING,
    ROLE_BITS,
    SYSTEM,
    TEMPLATE,
    TOOL_CALL,
    TOOL_OUTPUT,
    USER,
)

NO_SPANS = "no_spans"  # the reason of a row whose spans are not certain
CLASS_OF_ROLE = {
    "system": SYSTEM,
    "developer": DEVELOPER,
    "user": USER,
    "assistant": ASSISTANT,
    "tool": TOOL_OUTPUT,
}
Span = tuple[int, int]  # [start, end) in characters
OF_ASSISTANT = (ASSISTANT, REASONING, TOOL_CALL)
# Ranges of private-use characters: those of three planes, then parts for texts that have some of each plane.
_PLANES = [(0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)]
_PRIVATE = _PLANES + [(first, first + 0xFFF) for _, last in _PLANES[1:] for first in range(last - 0xFFFD, last, 0x1000)]
_THINK = re.compile("</?think>")
NO_MESSAGE = -1


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
    """A call of a function whose name has no marks: its message, its name, and the indices of its arguments' pieces."""

    message: int
    name: str
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
        return self.piece.kind & ROLE_BITS in OF_ASSISTANT and not self.piece.is_block


def unclear(why: str) -> BadConversation:
    """Return the error of a row whose spans are not certain."""
    return BadConversation(
        f"the spans of its messages in the rendered text are not certain: {why}; leave it out, or give a chat.template "
        "with {% generation %}",
        NO_SPANS,
    )


class _TooFew(Exception):
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
        """Return the mark that opens a piece."""
        if piece > self._limit:
            raise _TooFew
        return self._opening + chr(self._first_piece + piece)

    def around_json(self, value: Any, text: str) -> str:
        """Return JSON with marks around it if it is that of a value with a mark."""
        return f"{value.tokenloom_mark}{text}{self.closing}" if isinstance(value, MarkedDict | MarkedList) else text

    def read(self, text: str, pieces: Sequence[Piece]) -> tuple[str, list[Place]]:
        """Return a text without its marks, and where the pieces are in it, in the order of their starts.

        A piece that holds others comes before them. Raises BadConversation if the marks are not balanced.
        """
        first, *rest = text.split(self._opening)
        parts, places, begun = [first], list[Place](), list[Place]()
        position = len(first)
        if self.closing in first:
            raise unclear("the template cuts its strings")
        for part in rest:
            index = ord(part[:1] or "\0") - self._first_piece
            if not 0 <= index < len(pieces):
                raise unclear("the template cuts its strings")
            begun.append(Place(position, 0, index, pieces[index]))
            places.append(begun[-1])
            within, *after = part[1:].split(self.closing)
            parts.append(within)
            position += len(within)
            for other in after:
                if not begun:
                    raise unclear("the template cuts its strings")
                begun.pop().end = position
                parts.append(other)
                position += len(other)
        if begun:
            raise unclear("the template cuts its strings")
        return "".join(parts), places


class MarkedDict(dict[str, Any]):
    """An object whose JSON is a piece."""

    tokenloom_mark = ""  # a template looks for attributes before keys


class MarkedList(list[Any]):
    """An array whose JSON is a piece."""

    tokenloom_mark = ""  # a template looks for attributes before keys


@dataclass(frozen=True)
class Marked:
    """A conversation with marks in its strings; `nameless` are the calls whose names have none."""

    messages: list[dict[str, Any]]
    tools: Any
    pieces: list[Piece]
    marks: Marks
    nameless: list[Call]

    def around_block(self, text: str, message: int) -> str:
        """Return the text of a block `generation` with marks around it."""
        self.pieces.append(Piece(message, ASSISTANT, is_block=True))
        return f"{self.marks.opening(len(self.pieces) - 1)}{text}{self.marks.closing}"


class Marker:
    """Marks conversations.

    Args:
        special: spellings of tokens that must be text in a message.
        found: spellings of tokens that are found in messages too.
    """

    def __init__(self, special: Sequence[str], found: Sequence[str]) -> None:
        self._special = set(special)
        self._spellings = any_of(special)
        self._cuts = any_of([*special, *found, "<think>", "</think>"])

    def mark(self, conversation: dict[str, Any], text: str, *, mark_names: bool = True) -> Marked:
        """Return a conversation with marks.

        Args:
            conversation: a normalized one.
            text: as it is rendered, in which no mark may occur.
            mark_names: whether names of functions get marks; a template may compare or repeat them.

        Raises BadConversation if there are fewer private-use characters than it has strings.
        """
        for first, last in _PRIVATE:
            marks = _marks(first, last)
            if not marks.are_in(text):
                with suppress(_TooFew):
                    return _Marking(self._special, self._spellings, self._cuts, marks, mark_names).marked(conversation)
        raise BadConversation(
            "it has more strings than there are private-use characters that it does not have itself, so nobody can "
            "tell what the template makes of each; leave it out",
            NO_SPANS,
        )


def any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of any of some texts, the longest first."""
    return re.compile("|".join(map(re.escape, sorted(set(tokens), key=len, reverse=True))) or "(?!)")


@lru_cache
def _marks(first: int, last: int) -> Marks:
    return Marks(first, last)


class _Marking:
    """Marks one conversation."""

    def __init__(
        self, special: set[str], spellings: re.Pattern[str], cuts: re.Pattern[str], marks: Marks, mark_names: bool
    ) -> None:
        self._special, self._spellings, self._cuts = special, spellings, cuts
        self._marks, self._mark_names = marks, mark_names
        self._pieces: list[Piece] = []
        self._nameless: list[Call] = []
        self._message, self._flags = NO_MESSAGE, MAY_LEARN

    def marked(self, conversation: dict[str, Any]) -> Marked:
        """Return the conversation with marks."""
        messages = []
        for self._message, message in enumerate(conversation["messages"]):
            self._flags = 0 if message.get("train") is False else MAY_LEARN
            messages.append({name: self._field(message, name) for name in message})
        self._message, self._flags = NO_MESSAGE, MAY_LEARN
        tools = self._spelled(conversation.get("tools"))
        return Marked(messages, tools, self._pieces, self._marks, self._nameless)

    def _field(self, message: dict[str, Any], name: str) -> Any:
        value = message[name]
        if name == "content":
            if message["role"] == "assistant":
                return self._assistant(value)
            return self._text(value, CLASS_OF_ROLE[message["role"]])
        if name == "reasoning_content":
            return self._text(value, REASONING)
        if name == "tool_calls":
            return [self._call(call) for call in value]
        return value if name == "role" else self._spelled(value, CLASS_OF_ROLE[message["role"]])

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        mark_name = self._text if self._mark_names else self._spelled
        name, first = mark_name(function["name"], TOOL_CALL), len(self._pieces)
        marked = {**function, "name": name, "arguments": self._value(function["arguments"])}
        if not self._mark_names:
            self._nameless.append(Call(self._message, function["name"], range(first, len(self._pieces))))
        return {name: marked if name == "function" else self._spelled(value, TOOL_CALL) for name, value in call.items()}

    def _value(self, value: Any) -> Any:
        """Return an argument of a call with marks around its strings and its JSON."""
        if isinstance(value, str):
            return self._text(value, TOOL_CALL)
        if not isinstance(value, dict | list):
            return value
        mark = self._open(TOOL_CALL)
        if isinstance(value, dict):
            marked_dict = MarkedDict({key: self._value(item) for key, item in value.items()})
            marked_dict.tokenloom_mark = mark
            return marked_dict
        marked_list = MarkedList(map(self._value, value))
        marked_list.tokenloom_mark = mark
        return marked_list

    def _assistant(self, text: str) -> str:
        """Return what an assistant wrote, with marks; text between think tags is reasoning."""
        tags = _THINK.findall(text)
        if not tags:
            return self._text(text, ASSISTANT)
        kind = REASONING if tags[0] == "</think>" else ASSISTANT
        parts, end = [], 0
        for match in _THINK.finditer(text):
            parts += [self._text(text[end : match.start()], kind), self._tag(match[0])]
            kind, end = REASONING if match[0] == "<think>" else ASSISTANT, match.end()
        return "".join([*parts, self._text(text[end:], kind)])

    def _tag(self, tag: str) -> str:
        """Return a think tag: a special token is text."""
        return f"{self._open(TEMPLATE, is_spelling=True)}{tag}{self._marks.closing}" if tag in self._special else tag

    def _text(self, text: str, kind: int) -> str:
        """Return a string with marks around its pieces."""
        if self._cuts.search(text) is None:
            marked = self._piece(text, kind)
        else:
            parts, end = [], 0
            for match in self._cuts.finditer(text):
                token = match[0]
                parts.append(self._piece(text[end : match.start()], kind))
                parts.append(self._piece(token, kind, is_spelling=True) if token in self._special else token)
                end = match.end()
            marked = "".join([*parts, self._piece(text[end:], kind)])
        return marked

    def _spelled(self, value: Any, kind: int = TEMPLATE) -> Any:
        """Return a value with marks only around the spellings of special tokens in its strings."""
        if isinstance(value, str):
            return self._spellings.sub(lambda match: self._piece(match[0], kind, is_spelling=True), value)
        if isinstance(value, dict):
            return {key: self._spelled(item, kind) for key, item in value.items()}
        return [self._spelled(item, kind) for item in value] if isinstance(value, list) else value

    def _piece(self, text: str, kind: int, *, is_spelling: bool = False) -> str:
        """Return a text with marks inside its white space."""
        core = text.strip()
        if not core:
            return text
        start = text.index(core[0])
        end = start + len(core)
        return f"{text[:start]}{self._open(kind, is_spelling=is_spelling)}{core}{self._marks.closing}{text[end:]}"

    def _open(self, kind: int, *, is_spelling: bool = False) -> str:
        self._pieces.append(Piece(self._message, kind | self._flags, is_spelling))
        return self._marks.opening(len(self._pieces) - 1)
