"""What of a conversation is learned, found in another way than tokenloom finds it: by rendering it with other contents.

A turn begins after the generation prompt, as far as the template writes it, or else after what is before the turn
whatever the assistant says. It ends with the last special token before the header of the next message, or else with its
last text. What follows a turn where it is the last message is of the turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

Message = dict[str, Any]
Span = tuple[int, int]  # [start, end) in characters
_PLACEHOLDERS = ("Zq7 placeholder Qz", "Yw4 other words Wy")


class Undecided(Exception):
    """The oracle does not know what of a conversation is learned."""


class _Generation(jinja2.ext.Extension):
    """The tag `generation`, which writes what is in it."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: Any) -> Any:
        """Return the statements in the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def renderer(template: str, names: dict[str, str], tools: Any = None) -> Callable[..., str]:
    """Return a function that renders messages as transformers does."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = datetime(2026, 11, 25).strftime
    compiled = environment.from_string(template)

    def render(messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        given = [
            {"thinking": one["reasoning_content"], **one} if "reasoning_content" in one else one for one in messages
        ]
        return compiled.render(
            messages=given, tools=tools, documents=None, add_generation_prompt=add_generation_prompt, **names
        )

    return render


class Oracle:
    """Says what of conversations is learned.

    Args:
        render: renders messages.
        special: the special tokens.
        plain: the added tokens that are not special.
    """

    def __init__(self, render: Callable[..., str], special: Iterable[str], plain: Iterable[str] = ()) -> None:
        self._render = render
        self._specials = list(special)
        self._special, self._added = _any_of(special), _any_of([*special, *plain])

    def learned(self, messages: Sequence[Message]) -> tuple[str, list[Span]]:
        """Return the text of a conversation and its turns.

        Raises jinja2.TemplateError, TypeError or another error of the template; Undecided.
        """
        text = self._render(messages)
        turns = [self._turn(text, messages, i) for i, one in enumerate(messages) if one["role"] == "assistant"]
        return text, [turn for turn in turns if turn is not None]

    def _turn(self, text: str, messages: Sequence[Message], index: int) -> Span | None:
        start = self._start(text, messages, index)
        begin, after = self._changing(text, messages, index)
        if begin is None:  # nothing of it is written
            return None
        end = self._end(text, messages, index, after)
        if not text[:end].endswith(tuple(self._specials)):
            end = start + len(text[start:end].rstrip())
        return min(start, end), end

    def _start(self, text: str, messages: Sequence[Message], index: int) -> int:
        """Return where a turn starts."""
        before, rest = list(messages[:index]), list(messages[index + 1 :])
        if rest and messages[index].get("tool_calls"):
            num_outputs = sum(1 for _ in takewhile(lambda one: one["role"] == "tool", rest))
            rest = rest[num_outputs:]
        others = [self._tried([*before, _saying(each), *rest]) for each in _PLACEHOLDERS]
        texts = [other for other in others if other is not None]
        texts = texts or [self._render([*before, _saying(each)]) for each in _PLACEHOLDERS]
        common = min((self._same(text, other) for other in texts), key=len)
        begun, plain = self._tried(before, True), self._tried(before)
        if begun is None or plain is None or not before:
            return len(common)
        prompt = begun[len(self._same(begun, plain)) :]
        if text.startswith(begun[: len(begun) - len(prompt)]):
            place = len(begun) - len(prompt)
            written = self._same(prompt, text[place:])
            user = {"role": "user", "content": "b"}
            alone, usual = self._tried([user]), self._tried([user, _saying("a"), user, _saying("c")])
            if written != prompt and alone is not None and usual is not None:
                written = self._same(written, usual[len(alone) :])
            return len(begun) - len(prompt) + len(written) if written.strip() else len(common)
        said = self._changing(text, messages, index - 1)[1]
        if prompt and said and (place := text.find(prompt, said, len(common))) >= 0:
            return place + len(prompt)
        for num_chars in range(len(prompt), 0, -1):  # what is before it is written in another way
            place = text.rfind(prompt[:num_chars], 0, len(common) + len(prompt))
            if place >= 0 and self._same(prompt, text[place:]).strip() and place + num_chars >= len(common):
                return place + len(self._same(prompt, text[place:]))
        return len(common)

    def _changing(self, text: str, messages: Sequence[Message], index: int) -> tuple[int | None, int]:
        """Return where what an assistant said begins and ends in a text; None if it is not in it."""
        own, texts = messages[index], list[str]()
        for message in (own, {**own, "content": ""} if own.get("tool_calls") and not own.get("content") else None):
            if message is not None and not texts:
                others = [_other(message, one, with_content=message is not own) for one in _PLACEHOLDERS]
                changed = [self._tried([*messages[:index], other, *messages[index + 1 :]]) for other in others]
                texts = [one for one in changed if one is not None and one != text]
        if not texts:
            return None, 0
        starts = min(len(_common(text, one)) for one in texts)
        ends = min(len(_common(text[::-1], one[::-1])) for one in texts)
        return starts, max(starts, len(text) - ends)

    def _end(self, text: str, messages: Sequence[Message], index: int, after: int) -> int:
        """Return where a turn ends whose last character that may change is before `after`."""
        if index + 1 == len(messages):
            return self._last(text, after, len(text))
        alone = self._render(messages[: index + 1])
        _, at = self._changing(alone, messages[: index + 1], index)
        last, rest = alone[at:], text[after:]
        same = self._same(last, rest)
        if len(self._tokens(same)) == len(self._tokens(last)) > 0:
            return self._last(text, after, after + len(same))
        header = self._next_header(text, messages, index)
        if header is None and not self._tokens(last):
            return self._last(text, after, after + len(same))
        if header is None:
            raise Undecided(f"the end of message {index}")
        return self._last(text, after, header)

    def _next_header(self, text: str, messages: Sequence[Message], index: int) -> int | None:
        """Return where the next message begins, from what the template writes before it after a message of a user."""
        said = {"role": "user", "content": _PLACEHOLDERS[0]}
        before = [*messages[:index], said]
        alone, followed = self._tried(before), self._tried([*before, *messages[index + 1 :]])
        if alone is None or followed is None:
            return None
        same = self._same(alone, followed)
        rest = followed[len(same) :]
        return len(text) - len(rest) if said["content"] in same and text.endswith(rest) else None

    def _last(self, text: str, start: int, end: int) -> int:
        """Return where the last special token in [start, end) ends, or else the last text."""
        tokens = self._tokens(text[start:end])
        return start + (tokens[-1].end() if tokens else len(text[start:end].rstrip()))

    def _tokens(self, text: str) -> list[re.Match[str]]:
        return list(self._special.finditer(text))

    def _same(self, one: str, other: str) -> str:
        """Return what two texts begin with in common, without a part of an added token."""
        num = len(_common(one, other))
        spans = [match.span() for text in (one, other) for match in self._added.finditer(text[: num + 99])]
        return one[: min((start for start, end in spans if start < num < end), default=num)]

    def _tried(self, messages: Sequence[Message], *arguments: bool) -> str | None:
        try:
            return self._render(messages, *arguments)
        except Exception:  # noqa: BLE001  (a template can raise anything)
            return None


def _any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(set(tokens), key=len, reverse=True))) or "(?!)")


def _common(one: str, other: str) -> str:
    return "".join(char for char, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _saying(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _other(message: Message, word: str, *, with_content: bool = False) -> Message:
    """Return a message of an assistant with other words in place of its texts, also of a content that it has not."""
    changed = dict(message)
    for name in ("content", "reasoning_content"):
        if message.get(name, "").strip() or (name == "content" and (with_content or not message.get("tool_calls"))):
            changed[name] = word if "</think>" not in message.get(name, "") else message[name] + word
    if calls := message.get("tool_calls"):
        changed["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _with_word(call["function"]["arguments"], word)}}
            for call in calls
        ]
    return changed


def _with_word(value: Any, word: str) -> Any:
    if isinstance(value, dict):
        return {name: _with_word(each, word) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_word(each, word) for each in value]
    return word
