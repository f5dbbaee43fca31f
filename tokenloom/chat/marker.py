"""Puts marks around the strings of a conversation.

They stand inside the white space of a string, so that a template may trim it. A string is cut at the tokens that
templates look for, such as <think>, and these stay outside, so that a template may still find them or split there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from tokenloom.chat.marks import (
    NO_MESSAGE,
    NO_SPANS,
    Call,
    Marked,
    MarkedDict,
    MarkedFloat,
    MarkedInt,
    MarkedList,
    MarkedValue,
    Marks,
    Piece,
    TooFewMarks,
)
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

_CLASS_OF_ROLE = {"system": SYSTEM, "developer": DEVELOPER, "user": USER, "assistant": ASSISTANT, "tool": TOOL_OUTPUT}
# Ranges of private-use characters: those of three planes, then parts for texts that have some of each plane.
_PLANES = [(0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)]
_PRIVATE = _PLANES + [(first, first + 0xFFF) for _, last in _PLANES[1:] for first in range(last - 0xFFFD, last, 0x1000)]
_THINK = re.compile("</?think>")


class Marker:
    """Marks conversations.

    Args:
        special: spellings of tokens that must be text in a message.
        found: spellings of tokens that are found in messages too.
    """

    def __init__(self, special: Sequence[str], found: Sequence[str]) -> None:
        self.special = set(special)
        self.spellings = any_of(special)
        self.cuts = any_of([*special, *found, "<think>", "</think>"])

    def mark(self, conversation: dict[str, Any], text: str) -> Marked:
        """Return a conversation with marks.

        Args:
            conversation: a normalized one.
            text: as it is rendered, in which no mark may occur.

        Raises BadConversation if there are fewer private-use characters than it has strings.
        """
        too_few = 0
        for first, last in _PRIVATE:
            marks = _marks(first, last)
            if last - first > too_few and not marks.are_in(text):
                try:
                    return _Marking(self, marks).marked(conversation)
                except TooFewMarks:
                    too_few = last - first
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

    def __init__(self, marker: Marker, marks: Marks) -> None:
        self._marker, self._marks = marker, marks
        self._pieces: list[Piece] = []
        self._calls: list[Call] = []
        self._message, self._flags = NO_MESSAGE, MAY_LEARN

    def marked(self, conversation: dict[str, Any]) -> Marked:
        """Return the conversation with marks."""
        messages = []
        for self._message, message in enumerate(conversation["messages"]):
            self._flags = 0 if message.get("train") is False else MAY_LEARN
            kind = _CLASS_OF_ROLE[message["role"]]
            messages.append({name: self._field(kind, name, value) for name, value in message.items()})
        self._message, self._flags = NO_MESSAGE, MAY_LEARN
        tools = self._spelled(conversation.get("tools"))
        return Marked(messages, tools, self._pieces, self._marks, self._calls)

    def _field(self, kind: int, name: str, value: Any) -> Any:
        if name == "role":
            return value
        if name == "content":
            return self._assistant(value) if kind == ASSISTANT else self._text(value, kind)
        if name == "reasoning_content":
            return self._text(value, REASONING)
        if name == "tool_calls":
            return [self._call(call) for call in value]
        return self._spelled(value, kind)

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        begin, name, first = len(self._pieces), self._text(function["name"], TOOL_CALL), len(self._pieces)
        marked = {**function, "name": name, "arguments": self._value(function["arguments"])}
        self._calls.append(Call(self._message, function["name"], range(begin, first), range(first, len(self._pieces))))
        return {name: marked if name == "function" else self._spelled(value, TOOL_CALL) for name, value in call.items()}

    def _value(self, value: Any) -> Any:
        """Return an argument of a call with marks around its strings and its JSON."""
        if isinstance(value, str):
            return self._text(value, TOOL_CALL)
        if not isinstance(value, dict | list | int | float) or isinstance(value, bool):
            return value
        mark = self._open(TOOL_CALL)  # before those in it
        marked: MarkedValue
        if isinstance(value, dict):
            marked = MarkedDict({key: self._value(item) for key, item in value.items()})
        elif isinstance(value, list):
            marked = MarkedList(map(self._value, value))
        else:
            marked = MarkedInt(value) if isinstance(value, int) else MarkedFloat(value)
        marked.tokenloom_value, marked.tokenloom_mark, marked.tokenloom_closing = value, mark, self._marks.closing
        return marked

    def _assistant(self, text: str) -> str:
        """Return what an assistant wrote, with marks; text between think tags is reasoning."""
        if "think>" not in text:
            return self._text(text, ASSISTANT)
        tags = list(_THINK.finditer(text))
        kind = REASONING if tags and tags[0][0] == "</think>" else ASSISTANT
        parts, end = [], 0
        for tag in tags:
            parts += [self._text(text[end : tag.start()], kind), self._token(tag[0], TEMPLATE)]
            kind, end = REASONING if tag[0] == "<think>" else ASSISTANT, tag.end()
        return "".join([*parts, self._text(text[end:], kind)])

    def _text(self, text: str, kind: int) -> str:
        """Return a string with marks around its pieces."""
        if self._marker.cuts.search(text) is None:
            return self._piece(text, kind)
        parts, end = [], 0
        for match in self._marker.cuts.finditer(text):
            parts += [self._piece(text[end : match.start()], kind), self._token(match[0], kind)]
            end = match.end()
        return "".join([*parts, self._piece(text[end:], kind)])

    def _token(self, token: str, kind: int) -> str:
        """Return a token at which strings are cut: with marks if it is special, since it must be text there."""
        return self._piece(token, kind, is_spelling=True) if token in self._marker.special else token

    def _spelled(self, value: Any, kind: int = TEMPLATE) -> Any:
        """Return a value with marks only around the spellings of special tokens in its strings."""
        if isinstance(value, str):
            return self._marker.spellings.sub(lambda match: self._piece(match[0], kind, is_spelling=True), value)
        if isinstance(value, dict):
            return {key: self._spelled(item, kind) for key, item in value.items()}
        return [self._spelled(item, kind) for item in value] if isinstance(value, list) else value

    def _piece(self, text: str, kind: int, *, is_spelling: bool = False) -> str:
        """Return a text with marks inside its white space."""
        core = text.strip()
        if not core:
            return text
        marked = f"{self._open(kind, is_spelling)}{core}{self._marks.closing}"
        if len(core) == len(text):
            return marked
        start = text.index(core[0])
        return f"{text[:start]}{marked}{text[start + len(core) :]}"

    def _open(self, kind: int, is_spelling: bool = False) -> str:
        self._pieces.append(Piece(self._message, kind | self._flags, is_spelling))
        return self._marks.opening(len(self._pieces) - 1)
