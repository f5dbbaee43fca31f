"""Private marks around the strings of a conversation, which show where its template writes them.

A mark is one private-use character: one that opens piece k, and one that closes the innermost piece. They stand inside
the white space of a string, so that a template may trim it. A string is cut at the tokens that templates look for, such
as <think>, and these stay outside, so that a template may still find them or split there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import BadConversation
from tokenloom.storage.formats.classes import (
    ASSISTANT,
    DEVELOPER,
    MAY_LEARN,
    REASONING,
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
CLOSE, OPEN_GENERATION, CLOSE_GENERATION = -3, -2, -1
_PRIVATE = ((0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))
_THINK = re.compile("</?think>")
_NO_MESSAGE = -1


@dataclass(frozen=True)
class Piece:
    """A part of a string of a conversation.

    Attributes:
        message: the index of its message; -1 for a tool's description.
        string: numbers the strings of a conversation.
        kind: its class, see storage.formats.classes.
        is_spelling: whether it is the spelling of a special token, which must be text.
    """

    message: int
    string: int
    kind: int
    is_spelling: bool


class Marks:
    """The private-use characters that mark the pieces of one conversation.

    Args:
        first: the code point of the first.
        last: that of the last.
    """

    def __init__(self, first: int, last: int) -> None:
        self.close, self._open_generation, self._close_generation = map(chr, (first, first + 1, first + 2))
        self._first_piece = first + 3
        self._limit = last - self._first_piece
        self.pattern = re.compile(f"[{chr(first)}-{chr(last)}]")

    def open(self, piece: int) -> str:
        """Return the mark that opens a piece."""
        if piece > self._limit:
            raise BadConversation(
                f"it has more than {self._limit:,} strings, too many to tell what the template makes of each; leave it "
                "out",
                NO_SPANS,
            )
        return chr(self._first_piece + piece)

    def around_generation(self, text: str) -> str:
        """Return the text of a block `generation` with marks around it."""
        return f"{self._open_generation}{text}{self._close_generation}"

    def around_json(self, value: Any, text: str) -> str:
        """Return JSON with marks around it if it is that of a value with a mark."""
        return f"{value.tokenloom_mark}{text}{self.close}" if isinstance(value, MarkedDict | MarkedList) else text

    def places(self, text: str) -> list[tuple[int, int]]:
        """Return the marks of a text: where each would be without marks, and the piece that it opens.

        Instead of a piece there may be CLOSE, OPEN_GENERATION or CLOSE_GENERATION.
        """
        matches = enumerate(self.pattern.finditer(text))
        return [(match.start() - num_before, ord(match[0]) - self._first_piece) for num_before, match in matches]


class MarkedDict(dict[str, Any]):
    """An object whose JSON is a piece."""

    tokenloom_mark = ""  # a template looks for attributes before keys


class MarkedList(list[Any]):
    """An array whose JSON is a piece."""

    tokenloom_mark = ""  # a template looks for attributes before keys


@dataclass(frozen=True)
class Marked:
    """A conversation with marks in its strings."""

    messages: list[dict[str, Any]]
    tools: Any
    pieces: list[Piece]
    marks: Marks


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
            text: all its strings, in which no mark may occur.
            mark_names: whether names of functions get marks; a template may compare or repeat them.

        Raises BadConversation if no private-use characters are left.
        """
        return _Marking(self._special, self._spellings, self._cuts, _marks_for(text), mark_names).marked(conversation)


def any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern of any of some texts, the longest first."""
    return re.compile("|".join(map(re.escape, sorted(set(tokens), key=len, reverse=True))) or "(?!)")


def _marks_for(text: str) -> Marks:
    for marks in _MARKS:
        if text.isascii() or marks.pattern.search(text) is None:
            return marks
    raise BadConversation("it has private-use characters of all planes; leave it out", NO_SPANS)


_MARKS = [Marks(first, last) for first, last in _PRIVATE]


class _Marking:
    """Marks one conversation."""

    def __init__(
        self, special: set[str], spellings: re.Pattern[str], cuts: re.Pattern[str], marks: Marks, mark_names: bool
    ) -> None:
        self._special, self._spellings, self._cuts = special, spellings, cuts
        self._marks, self._mark_names = marks, mark_names
        self._pieces: list[Piece] = []
        self._message, self._flags, self._string = _NO_MESSAGE, MAY_LEARN, 0

    def marked(self, conversation: dict[str, Any]) -> Marked:
        """Return the conversation with marks."""
        messages = []
        for self._message, message in enumerate(conversation["messages"]):
            self._flags = 0 if message.get("train") is False else MAY_LEARN
            messages.append({name: self._field(message, name) for name in message})
        self._message, self._flags = _NO_MESSAGE, MAY_LEARN
        tools = self._spelled(conversation.get("tools"))
        return Marked(messages, tools, self._pieces, self._marks)

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
        return value if name == "role" else self._spelled(value)

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        mark_name = self._text if self._mark_names else self._spelled
        marked = {
            **function,
            "name": mark_name(function["name"], TOOL_CALL),
            "arguments": self._value(function["arguments"]),
        }
        return {name: marked if name == "function" else self._spelled(value) for name, value in call.items()}

    def _value(self, value: Any) -> Any:
        """Return an argument of a call with marks around its strings and its JSON."""
        if isinstance(value, str):
            return self._text(value, TOOL_CALL)
        if not isinstance(value, dict | list):
            return value
        mark = self._open(TOOL_CALL)
        self._string += 1
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
            parts += [self._text(text[end : match.start()], kind, is_part=True), self._tag(match[0])]
            kind, end = REASONING if match[0] == "<think>" else ASSISTANT, match.end()
        return "".join([*parts, self._text(text[end:], kind)])

    def _tag(self, tag: str) -> str:
        """Return a think tag: a special token is text."""
        return f"{self._open(TEMPLATE, is_spelling=True)}{tag}{self._marks.close}" if tag in self._special else tag

    def _text(self, text: str, kind: int, *, is_part: bool = False) -> str:
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
        self._string += not is_part
        return marked

    def _spelled(self, value: Any, _kind: int = TEMPLATE) -> Any:
        """Return a value with marks only around the spellings of special tokens in its strings."""
        if isinstance(value, str):
            return self._spellings.sub(lambda match: self._piece(match[0], TEMPLATE, is_spelling=True), value)
        if isinstance(value, dict):
            return {key: self._spelled(item) for key, item in value.items()}
        return list(map(self._spelled, value)) if isinstance(value, list) else value

    def _piece(self, text: str, kind: int, *, is_spelling: bool = False) -> str:
        """Return a text with marks inside its white space."""
        core = text.strip()
        if not core:
            return text
        start = text.index(core[0])
        end = start + len(core)
        return f"{text[:start]}{self._open(kind, is_spelling=is_spelling)}{core}{self._marks.close}{text[end:]}"

    def _open(self, kind: int, *, is_spelling: bool = False) -> str:
        self._pieces.append(Piece(self._message, self._string, kind | self._flags, is_spelling))
        return self._marks.open(len(self._pieces) - 1)
