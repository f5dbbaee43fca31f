"""Chat templates of real models against the oracle: ids, and the characters that are learned.

TOKENLOOM_CHAT_TEMPLATES names a folder of *.jinja; docs/project/evidence/templates.md says where they come from, and
what was found. Without a folder, small templates of the same shapes are compared.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.builders.chat_oracle import Oracle, Undecided, renderer
from tests.builders.chat_styles import STYLES
from tests.builders.chat_styles import template as small_template
from tests.builders.chat_tokenizer import CHATML
from tests.builders.made_data import made_calls
from tests.counts import NEEDS_DATA, data_folder
from tokenloom.chat.conversation import ChatDefinition, canonical, parse
from tokenloom.chat.encoding import ChatEncoder
from tokenloom.chat.layouts import normalized
from tokenloom.errors import BadConversation
from tokenloom.storage.formats.classes import learned_classes
from tokenloom.tokenizers import load_tokenizer

_FOLDER = os.environ.get("TOKENLOOM_CHAT_TEMPLATES", "")
_TOKENS = re.compile(
    r"<\|[^|<>\s{}']+\|>|<｜[^｜<>\s{}]+｜>|<[a-z_]+\|>|<\|[a-z_]+>|\[/?[A-Z_]{3,}\]|</?s>|<bos>|<eos>|<pad>|<sop>|\[gMASK\]"
    r"|\]~!?b[\][]|\[e~\[|</?start_of_turn>|<end_of_turn>|\]<\][^\[]+\[>\[|<\|[^|<>\s{}']+▁[^|]+\|>|<(?:BOS|EOS)_TOKEN>|<sep>|\[\|[^|\]]+\|\]"
)
_PLAIN = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")
_STOPS = (
    *("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>"),
    *("<|return|>", "<|end|>", "<|eot|>", "<|endoftext|>", "</s>"),
)
_Tokens = tuple[list[str], list[str], dict[str, str], str]


def _call(number: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "id": f"call0000{number}", "function": {"name": "get_weather", "arguments": arguments}}


def _said(content: str = "", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def _output(number: str, content: str = '{"degrees": 21}') -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": f"call0000{number}", "name": "get_weather"}


_SYSTEM, _USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the weather?"}
_MORE = {"role": "user", "content": "And tomorrow? "}
_BONN, _ROME = _call("1", city="Bonn", days=3), _call("2", city="Rome", units=["C", "F"])
_CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "A city"}}}
_WEATHER = {"name": "get_weather", "description": "The weather of a city", "parameters": _CITY}
_TOOLS = [{"type": "function", "function": _WEATHER}]
_THINK, _HM = "<think>\nOkay, so</think>\n\nHi", "<think>\nHm.\n</think>\n\nRain"
_LOOKS, _SO = {"reasoning_content": "I look."}, {"reasoning_content": "So"}
#: By name: what is said after a user.
_MADE: dict[str, list[dict[str, Any]]] = {
    "plain": [_said("It is 21 degrees.")],
    "turns": [_said("Sunny."), _MORE, _said("Rain, at 12."), _USER, _said("Snow")],
    "white space": [_said("\n\n  Sunny. "), _MORE, _said(" Rain\n")],
    "think": [_said(_THINK), _MORE, _said(_HM)],
    "empty": [_said(""), _MORE, _said("Rain")],
    "last is empty": [_said("Sunny."), _MORE, _said("")],
    "reasoning": [_said("Sunny.", **_LOOKS), _MORE, _said("Rain", **_SO)],
    "reasoning alone": [_said("", **_LOOKS)],
    "a call": [_said("", tool_calls=[_BONN]), _output("1"), _said("It is 21.")],
    "a call is last": [_said("", tool_calls=[_BONN])],
    "content and a call": [_said("I look.", tool_calls=[_BONN]), _output("1"), _said("It is 21.")],
    "two calls": [_said("", tool_calls=[_BONN, _ROME]), _output("1"), _output("2", "hot"), _said("Hot.")],
    "calls and turns": [
        *(_said("", tool_calls=[_BONN]), _output("1"), _said("\nIt is 21."), _MORE),
        *(_said("", tool_calls=[_ROME]), _output("2", " hot "), _said("Hot."), _MORE, _said("Bye.")),
    ],
    "reasoning and a call": [_said("", tool_calls=[_BONN], **_LOOKS), _output("1"), _said("21.", **_SO)],
}


@dataclass
class _Result:
    """What became of the conversations of a template."""

    rendered: int = 0
    ids: int = 0
    learned: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    undecided: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)


def _conversations() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, messages in _MADE.items():
        tools = {"tools": _TOOLS} if any("tool_calls" in one for one in messages) else {}
        for system in ([], [_SYSTEM]):
            made = {"messages": [*system, _USER, *messages]} | tools
            yield f"{name}, with system" if system else name, made
    for number, (name, text) in enumerate(_files()):
        yield f"{name} {number}", parse(text)


@lru_cache
def _files() -> list[tuple[str, str]]:
    """Return a few conversations with tools, by name: of the folder of real data, or made where it is missing."""
    folder = data_folder("TOKENLOOM_TEST_DATA")
    rows = made_calls(6)
    if folder is not None:
        rows = json.loads((folder / "chat" / "glaive_toolcall_en_demo.json").read_text())[:6]
    return [("glaive", canonical(normalized(row["conversations"], "sharegpt", row.get("tools")))) for row in rows]


def _tokenizer_json(special: list[str], plain: list[str]) -> str:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    made.add_tokens([AddedToken(token, normalized=False) for token in plain])
    return made.to_str()


def _tokens(template: str) -> _Tokens:
    """Return special and other added tokens of a template, those that it knows by name, and a tokenizer.json."""
    eos = next(token for token in _STOPS if token in {*_TOKENS.findall(template), "</s>"})
    names = {"bos_token": "<s>", "eos_token": eos, "pad_token": eos, "unk_token": "<s>"}
    texts = [template]  # a template may make tokens from parts, so what it writes counts too
    for _, conversation in islice(_conversations(), 2 * len(_MADE)):
        with suppress(Exception):  # a template can raise anything
            texts.append(renderer(template, names, conversation.get("tools"))(conversation["messages"]))
    special = list(dict.fromkeys([*_TOKENS.findall("\n".join(texts)), "<s>", "</s>"]))
    plain = [token for token in dict.fromkeys(_PLAIN.findall(template)) if token not in special]
    return special, plain, names, _tokenizer_json(special, plain)


def compare(template: str) -> _Result:
    """Compare a template with the oracle; with chat.stop_tokens if it needs them."""
    tokens = _tokens(template)
    result = _compared(template, tokens, ())
    needs_stops = any("chat.stop_tokens" in why for why in result.refused)
    return _compared(template, tokens, (tokens[2]["eos_token"],)) if needs_stops else result


def _compared(template: str, tokens: _Tokens, stops: tuple[str, ...]) -> _Result:
    """Render and encode all conversations with a template; compare with the oracle."""
    special, plain, names, made = tokens
    tokenizer = load_tokenizer({"kind": "huggingface", "eot": names["eos_token"]}, {"tokenizer.json": made.encode()})
    definition = ChatDefinition(template, date="2026-11-25", special_tokens=names, stop_tokens=stops)
    library, encoder = Tokenizer.from_str(made), ChatEncoder(definition, tokenizer)
    result, table = _Result(), learned_classes("assistant")
    for name, made_one in _conversations():
        conversation = parse(canonical(made_one))
        render = renderer(template, names, conversation.get("tools"))
        try:
            text = render(conversation["messages"])
        except Exception:  # noqa: BLE001  (a template can raise anything, for transformers too)
            continue
        try:
            rendered = encoder.render(canonical(made_one))
        except BadConversation as error:
            result.refused[re.sub(r".*not certain: |; leave it out.*", "", str(error))] += 1
            continue
        result.rendered += 1
        encoded = encoder.encode([rendered], np.dtype(np.uint32))
        expected = library.encode(rendered.text, add_special_tokens=False).ids
        result.ids += encoded.tokens[:-1].tolist() == expected and rendered.text == text
        try:
            turns = Oracle(render, stops or special, [*special, *plain]).learned(conversation["messages"])[1]
        except Undecided as error:
            result.undecided.append(f"{name}: {error}")
            continue
        mine = "".join(
            "\0" if table[kind] else char for char, kind in zip(rendered.text, rendered.classes, strict=True)
        )
        theirs = list(text)
        for start, end in turns:
            theirs[start:end] = "\0" * (end - start)
        if mine == "".join(theirs):
            result.learned += 1
        else:
            result.different.append(f"{name}:\n  {_shown(text, mine, theirs)}\n  {_shown(text, theirs, mine)}")
    return result


def _shown(text: str, learned: Sequence[str], other: Sequence[str]) -> str:
    """Return a part of a text around the first difference, with brackets around what is learned."""
    first = next(place for place, pair in enumerate(zip(learned, other, strict=True)) if pair[0] != pair[1])
    part = slice(max(0, first - 80), first + 200)
    marked = [f"⟦{char}⟧" if mark == "\0" else char for char, mark in zip(text[part], learned[part], strict=True)]
    return repr("".join(marked).replace("⟧⟦", ""))


@pytest.mark.parametrize("style", [*STYLES, "reasoning"])
def test_small_templates_learn_what_the_oracle_says(style: str) -> None:
    result = compare(CHATML if style == "reasoning" else small_template(style, generation=False))
    assert (result.different, result.undecided, result.ids) == ([], [], result.rendered)
    assert result.rendered >= 13


_PATHS = sorted(Path(_FOLDER).glob("*.jinja")) if _FOLDER else []
#: Why rows differ, by a part of the name of their template and the beginning of their own.
_EXPLAINED = {
    ("R1-Distill-Qwen", "calls and turns"): "it writes no header before a second call, which begins with its name",
    ("command-r-plus", ""): "with stop_tokens, the oracle takes an instruction after the last turn for a part of it",
    ("diffusion_gemma", "content and a call"): "the oracle takes tool output inside a turn for a part of it",
}


@pytest.mark.skipif(not _PATHS, reason=f"{NEEDS_DATA}: set TOKENLOOM_CHAT_TEMPLATES to a folder of *.jinja")
@pytest.mark.parametrize("path", _PATHS, ids=lambda path: path.stem)
def test_templates_of_real_models_learn_what_the_oracle_says(path: Path) -> None:
    text = path.read_text("utf-8")
    if "endgeneration" in text:
        pytest.skip("it says itself what is learned, which tests/chat/test_transformers.py compares")
    result = compare(text)
    assert result.ids == result.rendered
    explained = tuple(name for part, name in _EXPLAINED if part in path.stem)
    assert [one for one in result.different if not one.startswith(explained)] == []
