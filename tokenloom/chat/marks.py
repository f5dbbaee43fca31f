"""Private marks around the strings of a conversation, which show where its template writes them.

Three private-use characters open a piece: one that opens any, and two for its number. A fourth closes the innermost
piece.
Marks stand inside the white space of a string, so that a template may trim it. A string is cut at the tokens that
templates look for, such as <think>, and these stay outside, so that a template may still find them or split there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
Span = tuple[int, int]  # [start, end) in characters
OF_ASSISTANT = (ASSISTANT, REASONING, TOOL_CALL)
_IS_OF_ASSISTANT = [kind & ROLE_BITS in OF_ASSISTANT for kind in range(256)]
NO_MESSAGE = NO_CALL = -1
_CLASS_OF_ROLE = {"system": SYSTEM, "developer": DEVELOPER, "user": USER, "assistant": ASSISTANT, "tool": TOOL_OUTPUT}
_NUM_MARKS = 0x1000  # private-use characters that a conversation is marked with
_NUM_DIGITS = _NUM_MARKS - 2  # those that stand for digits of a number
_PRIVATE = [
    0xE000,
    *range(0xF0000, 0xFF000, _NUM_MARKS),
    *range(0x100000, 0x10F000, _NUM_MARKS),
]  # the first of each range
_THINK = re.compile("</?think>")
_ESCAPED = re.compile(r"\\(?:u([0-9a-f]{4})|.)")  # in JSON


@dataclass(slots=True)
class Piece:
    """A part of a string of a conversation, or a block `generation` of its template.

    Attributes:
        message: the index of its message; -1 for a tool's description, or if it is not known.
        kind: its class, see storage.formats.classes.
        call: the number of the call of a function whose name or arguments it is of; -1 for none.
        is_name: whether it is of that name, and not a spelling.
        is_spelling: whether it is the spelling of a special token, which must be text.
        is_block: whether it is a block.
    """

    message: int
    kind: int
    call: int = NO_CALL
    is_name: bool = False
    is_spelling: bool = False
    is_block: bool = False


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
    problem = f"the spans of its messages in the rendered text are not certain: {why}"
    return BadConversation(f"{problem}; leave it out, or give a chat.template with {{% generation %}}", NO_SPANS)


class MarkedValue:
    """A value that is a piece where it is written; the JSON of an object or an array is one too."""

    tokenloom_mark = tokenloom_closing = ""  # a template looks for attributes before keys
    tokenloom_value: Any = None

    def __str__(self) -> str:
        return f"{self.tokenloom_mark}{self.tokenloom_value!r}{self.tokenloom_closing}"


# A class for each kind of value in JSON: an object, an array, a number.
_MARKED = {kind: type(f"Marked_{kind.__name__}", (MarkedValue, kind), {}) for kind in (dict, list, int, float)}


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

        Raises BadConversation if it has private-use characters of every range.
        """
        for first in _PRIVATE:
            if text.isascii() or not _marks_from(first).search(text):
                return Marked(conversation, self, first)
        raise unclear("it has private-use characters of every range")


