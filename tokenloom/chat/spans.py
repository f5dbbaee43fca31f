"""What each character of a rendered conversation is, from the marks of a second rendering.

What the assistant writes is the text of `generation` where the template has it. Without it, a turn of the assistant
begins after the generation prompt, or else at its first mark, and ends with its last mark and the stop token. Whatever
is not clear (a piece that appears twice, marks of two messages mixed) is an error, not a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.chat.marks import CLOSE, CLOSE_GENERATION, NO_SPANS, OPEN_GENERATION, Marked, Piece
from tokenloom.errors import BadConversation
from tokenloom.storage.formats.classes import (
    ASSISTANT,
    ENDS_TURN,
    LAST_TURN,
    MAY_LEARN,
    REASONING,
    ROLE_BITS,
    TEMPLATE,
    TOOL_CALL,
)

Span = tuple[int, int]  # [start, end) in characters
_OF_ASSISTANT = (ASSISTANT, REASONING, TOOL_CALL)


@dataclass(frozen=True)
class Rendered:
    """A rendered conversation, and what its characters are.

    Attributes:
        text: as the template renders it.
        ends: where each segment ends, in characters; the first starts at 0, the last ends with the text.
        classes: the class of each segment, see storage.formats.classes.
        spellings: [start, end) of the spellings of special tokens in messages, which are text, in order.
        num_turns: messages of the assistant in the text.
        num_ended: those of them that end with a stop token.
    """

    text: str
    ends: NDArray[np.int64]
    classes: NDArray[np.uint8]
    spellings: list[Span]
    num_turns: int
    num_ended: int


@dataclass(frozen=True)
class Turns:
    """How a template and a tokenizer write the turns of an assistant.

    Attributes:
        prompt: the generation prompt, which a turn follows; "" if there is none.
        stop_tokens: those that end a turn; empty for the special token that follows it.
        usual_stop: the special token that ends a plain turn; "" if unknown.
        special: finds special tokens.
        added: finds added tokens of any kind.
    """

    prompt: str
    stop_tokens: tuple[str, ...]
    usual_stop: str
    special: re.Pattern[str]
    added: re.Pattern[str]

    def find_stop(self, text: str, start: int, end: int) -> tuple[int, int] | None:
        """Return where the stop token of a turn is whose last text ends at `start`; None if there is none by `end`.

        Without a list it is the first special token, or the first added one. A special token may follow which ends
        every plain turn (`<|tool_call_end|><|im_end|>`): then it is that one.
        """
        if self.stop_tokens:
            found = [place for token in self.stop_tokens if (place := text.find(token, start, end)) >= 0]
            if not found:
                return None
            place = min(found)
            token = max((token for token in self.stop_tokens if text.startswith(token, place)), key=len)
            return place, place + len(token)
        match = self.special.search(text, start, end) or self.added.search(text, start, end)
        if match is None:
            return None
        following: re.Match[str] | None = match
        while following is not None and following[0] != self.usual_stop:
            following = self.added.match(text, following.end(), end)
        return (following or match).span()


@dataclass(frozen=True)
class _Place:
    """Where a piece is in a text."""

    start: int
    end: int
    index: int
    piece: Piece

    @property
    def is_of_assistant(self) -> bool:
        """Whether the assistant wrote it."""
        return self.piece.kind & ROLE_BITS in _OF_ASSISTANT


def read_spans(text: str, marked_text: str, marked: Marked, turns: Turns, *, has_generation: bool) -> Rendered:
    """Return what the characters of a text are.

    Args:
        text: the text without marks.
        marked_text: the same with marks.
        marked: the conversation that was rendered with marks.
        turns: how the template writes turns.
        has_generation: whether it says what the assistant writes.

    Raises BadConversation if it is not certain.
    """
    if marked.marks.pattern.sub("", marked_text) != text:
        raise unclear("the template changes, compares or cuts its strings")
    places, blocks = _places(marked, marked_text)
    painting = _Painting(text, marked.messages)
    painting.paint_pieces([place for place in places if not place.is_of_assistant], 0)
    written = [place for place in places if place.is_of_assistant]
    if has_generation:
        _paint_blocks(painting, written, blocks, turns)
    else:
        _paint_turns(painting, _runs(places), turns)
    return painting.rendered([(place.start, place.end) for place in places if place.piece.is_spelling])


def unclear(why: str) -> BadConversation:
    """Return the error of a row whose spans are not certain."""
    return BadConversation(
        f"the spans of its messages in the rendered text are not certain: {why}; leave it out, or give a chat.template "
        "with {% generation %}",
        NO_SPANS,
    )


def _places(marked: Marked, marked_text: str) -> tuple[list[_Place], list[tuple[int, int]]]:
    """Return where the pieces are, in the order of their starts, and the blocks of `generation`."""
    places, blocks, begun = list[_Place](), list[tuple[int, int]](), list[tuple[int, int]]()
    for place, code in marked.marks.places(marked_text):
        if code not in (CLOSE, CLOSE_GENERATION):
            begun.append((place, code))
            continue
        start, opened = begun.pop() if begun else (0, CLOSE)
        if opened >= 0 and code == CLOSE:
            places.append(_Place(start, place, opened, marked.pieces[opened]))
        elif (opened, code) == (OPEN_GENERATION, CLOSE_GENERATION):
            blocks.append((start, place))
        else:
            raise unclear("the template cuts its strings")
    if begun:
        raise unclear("the template cuts its strings")
    places.sort(key=lambda place: (place.start, -place.end))
    return places, sorted(blocks)


class _Painting:
    """The classes of the characters of a text.

    Args:
        text: the text.
        messages: of the conversation.
    """

    def __init__(self, text: str, messages: Sequence[dict[str, Any]]) -> None:
        self.text = text
        self.assistants = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        self.num_messages = len(messages)
        last = self.assistants[-1] if self.assistants else 0
        users = (index for index in range(last, -1, -1) if messages[index]["role"] == "user")
        self._last_turn = range(next(users, -1) + 1, last + 1)
        self._trained = [message.get("train") is not False for message in messages]
        self._classes = bytearray(bytes([TEMPLATE | MAY_LEARN]) * len(text))
        self._ended: dict[int, bool] = {}

    def flags(self, message: int) -> int:
        """Return the flags of what a message of the assistant says."""
        return (MAY_LEARN if self._trained[message] else 0) | (LAST_TURN if message in self._last_turn else 0)

    def paint(self, start: int, end: int, kind: int) -> None:
        """Give the characters [start, end) a class; does nothing if there are none."""
        if start < end:
            self._classes[start:end] = bytes([kind]) * (end - start)

    def paint_pieces(self, places: Sequence[_Place], flags: int) -> None:
        """Give pieces their classes, also what is between two of one message that have the same."""
        for place in places:
            self.paint(place.start, place.end, place.piece.kind | flags)
        for one, other in pairwise(places):
            if one.piece.message == other.piece.message >= 0 and one.piece.kind == other.piece.kind:
                self.paint(one.end, other.start, one.piece.kind | flags)

    def paint_turn(self, start: int, end: int, message: int, places: Sequence[_Place], stop: Span | None) -> None:
        """Give a turn of the assistant, or a part of it, its classes.

        Args:
            start: of the turn.
            end: of the turn.
            message: its message.
            places: its pieces, in order.
            stop: its stop token.
        """
        flags = self.flags(message)
        self.paint(start, end, ASSISTANT | flags)
        self.paint_pieces(places, flags)
        if stop is not None:
            self.paint(*stop, ASSISTANT | ENDS_TURN | flags)
        self._ended[message] = self._ended.get(message, False) or stop is not None

    def rendered(self, spellings: list[Span]) -> Rendered:
        """Return the text in segments of one class."""
        classes = np.frombuffer(self._classes, np.uint8)
        ends = np.append(np.flatnonzero(np.diff(classes)) + 1, len(classes)) if len(classes) else np.empty(0, np.int64)
        return Rendered(self.text, ends, classes[ends - 1], spellings, len(self._ended), sum(self._ended.values()))


def _paint_blocks(painting: _Painting, places: Sequence[_Place], blocks: Sequence[Span], turns: Turns) -> None:
    """Paint the blocks of `generation`."""
    inside = [[place for place in places if start <= place.start and place.end <= end] for start, end in blocks]
    for (start, end), within, message in zip(blocks, inside, _messages_of(painting, inside), strict=True):
        stop = turns.find_stop(painting.text, max((place.end for place in within), default=start), end)
        painting.paint_turn(start, end, message, within, stop)


def _messages_of(painting: _Painting, inside: Sequence[Sequence[_Place]]) -> list[int]:
    """Return the message of each block; a block without pieces is of a message between those of its neighbours."""
    found = [{place.piece.message for place in within} for within in inside]
    if any(len(messages) > 1 for messages in found):
        raise unclear("a block of generation has several messages")
    known = [next(iter(messages), None) for messages in found]
    result, index = list[int](), 0
    while index < len(known):
        message = known[index]
        if message is not None:
            result.append(message)
            index += 1
            continue
        end = next((later for later in range(index, len(known)) if known[later] is not None), len(known))
        before, after = result[-1] if result else -1, known[end] if end < len(known) else None
        result += _between(painting, before, painting.num_messages if after is None else after, end - index)
        index = end
    return result


def _between(painting: _Painting, before: int, after: int, num_blocks: int) -> list[int]:
    """Return the messages of blocks without pieces, between those of two others."""
    silent = [message for message in painting.assistants if before < message < after]
    if len(silent) == num_blocks:
        return silent
    candidates = [message for message in painting.assistants if before <= message <= after]
    if len({painting.flags(message) for message in candidates}) != 1:
        raise unclear("it has empty messages of the assistant")
    return candidates[:1] * num_blocks


@dataclass
class _Run:
    """Pieces of one message in a row."""

    message: int
    is_of_assistant: bool
    places: list[_Place]

    @property
    def start(self) -> int:
        """Where the first begins."""
        return self.places[0].start

    @property
    def end(self) -> int:
        """Where the last ends."""
        return max(place.end for place in self.places)


def _runs(places: Sequence[_Place]) -> list[_Run]:
    """Return the pieces of messages in runs."""
    runs = list[_Run]()
    for place in places:
        if place.piece.kind & ROLE_BITS == TEMPLATE:
            continue
        if not runs or runs[-1].message != place.piece.message:
            runs.append(_Run(place.piece.message, place.is_of_assistant, []))
        runs[-1].places.append(place)
    written = [run for run in runs if run.is_of_assistant]
    indices = [place.index for run in written for place in run.places]
    if len({run.message for run in written}) < len(written) or len(set(indices)) < len(indices):
        raise unclear("the template writes a message of the assistant in several places")
    return runs


def _paint_turns(painting: _Painting, runs: Sequence[_Run], turns: Turns) -> None:
    """Paint the turns of a template without `generation`."""
    silent = set(painting.assistants) - {run.message for run in runs}
    position, before = 0, -1
    for run, next_run in pairwise([*runs, None, None]):
        end, message = (run.start, run.message) if run else (len(painting.text), painting.num_messages)
        is_turn = run is not None and run.is_of_assistant
        empty = [one for one in range(before + 1, message) if one in silent]
        prompts = _prompts(painting.text, turns.prompt, position, end) if empty or is_turn else []
        if empty and prompts and len(prompts) != len(empty) + is_turn:
            raise unclear("it has empty messages of the assistant")
        if run and is_turn:
            start = prompts.pop()[1] if prompts else run.start
            limit = next_run.start if next_run else len(painting.text)
            _paint_turn(painting, turns, run.message, start, run.places, limit)
        limits = [start for start, _ in prompts[1:]] + [end]
        for one, (_, start), limit in zip(empty, prompts, limits, strict=False):
            _paint_turn(painting, turns, one, start, [], limit)
        position, before = (run.end if run else end), max(before, message)


def _prompts(text: str, prompt: str, start: int, end: int) -> list[Span]:
    """Return where a generation prompt is in a part of a text."""
    return [match.span() for match in re.compile(re.escape(prompt)).finditer(text, start, end)] if prompt else []


def _paint_turn(
    painting: _Painting, turns: Turns, message: int, start: int, places: Sequence[_Place], limit: int
) -> None:
    """Paint a turn that begins at `start`; its stop token ends at `limit` or before."""
    end = max((place.end for place in places), default=start)
    following = painting.text.find(turns.prompt, end, limit) if turns.prompt else -1
    stop = turns.find_stop(painting.text, end, limit if following < 0 else following)
    painting.paint_turn(start, stop[1] if stop else end, message, places, stop)
