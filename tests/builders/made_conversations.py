"""Conversations that nobody wrote: normalized, hostile to templates and tokenizers in every way, always the same.

Conversation number i is a pure function of i: every choice is a hash of i and of how many choices came before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Conversation = dict[str, Any]
T = TypeVar("T")

#: A phrase in each script, in forms that NFC changes and in forms that it keeps.
SCRIPTS = [
    "The quick brown fox jumps over 13 lazy dogs.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich",
    "cafe\u0301 nai\u0308ve A\u030angstro\u0308m \u212b \u2126 \u1e9b\u0323",
    "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία",
    "Съешь же ещё этих мягких французских булок",
    "نص حكيم له سر قاطع وذو شأن عظيم",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों का राजा",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "키스의 고유조건은 입술끼리 만나야",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \u1100\u1161",
    "視野無限廣,窗外有藍天",
    "いろはにほへと ちりぬるを ガ\u3099 ｶﾞ",
    "ཨོཾ་མ་ཎི་པདྨེ་ཧཱུྃ ᚠᛇᚻ ᏣᎳᎩ ⵜⵉⴼⵉⵏⴰⵖ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇪🇺 🫠 ✌🏽 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠮷野家",
    "a\u0338\u0327\u0301\u0315 Z\u0351\u036b\u0343\u036a\u0302",
    "١٢٣ १२३ ⅷ ½ x² 12345678901234567890 3.14e-10",
    "\u200bzero\u200dwidth\ufeff \u202eltr\u202c \u00adsoft",
    "\x01\x07\x1b[0m\x7f\x85",
    "\ue000\uf8ff\U000f0002\U0010fffd",
]
#: What stands at the borders of a content.
BORDERS = ["", "", "", " ", "\n", "\n\n", "  ", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", " \n ", "\x0b\x0c"]
BORDERS += ["\n" * 7]
#: Spellings that mean something to some template or tokenizer, and pieces of such.
SPELLINGS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|begin_of_text|>", "[INST]", "<s>", "</s>"]
SPELLINGS += ["<|start_header_id|>assistant<|end_header_id|>", "<start_of_turn>model", "<end_of_turn>", "<|end|>"]
SPELLINGS += ["<|assistant|>", "<|user|>", "<|observation|>", "<|return|>", "<|START_OF_TURN_TOKEN|>"]
SPELLINGS += ["<｜Assistant｜>", "<｜end▁of▁sentence｜>", "[gMASK]<sop>"]
#: Spellings that templates test and split, of tokens that are not special where they are tokens.
TAGS = ["<think>", "</think>", "<tool_response>", "</tool_response>", "/nothink", "<tools></tools>"]
TAGS += ["<think>\nhidden\n</think>\n\n", "<tool_call>\n{}\n</tool_call>"]
PIECES = ["<|im_", "im_end|>", "<|im_start|", "|>", "<th", "ink>", "{{ messages }}", "{% generation %}", "{# x #}"]
PIECES += ["%}"]
WORDS = ["yes", "No.", "42", "a", "the", "assistant", "user", "system", "model", "```python\nx = 1\n```"]
WORDS += ['{"a": [1, 2]}']
NAMES = ["get_weather", "search", "f", "run_code", "namespace.lookup", "größe"]


class Draws:
    """Choices that depend on a conversation's number alone."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._drawn = 0

    def below(self, end: int) -> int:
        """Return a number in [0, end)."""
        self._drawn += 1
        digest = hashlib.blake2b(f"{self._number}/{self._drawn}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % end

    def one(self, of: Sequence[T]) -> T:
        """Return one of a sequence."""
        return of[self.below(len(of))]

    def once_in(self, rounds: int) -> bool:
        """Return True once in so many times."""
        return self.below(rounds) == 0


def _text(draws: Draws, spell: bool = True) -> str:
    """Return a text of some parts, with white space at its borders; `spell` lets it spell tokens."""
    if draws.once_in(9):
        return draws.one(["", "", " ", "\n", "\n\n\n"])
    if draws.once_in(4):
        return draws.one(BORDERS) + draws.one(WORDS) + draws.one(BORDERS)
    parts = []
    for _ in range(1 + draws.below(5)):
        kind = draws.below(12)
        if kind == 0 and spell:
            parts.append(draws.one(SPELLINGS))
        elif kind == 1:
            parts.append(draws.one(TAGS))
        elif kind == 2:
            parts.append(draws.one(PIECES))
        elif kind < 5:
            parts.append(draws.one(WORDS))
        else:
            parts.append(draws.one(SCRIPTS))
    return draws.one(BORDERS) + draws.one([" ", "\n", "", "  "]).join(parts) + draws.one(BORDERS)


def _value(draws: Draws, depth: int = 0) -> Any:
    """Return a JSON value without null, which a normalized conversation never holds."""
    kind = draws.below(9 if depth < 3 else 6)
    if kind == 6:
        return [_value(draws, depth + 1) for _ in range(draws.below(4))]
    if kind > 6:
        return {
            draws.one(["a", "naïve", "x y", "city", "<|im_end|>"]): _value(draws, depth + 1)
            for _ in range(draws.below(3))
        }
    return draws.one([_text(draws), draws.below(1000), -1.5, 1e-7, True, False, 10**18, "", "Paris", [], {}, 1.0])


def _arguments(draws: Draws) -> dict[str, Any] | str:
    """Return a call's arguments: an object, or now and then a text that is not JSON."""
    if draws.once_in(25):
        return draws.one(["city=Paris", "", "{not json"])
    return {draws.one(["city", "unit", "größe", "a b", "q"]): _value(draws) for _ in range(draws.below(4))}


def _tool(draws: Draws) -> dict[str, Any]:
    """Return a tool's schema."""
    types = ["string", "integer", "number", "boolean", "array", "object", ["string", "integer"]]
    properties: dict[str, Any] = {}
    for name in ("city", "unit", "größe", "limit")[: draws.below(5)]:
        properties[name] = {"type": draws.one(types), "description": draws.one(WORDS)}
        if draws.once_in(3):
            properties[name]["enum"] = ["C", "F"]
        if draws.once_in(4):
            properties[name]["items"] = {"type": "string"}
    schema = {"type": "object", "properties": properties, "required": sorted(properties)[: draws.below(3)]}
    function = {"name": draws.one(NAMES), "description": _text(draws), "parameters": schema}
    return {"type": "function", "function": function}


def _calls(draws: Draws, most: int) -> list[dict[str, Any]]:
    """Return up to `most` calls of tools, made at once."""
    calls = []
    for number in range(1 + draws.below(most)):
        call: dict[str, Any] = {
            "type": "function",
            "function": {"name": draws.one(NAMES), "arguments": _arguments(draws)},
        }
        if draws.once_in(2):
            call["id"] = f"call_{number}"
        calls.append(call)
    return calls


def _output(draws: Draws, call: dict[str, Any]) -> dict[str, Any]:
    """Return the message with what a tool gave back."""
    content = _text(draws) if draws.once_in(2) else json.dumps({"ok": True, "größe": draws.below(99)})
    message = {"role": "tool", "content": content, "name": call["function"]["name"]}
    return message | ({"tool_call_id": call["id"]} if "id" in call else {})


def _assistant(draws: Draws, reasons: bool, spell: bool = True) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _text(draws, spell)}
    if reasons and not draws.once_in(3):
        message["reasoning_content"] = _text(draws, spell)
    return message


