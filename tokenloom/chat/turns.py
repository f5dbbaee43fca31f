"""How a template writes the turns of an assistant: what comes before them, and what ends one.

Short conversations show it, once for each template. What a template writes between two messages is the end of the one,
as where nothing follows, and the header of the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tokenloom.chat.conversation import ChatDefinition
from tokenloom.chat.marks import Marker, Place, Span, any_of, unclear
from tokenloom.chat.template import ChatTemplate
from tokenloom.errors import BadConversation

Message = dict[str, Any]

_ID = "call00000"  # nine letters and digits, as the templates of Mistral want it
_SYSTEM, _USER = {"role": "system", "content": "s"}, {"role": "user", "content": "a"}
_REPLY, _SILENT = {"role": "assistant", "content": "b"}, {"role": "assistant", "content": ""}
_THOUGHT = {"reasoning_content": "d"}
_OUTPUT = {"role": "tool", "content": "c", "tool_call_id": _ID, "name": "f"}
_ARGUMENTS: tuple[Any, ...] = ({"k": "v"}, '{"k": "v"}')  # some templates want JSON text
_CALLS: list[Message] = [
    {"tool_calls": [{"type": "function", "id": _ID, "function": {"name": "f", "arguments": given}}]}
    for given in _ARGUMENTS
]
_CALLING: list[Message] = [{**one, **call} for call in _CALLS for one in (_SILENT, _REPLY, _SILENT | _THOUGHT)]
_TOOLS = [{"type": "function", "function": {"name": "f", "description": "e", "parameters": {"type": "object"}}}]
_TURNS: list[Message] = [_REPLY, _REPLY | _THOUGHT, _SILENT | _THOUGHT, *_CALLING]
_OUTPUTS: list[list[Message]] = [[_USER, _SILENT | call, _OUTPUT] for call in _CALLS]
#: What may stand before a turn.
_BEFORE: list[list[Message]] = [[_SYSTEM], [_USER], [_SYSTEM, _USER], [_USER, _REPLY, _USER]]


@dataclass(frozen=True)
class Turns:
    """How a template and a tokenizer write the turns of an assistant.

    Attributes:
        prompt: finds the generation prompt, or as much of it as the template writes before a turn.
        starts: by the role of the message before a turn, "" for none: finds the prompt, or else all that the template
            always writes between the two.
        headers: finds what begins a message.
        endings: finds what follows the last text of a turn, from its first stop token to its last.
        listed: finds the stop tokens of the spec; None if they are those that the template writes.
        special: finds special tokens, and others that end turns.
        writes_more: whether more follows a last turn than its end, such as a generation prompt that nobody asked for.
    """

    prompt: re.Pattern[str]
    starts: dict[str, re.Pattern[str]]
    headers: re.Pattern[str]
    endings: re.Pattern[str]
    listed: re.Pattern[str] | None
    special: re.Pattern[str]
    writes_more: bool

    def end(self, text: str, start: int, limit: int, *, is_alone: bool) -> tuple[int, Span | None]:
        """Return where a turn ends, and its stop token; None if it has none.

        It ends with its last special token before the header of the next message, or else with its last text. If it
        is not known where that header begins, it ends with the first special token.

        Args:
            text: the rendered conversation.
            start: the end of the last piece of the turn.
            limit: the start of the first piece after it, or the end of the text.
            is_alone: whether no other turn begins before that: an ending may have the header of one in it.

        Raises BadConversation if more may look like the end, and the spec names no stop tokens.
        """
        if self.writes_more and self.listed is None:
            raise unclear("the template writes more than the end of a turn after the last; name chat.stop_tokens")
        ending = self.endings.search(text, start, limit)
        if ending and is_alone and self.listed is None and ending.start() == start:  # usual
            return ending.end(), self.last_stop(text, *ending.span())
        header = self.headers.search(text, start, limit)
        end = header.start() if header else limit
        if self.listed is not None:
            stop = self.last_stop(text, start, end) if header else None
            stop = stop or _span(self.listed.search(text, start, limit if is_alone or not header else header.end()))
        elif ending and (ending.start() if is_alone else ending.end()) <= end:
            stop = self.last_stop(text, *ending.span())
        elif header or limit == len(text):
            stop = self.last_stop(text, start, end)
        else:
            stop, end = _span(self.special.search(text, start, limit)), start
        return (stop[1], stop) if stop else (start + len(text[start:end].rstrip()), None)

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
    """Return how a template writes turns, from short conversations of which nearly every template renders some."""
    probe = _Probe(template, marker, special, added)
    if stop := probe.plain_stop():
        special = re.compile(f"{re.escape(stop)}|{special.pattern}")
        probe = _Probe(template, marker, special, added)
    prompts = probe.prompts()
    headers = any_of([*prompts, *probe.headers()])
    endings = probe.endings(headers)
    return Turns(
        prompt=any_of(prompts),
        starts={role: any_of([*prompts, *starts]) for role, starts in probe.starts(any_of(prompts)).items()},
        headers=headers,
        endings=any_of(endings),
        listed=any_of(definition.stop_tokens) if definition.stop_tokens else None,
        special=special,
        writes_more=probe.writes_more(),
    )


class _Probe:
    """Renders short conversations, and reads the text that a template writes between their messages.

    Args:
        template: renders the conversations.
        marker: marks their strings.
        special: finds special tokens.
        added: finds added tokens of any kind.
    """

    def __init__(
        self, template: ChatTemplate, marker: Marker, special: re.Pattern[str], added: re.Pattern[str]
    ) -> None:
        self._template, self._marker, self._special, self._added = template, marker, special, added
        self._known: dict[str, tuple[str, list[Place]] | None] = {}

    def prompts(self) -> set[str]:
        """Return the generation prompt, and what is the same of it before a last turn and before another."""
        plain, begun = self._after([_USER], 0), self._after([_USER], 0, add_generation_prompt=True)
        if plain is None or begun is None:
            return set()
        prompt = begun[len(self._same(plain, begun)) :]
        rest = slice(len(begun) - len(prompt), None)
        last, usual = (self._after(turns, 0) or "" for turns in ([_USER, _REPLY], [_USER, _REPLY, _USER, _REPLY]))
        usual = self._same(prompt, usual[rest])
        others = [self._after([_USER, turn], 0) or "" for turn in (_SILENT, *_TURNS)]
        return _written(
            [prompt, self._same(prompt, last[rest]), usual, *(self._same(usual, other[rest]) for other in others)]
        )

    def headers(self) -> set[str]:
        """Return the headers of messages, seen after a message that ends as it does where nothing follows."""
        headers, turns = self._begins(_BEFORE, _SYSTEM), [[_USER, turn] for turn in _TURNS]
        for message in (_USER, _OUTPUT, _REPLY):
            found = self._begins(_BEFORE, message)
            # What ends a turn may be written only where something follows: others show a header better.
            found = found or self._begins(_OUTPUTS, message) | self._begins(turns, message, after_ends=True)
            headers |= found or self._begins(turns, message)
        return headers

    def _begins(self, befores: list[list[Message]], message: Message, *, after_ends: bool = False) -> set[str]:
        """Return the headers of a message after others, or only after those that end with text, or with a token."""
        is_turn = befores[0][-1]["role"] == "assistant"
        return _written(
            after[len(self._same(last, after)) :]
            for last, after in self._borders(befores, [message])
            if after.startswith(last) or not is_turn
            if not after_ends or (last.strip() and (self._tokens(last) or not self._tokens(after)))
        )

    def endings(self, headers: re.Pattern[str]) -> set[str]:
        """Return the texts after the last pieces of turns, from the first stop token to the last."""
        endings = set[str]()
        for last, after in self._borders([[_USER, turn] for turn in _TURNS], [_USER, _OUTPUT, _REPLY, _SYSTEM]):
            ends, found = [last, self._same(last, after)], list(headers.finditer(after))
            if found and len(self._tokens(ends[1])) < max(1, len(self._tokens(last))):  # it ends otherwise at the end
                ends[1] = after[: found[-1].start()]
            endings.update(end[tokens[0].start() : tokens[-1].end()] for end in ends if (tokens := self._tokens(end)))
        return endings

    def writes_more(self) -> bool:
        """Return whether more follows a last turn than what ends it: what begins a next turn, or text after a token."""
        said = [_USER, _REPLY]
        last, user, turn = (self._after([*said, *more], 1) or "" for more in ([], [_USER], [_REPLY]))
        end = self._same(last, user)
        has_text = self._tokens(end) and self._special.sub("", last[len(end) :]).strip()
        return bool(has_text) or len(self._same(last, turn).strip()) > len(end.strip())

    def starts(self, prompt: re.Pattern[str]) -> dict[str, set[str]]:
        """Return the text that precedes each turn without a generation prompt, by the role of the message before."""
        starts = dict[str, set[str]]()
        for before in ([], *_BEFORE, *_OUTPUTS, [_USER, _REPLY]):
            plain, *others = (self._after([*before, turn], len(before) - 1) for turn in _TURNS)
            if plain and not prompt.search(plain):
                found = _written([plain, *(self._same(plain, other) for other in others if other)])
                starts.setdefault(before[-1]["role"] if before else "", set()).update(found)
        return starts

    def plain_stop(self) -> str:
        """Return the added token that ends a plain turn if no special token does; "" if there is none."""
        last = self._after([_USER, _REPLY], 1) or ""
        added = [] if self._special.search(last) else self._added.findall(last)
        return added[-1] if added else ""

    def _borders(self, befores: list[list[Message]], nexts: list[Message]) -> Iterator[tuple[str, str]]:
        """Yield the text after the last message of conversations where nothing follows, and where something does."""
        for messages in befores:
            last = self._after(messages, len(messages) - 1)
            afters = (self._after([*messages, message], len(messages) - 1) for message in nexts)
            # A message may be written only where nothing follows, as reasoning alone.
            yield from ((last, after or last) for after in afters if last is not None and after is not None)

    def _tokens(self, text: str) -> list[re.Match[str]]:
        return list(self._special.finditer(text))

    def _same(self, one: str, other: str) -> str:
        """Return the common start of two texts, without a part of an added token of either."""
        num_same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
        matches = (match.span() for text in (one, other) for match in self._added.finditer(text))
        return one[: min((start for start, end in matches if start < num_same < end), default=num_same)]

    def _after(self, messages: list[Message], index: int, *, add_generation_prompt: bool = False) -> str | None:
        """Return the text between the last piece of a message and the next piece; None if it can't be rendered.

        A template may write a piece several times, also with a later message, as the name of a function with its
        output. How often it does so in the message is seen when that is the last one.
        """
        alone = self._rendered(messages[: index + 1]) if index >= 0 else ("", [])
        rendered = self._rendered(messages, add_generation_prompt)
        if alone is None or rendered is None:
            return None
        text, places = rendered
        own = [place for place in places if place.piece.message == index]
        num_pieces = sum(place.piece.message == index for place in alone[1])
        start = max((place.end for place in own[:num_pieces]), default=len(text) if index >= 0 else 0)
        later = (place.start for place in places if place not in own[:num_pieces] and place.start >= start)
        return text[start : min(later, default=None)]

    def _rendered(self, messages: list[Message], add_prompt: bool = False) -> tuple[str, list[Place]] | None:
        """Return the text of a conversation and the pieces in it, but for blocks of generation."""
        name = repr((messages, add_prompt))
        if name not in self._known:
            self._known[name] = None
            for tools in ({}, {"tools": _TOOLS}):  # a few templates want some
                with suppress(BadConversation):
                    marked = self._marker.mark({"messages": messages} | tools, "")
                    text, places = marked.read(self._template.render_marked(marked, add_generation_prompt=add_prompt))
                    self._known[name] = text, [place for place in places if not place.piece.is_block]
                    break
        return self._known[name]


def _written(texts: Iterable[str]) -> set[str]:
    """Return the texts that are not only white space."""
    return {text for text in texts if text.strip()}


def _span(match: re.Match[str] | None) -> Span | None:
    return match and match.span()