def any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of any of some texts, the longest first."""
    return re.compile("|".join(map(re.escape, sorted(set(tokens), key=len, reverse=True))) or "(?!)")


@lru_cache
def _marks_from(first: int) -> re.Pattern[str]:
    return re.compile(f"[{chr(first)}-{chr(first + _NUM_MARKS - 1)}]")


class Marked:
    """A conversation with marks in its strings.

    Attributes:
        messages: with marks.
        tools: with marks around the spellings of special tokens.
        pieces: all that is marked, by their numbers.

    Args:
        conversation: a normalized one.
        marker: finds the spellings at which strings are cut.
        first: the code point of the first private-use character to use; it opens, the next closes a piece.
    """

    def __init__(self, conversation: dict[str, Any], marker: Marker, first: int) -> None:
        self._marker, self._pattern = marker, _marks_from(first)
        self._opening, self._closing, self._first_digit = chr(first), chr(first + 1), first + 2
        self.pieces: list[Piece] = []
        self._call, self._num_calls, self._is_name = NO_CALL, 0, False
        self.messages = []
        for self._message, message in enumerate(conversation["messages"]):
            self._flags = 0 if message.get("train") is False else MAY_LEARN
            kind = _CLASS_OF_ROLE[message["role"]]
            self.messages.append({name: self._field(kind, name, value) for name, value in message.items()})
        self._message, self._flags = NO_MESSAGE, MAY_LEARN
        self.tools = self._spelled(conversation.get("tools"))

    def around_block(self, text: str, message: int) -> str:
        """Return the text of a block `generation` with marks around it."""
        return f"{self._opened(Piece(message, ASSISTANT, is_block=True))}{text}{self._closing}"

    def around_json(self, value: Any, text: str) -> str:
        """Return JSON with marks around it if it is that of a value with a mark, and with none that JSON escaped."""
        text = _ESCAPED.sub(self._unescaped, text) if "\\u" in text else text
        return f"{value.tokenloom_mark}{text}{self._closing}" if isinstance(value, MarkedValue) else text

    def _unescaped(self, match: re.Match[str]) -> str:
        """Return the character of an escape in JSON if it is a mark, else the escape."""
        spelled = chr(int(match[1], 16)) if match[1] else ""
        return spelled if self._pattern.match(spelled) else match[0]

    def read(self, text: str) -> tuple[str, list[Place]]:
        """Return a text without its marks, and where the pieces are in it, in the order of their starts.

        A piece that holds others comes before them. Raises BadConversation if the marks are not balanced.
        """
        first, *rest = text.split(self._opening)
        parts, places, begun = [first], list[Place](), list[Place]()
        position = len(first)
        is_cut = self._closing in first
        for part in rest:
            within, *after = part.split(self._closing)
            high, low = (ord(digit) - self._first_digit for digit in within[:2]) if len(within) > 1 else (-1, -1)
            index = high * _NUM_DIGITS + low
            if not 0 <= index < len(self.pieces):
                raise _cut()
            end = position + len(within) - 2
            place = Place(position, end, index, self.pieces[index])
            position = end
            places.append(place)
            parts.append(within[2:])
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

    def _field(self, kind: int, name: str, value: Any) -> Any:
        if name in ("content", "reasoning_content"):
            return self._text(value, kind if name == "content" else REASONING)
        if name == "tool_calls":
            return [self._marked_call(call) for call in value]
        return value if name == "role" else self._spelled(value, kind)

    def _marked_call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        self._call, self._num_calls, self._is_name = self._num_calls, self._num_calls + 1, True
        marked = {**function, "name": self._text(function["name"], TOOL_CALL)}
        self._is_name = False
        marked["arguments"] = self._value(function["arguments"])
        self._call = NO_CALL
        return {name: marked if name == "function" else self._spelled(value, TOOL_CALL) for name, value in call.items()}

    def _value(self, value: Any) -> Any:
        """Return an argument of a call with marks around its strings and its JSON."""
        if isinstance(value, str):
            return self._text(value, TOOL_CALL)
        if type(value) not in _MARKED:
            return value
        mark = self._open(TOOL_CALL)  # before those in it
        inner = value
        if isinstance(value, dict):
            inner = {key: self._value(item) for key, item in value.items()}
        elif isinstance(value, list):
            inner = list(map(self._value, value))
        marked: Any = _MARKED[type(value)](inner)
        marked.tokenloom_value, marked.tokenloom_mark, marked.tokenloom_closing = value, mark, self._closing
        return marked

    def _text(self, text: str, kind: int) -> str:
        """Return a string with marks around its pieces; text between think tags of the assistant is reasoning."""
        first_tag = _THINK.search(text) if kind == ASSISTANT else None
        if first_tag and first_tag[0] == "</think>":
            kind = REASONING
        parts, end = [], 0
        for match in self._marker.cuts.finditer(text):
            parts.append(self._piece(text[end : match.start()], kind))
            token, end, is_tag = match[0], match.end(), first_tag and _THINK.fullmatch(match[0])
            if is_tag:
                kind = REASONING if token == "<think>" else ASSISTANT
            is_special = token in self._marker.special  # it must be text there
            parts.append(self._piece(token, TEMPLATE if is_tag else kind, is_spelling=True) if is_special else token)
        return "".join([*parts, self._piece(text[end:], kind)])

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
        marked = f"{self._open(kind, is_spelling)}{core}{self._closing}"
        if len(core) == len(text):
            return marked
        start = text.index(core[0])
        return f"{text[:start]}{marked}{text[start + len(core) :]}"

    def _open(self, kind: int, is_spelling: bool = False) -> str:
        is_name = self._is_name and not is_spelling
        return self._opened(Piece(self._message, kind | self._flags, self._call, is_name, is_spelling))

    def _opened(self, piece: Piece) -> str:
        """Return the mark that opens a piece."""
        high, low = divmod(len(self.pieces), _NUM_DIGITS)
        self.pieces.append(piece)
        return f"{self._opening}{chr(self._first_digit + high)}{chr(self._first_digit + low)}"


def _cut() -> BadConversation:
    return unclear("the template cuts its strings")
