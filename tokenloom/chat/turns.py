"""How a template writes the turns of an assistant: what comes before them, and which token ends one."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from tokenloom.chat.definition import ChatDefinition
from tokenloom.chat.marker import Marker, any_of
from tokenloom.chat.marks import Place, Span
from tokenloom.chat.template import ChatTemplate
from tokenloom.errors import BadConversation

_ID = "call00000"  # nine letters and digits, as the templates of Mistral want it
_USER, _REPLY = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
_OUTPUT = {"role": "tool", "content": "c", "tool_call_id": _ID}
_ARGUMENTS: tuple[Any, ...] = ({}, "{}")  # some templates want JSON text


@dataclass(frozen=True)
class Turns:
    """How a template and a tokenizer write the turns of an assistant.

    Attributes:
        prompt: finds the generation prompt, which a turn follows, or as much of it as the template writes before one.
        listed: finds the stop tokens of the spec; None if they are those that the template writes.
        usual_stop: the special token that ends a plain turn; "" if it is not known.
        call_stop: the one that ends a turn with calls of functions; "" if it is not known.
        special: finds special tokens, and those that end turns.
        added: finds added tokens of any kind.
    """

    prompt: re.Pattern[str]
    listed: re.Pattern[str] | None
    usual_stop: str
    call_stop: str
    special: re.Pattern[str]
    added: re.Pattern[str]

    def first_stop(self, text: str, start: int, end: int, *, has_calls: bool, is_alone: bool = True) -> Span | None:
        """Return where the stop token of a turn is whose last piece ends at `start`; None if there is none by `end`.

        It is the first special token, or a known stop token. The one that ends every plain turn may follow it
        directly (`<|tool_call_end|><|im_end|>`): then it is that one. After calls of functions it is the one that ends
        such turns, since the text after the last piece may have other special tokens. If the text also has messages
        without pieces, because the turn is not alone in it, only a known stop token counts.
        """
        if self.listed is not None:
            match = self.listed.search(text, start, end)
            return match and match.span()
        if has_calls and self.call_stop and (place := text.find(self.call_stop, start, end)) >= 0:
            return place, place + len(self.call_stop)
        match = self.special.search(text, start, end)
        following = match
        while following is not None and following[0] != self.usual_stop:
            following = self.added.match(text, following.end(), end)
        match = following or (match if is_alone else None)
        return match and match.span()

    def empty_stop(self, text: str, start: int, end: int, *, has_calls: bool) -> Span | None:
        """Return where the stop token of a turn without pieces is, in all that the template writes of it."""
        stop = (self.call_stop if has_calls else "") or self.usual_stop  # of calls that the template leaves out
        if self.listed is not None:
            return self.first_stop(text, start, end, has_calls=has_calls)
        if stop and (place := text.find(stop, start, end)) >= 0:
            return place, place + len(stop)
        return self.last_stop(text, start, end) if end == len(text) else None

    def last_stop(self, text: str, start: int, end: int) -> Span | None:
        """Return where the last stop token in [start, end) is, the part of a turn after its last piece."""
        found = list((self.listed or self.special).finditer(text, start, end))
        return found[-1].span() if found else None


def read_turns(
    template: ChatTemplate,
    marker: Marker,
    definition: ChatDefinition,
    special: re.Pattern[str],
    added: re.Pattern[str],
) -> Turns:
    """Return how a template writes turns, from a few short conversations, which nearly every template renders."""
    listed = any_of(definition.stop_tokens) if definition.stop_tokens else None
    eos = definition.special_tokens.get("eos_token", "")
    turns = Turns(any_of(_prompts(template, marker, added)), listed, eos, "", special, added)
    with suppress(BadConversation):
        turns = replace(turns, usual_stop=_stop(turns, _after(template, marker, 1, [_USER, _REPLY, _USER])))
    for arguments in _ARGUMENTS:
        call = {"type": "function", "id": _ID, "function": {"name": "f", "arguments": arguments}}
        calling: list[dict[str, Any]] = [{"role": "assistant", "content": "", "tool_calls": [call]}, _OUTPUT]
        with suppress(BadConversation):
            after = _after(template, marker, 1, [_USER, *calling])
            turns = replace(turns, call_stop=turns.call_stop or _stop(turns, after))
    known = [token for token in (turns.usual_stop, turns.call_stop) if token]
    return replace(turns, special=re.compile("|".join([*map(re.escape, known), special.pattern])))


def _prompts(template: ChatTemplate, marker: Marker, added: re.Pattern[str]) -> set[str]:
    """Return the generation prompt, and what is the same of it before a last turn and before another; none if empty."""
    prompts = list[str]()
    with suppress(BadConversation):
        plain, begun = (_after(template, marker, 0, [_USER], add_generation_prompt=add) for add in (False, True))
        prompt = begun[_num_same(plain, begun, added) :]
        prompts.append(prompt)
        for messages in ([_USER, _REPLY], [_USER, _REPLY, _USER, _REPLY]):
            before = _after(template, marker, 0, messages)[len(begun) - len(prompt) :]
            prompts.append(prompt[: _num_same(prompt, before, added)])
    return set(filter(None, prompts))


def _num_same(one: str, other: str, added: re.Pattern[str]) -> int:
    """Return how many characters two texts begin with in common, without a part of an added token of either."""
    num_same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    matches = (match.span() for text in (one, other) for match in added.finditer(text))
    return min((start for start, end in matches if start < num_same < end), default=num_same)


def _after(template: ChatTemplate, marker: Marker, index: int, messages: list[dict[str, Any]], **options: bool) -> str:
    """Return what a template writes after the last piece of a message, before the next piece; "" if it has none.

    A template may write a piece several times, also with a later message, as the name of a function with its output.
    How often it does so in the message is seen when that is the last one.
    """
    num_pieces = len(_written(template, marker, index, messages[: index + 1])[1])
    text, own, others = _written(template, marker, index, messages, **options)
    start = max((place.end for place in own[:num_pieces]), default=len(text))
    end = min((place.start for place in [*own[num_pieces:], *others] if place.start >= start), default=None)
    return text[start:end]


def _written(
    template: ChatTemplate, marker: Marker, index: int, messages: list[dict[str, Any]], **options: bool
) -> tuple[str, list[Place], list[Place]]:
    """Return the text of a conversation, the pieces of one message in it, and those of the others."""
    marked = marker.mark({"messages": messages}, "")
    text, places = marked.marks.read(template.render_marked(marked, **options), marked.pieces)
    own = [place for place in places if place.piece.message == index and not place.piece.is_block]
    return text, own, [place for place in places if place.piece.message != index and not place.piece.is_block]


def _stop(turns: Turns, after: str) -> str:
    if stop := turns.first_stop(after, 0, len(after), has_calls=False):
        return after[slice(*stop)]
    match = turns.added.search(after)  # of a tokenizer whose stop token is not special
    return match[0] if match else ""