def _exchanges(draws: Draws, num_turns: int, reasons: bool = False, spell: bool = True) -> list[dict[str, Any]]:
    """Return turns of user and assistant; a system message comes before them now and then."""
    messages = [{"role": "system", "content": _text(draws, spell)}] if draws.once_in(3) else []
    for turn in range(num_turns):
        messages.append(
            _assistant(draws, reasons, spell) if turn % 2 else {"role": "user", "content": _text(draws, spell)}
        )
    return messages


def _plain(draws: Draws) -> Conversation:
    return {"messages": _exchanges(draws, draws.one([1, 2, 2, 2, 3, 4, 6, 8]))}


def _quiet(draws: Draws) -> Conversation:
    """Exchanges that spell no special token."""
    return {"messages": _exchanges(draws, draws.one([2, 2, 4, 6]), draws.once_in(2), spell=False)}


def _long(draws: Draws) -> Conversation:
    return {"messages": _exchanges(draws, 10 + draws.below(31), draws.once_in(2))}


def _reasoning(draws: Draws) -> Conversation:
    return {"messages": _exchanges(draws, draws.one([2, 4, 5, 6]), reasons=True)}


def _huge(draws: Draws, num_chars: int) -> Conversation:
    """A conversation with one content of about `num_chars` characters."""
    messages = _exchanges(draws, 4, draws.once_in(2))
    phrase = draws.one([*SCRIPTS[:14], " ", "\n", "a", "<think>", "ab ", "0"])
    draws.one(messages)["content"] = (phrase + draws.one(["", " ", "\n"])) * (1 + num_chars // (len(phrase) + 1))
    return {"messages": messages}


def _with_tools(draws: Draws) -> Conversation:
    """Rounds of calls, their outputs and replies; parallel calls, contents beside calls, calls without content."""
    most = draws.one([1, 1, 2, 4])
    messages = _exchanges(draws, draws.one([1, 1, 3]), draws.once_in(2))
    for _ in range(1 + draws.below(3)):
        call: dict[str, Any] = {"role": "assistant", "tool_calls": _calls(draws, most)}
        if not draws.once_in(3):
            call["content"] = draws.one(["", "", _text(draws)])
        if draws.once_in(3):
            call["reasoning_content"] = _text(draws)
        messages.append(call)
        messages += [_output(draws, each) for each in call["tool_calls"]]
        if not draws.once_in(4):
            messages.append(_assistant(draws, draws.once_in(3)))
            messages += [{"role": "user", "content": _text(draws)}] if draws.once_in(2) else []
    tools = [_tool(draws) for _ in range(draws.below(4))]
    return {"messages": messages} | ({"tools": tools} if tools else {})


def _disordered(draws: Draws) -> Conversation:
    """Messages of any roles in any order, none at all included."""
    messages = []
    for _ in range(draws.below(7)):
        role = draws.one(["system", "developer", "user", "user", "assistant", "assistant", "tool"])
        messages.append(_assistant(draws, True) if role == "assistant" else {"role": role, "content": _text(draws)})
    return {"messages": messages} | ({"tools": [_tool(draws)]} if draws.once_in(4) else {})


def _echoes(draws: Draws) -> Conversation:
    """Short replies that also stand earlier in the text, in the user's words and in the template's."""
    reply = draws.one(["a", "user", "assistant", "\n", "model", "yes", "im_start", "assistant\n"])
    messages = []
    for _ in range(1 + draws.below(4)):
        messages.append({"role": "user", "content": reply + draws.one(["", " ", reply])})
        messages.append({"role": "assistant", "content": reply})
    return {"messages": messages}


_KINDS: list[Callable[[Draws], Conversation]] = [
    *(_plain, _quiet, _quiet, _reasoning, _with_tools, _with_tools, _disordered, _echoes, _plain, _quiet),
    *(_plain, _quiet, _long, _reasoning, _with_tools, _reasoning, _plain, _quiet, _disordered, _with_tools),
]


def made_conversation(number: int) -> Conversation:
    """Return made conversation `number`, normalized."""
    draws = Draws(number)
    if number % 100 == 99:
        return _huge(draws, 300_000 if number % 1000 == 999 else 20_000)
    return _KINDS[number % len(_KINDS)](draws)


def made_conversations(count: int) -> Iterator[Conversation]:
    """Yield the first `count` made conversations."""
    return map(made_conversation, range(count))
