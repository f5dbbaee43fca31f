"""The class of each character of a rendered conversation, from the marks of a second rendering.

What the assistant writes is the text of `generation` where the template has it. Without it, a turn of the assistant
begins after the generation prompt, or else at its first mark, and ends with its last mark and the stop token. Whatever
is not clear (a piece that appears twice, marks of two messages mixed) is an error, not a guess.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from tokenloom.chat.marks import NO_CALL, OF_ASSISTANT, Marked, Place, Span, unclear
from tokenloom.chat.turns import Turns
from tokenloom.storage.formats.classes import (
    ASSISTANT,
    BEGINS,
    ENDS_TURN,
    LAST_TURN,
    MAY_LEARN,
    REASONING,
    ROLE_BITS,
    TEMPLATE,
    TOOL_CALL,
    TOOL_OUTPUT,
)

_IN_TURN = {*OF_ASSISTANT, TOOL_OUTPUT}  # a template may write a content after the output of a call
KEPT_OUT = BEGINS  # train_detail excludes the character; only tokens begin conversations
_MAY_LACK = (TEMPLATE, REASONING, TOOL_CALL)  # pieces of a message that is in a text all the same

_CLASSES = [bytes([kind]) for kind in range(256)]


@dataclass(frozen=True)
class Rendered:
    """A rendered conversation, and what its characters are.

    Attributes:
        text: as the template renders it.
        classes: the class of each character, see storage.formats.classes, with KEPT_OUT.
        spellings: [start, end) of the spellings of special tokens in messages, which are text, in order.
        num_turns: messages of the assistant that may be learned.
        num_ended: those of them that end with a stop token.
        is_incomplete: whether the template leaves out a call, tools, or a message that has text beside its reasoning.
    """

    text: str
    classes: bytearray
    spellings: list[Span]
    num_turns: int
    num_ended: int
    is_incomplete: bool = False


def read_spans(text: str, marked_text: str, marked: Marked, turns: Turns, *, has_generation: bool) -> Rendered:
    """Classify the characters of a text.

    Args:
        text: the text without marks.
        marked_text: the same with marks.
        marked: the conversation that was rendered with marks.
        turns: how the template writes turns.
        has_generation: whether it says what the assistant writes.

    Raises BadConversation if it is not certain.
    """
    without_marks, places = marked.read(marked_text)
    if without_marks != text:
        raise unclear("the template changes, compares or cuts its strings")
    all_places = places
    if not has_generation:
        places = _without_repeated_names(places)
    painting = _Painting(text, marked.messages)
    painting.paint_pieces([place for place in places if not (place.is_of_assistant or place.piece.is_block)])
    if has_generation:
        _paint_blocks(painting, places, turns)
    else:
        _paint_turns(painting, _runs(places), turns)
        _check_calls(painting, places, all_places)
    _keep_out(painting, places, marked)
    spellings = [(place.start, place.end) for place in places if place.piece.is_spelling]
    return painting.rendered(spellings, is_incomplete=_leaves_out(all_places, marked))


class _Painting:
    """The classes of the characters of a text.

    Args:
        text: the text.
        messages: the messages of the conversation.
    """

    def __init__(self, text: str, messages: Sequence[dict[str, Any]]) -> None:
        self.text, self._messages = text, messages
        self.num_messages = len(messages)
        self.assistants = {index for index, message in enumerate(messages) if message["role"] == "assistant"}
        last = max(self.assistants, default=-1)
        begin = last
        while begin >= 0 and messages[begin]["role"] != "user":
            begin -= 1
        self._flags = {
            index: (0 if messages[index].get("train") is False else MAY_LEARN) | (LAST_TURN if index > begin else 0)
            for index in self.assistants
        }
        self._classes = bytearray(_CLASSES[TEMPLATE | MAY_LEARN] * len(text))
        self._stops: dict[int, Span | None] = {}  # by message

    def start_of(self, run: _Run) -> int:
        """Return where a run starts of which no header is known, with the white space that its content begins with."""
        content = self._messages[run.message].get("content", "")
        space = content[: len(content) - len(content.lstrip())]
        is_content = run.places[0].piece.kind & ROLE_BITS == ASSISTANT
        return run.start - len(space) if is_content and self.text.endswith(space, 0, run.start) else run.start

    def role(self, message: int) -> str:
        """Return the role of a message, "" if there is none."""
        return str(self._messages[message]["role"]) if message >= 0 else ""

    def is_of_turn(self, place: int) -> bool:
        """Return whether a character is of a turn."""
        return self._classes[place] & ROLE_BITS in OF_ASSISTANT

    def paint_pieces(self, places: Sequence[Place], flags: int = 0) -> None:
        """Give pieces their classes, also what is between two of one message that have the same."""
        for place in places:  # _paint, without a call
            self._classes[place.start : place.end] = _CLASSES[place.piece.kind | flags] * (place.end - place.start)
        for one, other in pairwise(places):
            if one.piece.message == other.piece.message >= 0 and one.piece.kind == other.piece.kind:
                self._paint(one.end, other.start, one.piece.kind | flags)

    def paint_turn(self, start: int, end: int, message: int, places: Sequence[Place], stop: Span | None) -> None:
        """Give a turn of the assistant, or a part of it, its classes.

        Args:
            start: where the turn, or the part, starts.
            end: where it ends.
            message: its message.
            places: its pieces, in order.
            stop: its stop token.
        """
        self._paint(start, end, ASSISTANT | self._flags[message])
        self.paint_pieces(places, self._flags[message])
        self._stops[message] = stop or self._stops.get(message)

    def keep_out(self, place: int, char: str, message: int) -> None:
        """Keep a character of a message out of the loss, and any token that has it, unless the template trimmed it."""
        is_written = place >= 0 and self.text.startswith(char, place)
        if is_written and (message not in self.assistants or self.is_of_turn(place)):
            self._classes[place] = self._classes[place] & ~MAY_LEARN | KEPT_OUT

    def rendered(self, spellings: list[Span], *, is_incomplete: bool) -> Rendered:
        """Return the text with its classes."""
        num_turns = num_ended = 0
        for message, stop in self._stops.items():
            flags = self._flags[message]
            if stop:
                self._paint(*stop, ASSISTANT | ENDS_TURN | flags)
            if flags & MAY_LEARN:
                num_turns += 1
                num_ended += stop is not None
        return Rendered(self.text, self._classes, spellings, num_turns, num_ended, is_incomplete)

    def _paint(self, start: int, end: int, kind: int) -> None:
        """Give the characters [start, end) a class; does nothing if there are none."""
        if start < end:
            self._classes[start:end] = _CLASSES[kind] * (end - start)


def _paint_blocks(painting: _Painting, places: Sequence[Place], turns: Turns) -> None:
    """Paint the blocks of `generation`; pieces of the assistant that are not in one are not learned."""
    starts = [place.start for place in places]
    before: int | None = None
    for block in places:
        if block.piece.is_block:
            inside = places[bisect_left(starts, block.start) : bisect_left(starts, block.end)]
            written = [place for place in inside if place.is_of_assistant]
            before = _message_of(painting, block, {place.piece.message for place in written}, before)
            end = max((place.end for place in written), default=block.start)
            stop = turns.last_stop(painting.text, end, block.end)
            painting.paint_turn(block.start, block.end, before, written, stop)


def _message_of(painting: _Painting, block: Place, messages: set[int], before: int | None) -> int:
    """Return the message of a block: that of its loop, or of its pieces; else, as for a last eos_token, the one before.

    Args:
        block: the block.
        messages: those of its pieces.
        before: the message of the block before it.
    """
    found = {block.piece.message} if block.piece.message in painting.assistants else messages
    if not found and before is not None:
        return before
    if len(found) != 1 or not messages <= found:
        raise unclear("it is not known which message a block of generation is of")
    return next(iter(found))


@dataclass(slots=True)
class _Run:
    """Pieces of one message in a row, which are at [start, end)."""

    message: int
    is_of_assistant: bool
    places: list[Place]
    start: int
    end: int = 0

    def speaks_after_calls(self) -> bool:
        """Return whether a template writes a content after the calls of its message, perhaps after their outputs."""
        kinds = [place.piece.kind & ROLE_BITS for place in self.places]
        return TOOL_CALL in kinds and kinds[-1] != TOOL_CALL


def _runs(places: Sequence[Place]) -> list[_Run]:
    """Return the pieces of messages in runs."""
    runs = list[_Run]()
    for place in places:
        if not runs or runs[-1].message != place.piece.message:
            runs.append(_Run(place.piece.message, place.is_of_assistant, [], place.start))
        runs[-1].places.append(place)
        runs[-1].end = max(runs[-1].end, place.end)
    written = [number for number, run in enumerate(runs) if run.is_of_assistant]
    indices = [place.index for number in written for place in runs[number].places]
    first, between = {runs[number].message: number for number in reversed(written)}, list[_Run]()
    if len(first) < len(written):  # seldom
        between = [one for number in written for one in runs[first[runs[number].message] : number]]
    kinds = {place.piece.kind & ROLE_BITS for run in between for place in run.places}
    if len(set(indices)) < len(indices) or not kinds <= _IN_TURN:
        raise unclear("the template writes a message of the assistant in several places")
    return runs


def _paint_turns(painting: _Painting, runs: Sequence[_Run], turns: Turns) -> None:
    """Paint the turns of a template without `generation`."""
    end_run = _Run(painting.num_messages, False, [], len(painting.text))
    silent = set(range(painting.num_messages)).difference([run.message for run in runs])
    position, before = 0, -1
    for run, next_run in pairwise([*runs, end_run, end_run]):
        empty = [one for one in range(before + 1, run.message) if one in silent and one in painting.assistants]
        if run.is_of_assistant or empty:
            starts = _starts(painting, turns, run, empty, (position, run.start))
            if run.is_of_assistant:
                is_alone = silent.isdisjoint(range(run.message + 1, next_run.message))
                if not is_alone and run.speaks_after_calls():
                    raise unclear("an empty output of a tool may be inside a message of the assistant")
                is_alone = is_alone or painting.assistants.isdisjoint(range(run.message + 1, next_run.message))
                start = starts.pop(run.message) if run.message in starts else painting.start_of(run)
                end, stop = turns.end(painting.text, run.end, next_run.start, is_alone=is_alone)
                painting.paint_turn(start, end, run.message, run.places, stop)
            for message, start in starts.items():
                end, stop = turns.end(painting.text, start, run.start, is_alone=False)
                painting.paint_turn(start, end, message, [], stop)
        position, before = run.end, max(before, run.message)


def _starts(painting: _Painting, turns: Turns, run: _Run, empty: list[int], gap: Span) -> dict[int, int]:
    """Return where turns start in [start, end): messages of the assistant without pieces, and perhaps that of a run."""
    text = painting.text
    if not empty:
        header = turns.starts.get(painting.role(run.message - 1), turns.prompt)
        found = [match.end() for match in header.finditer(text, *gap)]
        return {run.message: found[-1] if found else painting.start_of(run)}
    messages = [*empty, run.message] if run.is_of_assistant else empty
    headers = {one: turns.starts.get(painting.role(one - 1), turns.prompt) for one in messages}
    written = {one: header.pattern for one, header in headers.items() if header.search(text, *gap)}
    if not written:
        return {}
    ends = [match.end() for match in re.compile("|".join(dict.fromkeys(written.values()))).finditer(text, *gap)]
    if len(ends) != len(written):
        raise unclear("it has empty messages of the assistant")
    return dict(zip(written, ends, strict=True))


def _without_repeated_names(places: list[Place]) -> list[Place]:
    """Return places without the names of functions, if one is written again, as with the output of its call."""
    names = [place.index for place in places if place.piece.is_name]
    return places if len(names) == len(set(names)) else [place for place in places if not place.piece.is_name]


def _check_calls(painting: _Painting, places: Sequence[Place], all_places: Sequence[Place]) -> None:
    """Raise BadConversation if only the name of a call is in the text, and not in a turn."""
    written, checked = {place.piece.call for place in places}, {NO_CALL}
    for place in all_places:
        if place.piece.call not in written | checked and not painting.is_of_turn(place.start):
            name = painting.text[place.start : place.end]
            raise unclear(f"a call of {name} has no text among its arguments that shows where it is")
        checked.add(place.piece.call)


def _keep_out(painting: _Painting, places: Sequence[Place], marked: Marked) -> None:
    """Keep out of the loss what `train_detail` says of contents; a template may trim the white space around one."""
    for number, message in enumerate(marked.messages):
        if "train_detail" not in message:
            continue
        content, own = marked.read(message["content"])
        starts = [place.start - own[0].start for place in places if own and place.index == own[0].index]
        core = content.strip()
        if not starts or not all(painting.text.startswith(core, start + content.index(core)) for start in starts):
            raise unclear(f"the template changes the content of messages[{number}], so its train_detail has no place")
        parts = [part for part in message["train_detail"] if part["train"]]
        learned = [range(part["begin_offset"], part["end_offset"] + 1) for part in parts]
        for start, offset in product(starts, set(range(len(content))).difference(*learned)):
            painting.keep_out(start + offset, content[offset], number)


def _leaves_out(places: Sequence[Place], marked: Marked) -> bool:
    """Return whether a call or a message is not in a text; reasoning is often left out of earlier turns."""
    written = {place.index for place in places}
    if len(written) == len(marked.pieces):  # usual
        return False
    if not {place.piece.call for place in places}.issuperset({piece.call for piece in marked.pieces} - {NO_CALL}):
        return True
    found = {(place.piece.message, place.piece.kind) for place in places}
    said = [piece for piece in marked.pieces if piece.kind & ROLE_BITS not in _MAY_LACK and not piece.is_block]
    return not found.issuperset([(piece.message, piece.kind) for piece in said])
