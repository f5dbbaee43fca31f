"""The faults that trainers' masks and packing had, each planted: what we make is right, and the check sees the fault.

What is compared is a text: a conversation as its ids decode, what is learned of it in brackets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from numpy.typing import NDArray

from tests.builders.chat_tokenizer import CHATML, FORGETFUL, MARKED, OBSERVING, write_chat_tokenizer
from tokenloom.chat.conversation import canonical
from tokenloom.chat.definition import ChatDefinition
from tokenloom.chat.encoding import ChatEncoder
from tokenloom.chat.layouts import normalized
from tokenloom.chat.template import ChatTemplate
from tokenloom.storage.formats.classes import ENDS_TURN, LAST_TURN, ROLE_BITS, TOOL_OUTPUT, learned_classes
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import ReferenceTokenizer

_UINT32 = np.dtype(np.uint32)
Learned = NDArray[np.bool_]

_TOOL = {"type": "function", "function": {"name": "ask", "description": "Ask.", "parameters": {"type": "object"}}}
_CALL = {"type": "function", "function": {"name": "ask", "arguments": {"n": 3}}}
_CONVERSATION: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Answer yes or no; assistant, yes?"},
        {"role": "user", "content": "Is 2 even?"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "Ask: is 3 even?"},
        {"role": "assistant", "reasoning_content": "I ask", "tool_calls": [_CALL]},
        {"role": "tool", "content": "no"},
        {"role": "assistant", "reasoning_content": "3 is odd", "content": "\n\n no "},
    ],
    "tools": [_TOOL],
}
_CHATML = (
    '<|im_start|>tool\n{"type": "function", "function": {"name": "ask", "description": "Ask.", '
    '"parameters": {"type": "object"}}}<|im_end|>\n'
    "<|im_start|>system\nAnswer yes or no; assistant, yes?<|im_end|>\n"
    "<|im_start|>user\nIs 2 even?<|im_end|>\n"
    "<|im_start|>assistant\n[[yes<|im_end|>]]\n"
    "<|im_start|>user\nAsk: is 3 even?<|im_end|>\n"
    '<|im_start|>assistant\n[[<think>I ask</think>{"name": "ask", "arguments": {"n": 3}}<|im_end|>]]\n'
    "<|im_start|>tool\nno<|im_end|>\n"
    "<|im_start|>assistant\n[[<think>3 is odd</think>\n\n no <|im_end|>]]\n"
)
_FORGETFUL = _CHATML.replace("<think>I ask</think>", "")
_OBSERVING = (
    "<|system|>\nAnswer yes or no; assistant, yes?<|user|>\nIs 2 even?<|assistant|>\n[[yes<|user|>]]\n"
    'Ask: is 3 even?<|assistant|>\n[[{"name": "ask", "arguments": {"n": 3}}<|observation|>]]\nno'
    "<|assistant|>[[\n\n\n no]] "  # no stop token: the space may be the template's
)


@dataclass(frozen=True)
class Made:
    """A conversation that tokenloom rendered and encoded, without its end-of-text token."""

    template: str
    conversation: dict[str, Any]
    tokenizer: ReferenceTokenizer
    ids: list[int]
    classes: NDArray[np.uint8]

    @property
    def learned(self) -> Learned:
        """What the default policy learns."""
        return learned_classes("assistant")[self.classes]

    @property
    def text(self) -> str:
        """The rendered text."""
        return self.tokenizer.decode(np.array(self.ids))

    def ends(self) -> list[int]:
        """Return where each token ends in the text, which is ASCII."""
        lengths = (len(self.tokenizer.decode(np.array([token]))) for token in self.ids)
        return list(accumulate(lengths))

    def overlapping(self, *parts: tuple[int, int]) -> Learned:
        """Return the tokens that overlap parts [start, end) of the text."""
        ends = self.ends()
        starts = [0, *ends[:-1]]
        found = [any(a < end and b > start for start, end in parts) for a, b in zip(starts, ends, strict=True)]
        return np.array(found)


class Maker:
    """Renders and encodes conversations with the small tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = load_tokenizer(write_chat_tokenizer(folder / "tokenizer.json"))
        self.library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def make(self, template: str, conversation: dict[str, Any]) -> Made:
        """Return a conversation's ids and classes."""
        stops = ("<|user|>", "<|observation|>") if template == OBSERVING else ()
        definition = ChatDefinition(template, special_tokens={"bos_token": "<bos>"}, stop_tokens=stops)
        encoder = ChatEncoder(definition, self.tokenizer)
        encoded = encoder.encode([encoder.render(canonical(conversation))], _UINT32)
        assert encoded.tokens[-1] == self.tokenizer.eot_id
        assert encoded.classes[-1] == 0
        return Made(template, conversation, self.tokenizer, encoded.tokens[:-1].tolist(), encoded.classes[:-1])

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text in which the spellings of tokens are tokens."""
        ids: list[int] = self.library.encode(text, add_special_tokens=False).ids
        return ids


def shown(made: Made, learned: Sequence[bool] | Learned, ids: Sequence[int] | None = None) -> str:
    """Return the text of ids, those of `made` by default, with brackets around what is learned."""
    ids = made.ids if ids is None else ids
    parts = []
    for is_learned, run in groupby(zip(ids, learned, strict=True), key=lambda pair: bool(pair[1])):
        text = made.tokenizer.decode(np.array([token for token, _ in run]))
        parts.append(f"[[{text}]]" if is_learned else text)
    return "".join(parts)


# What others do, by fault: each returns a text as `shown` does.
def _all(made: Made, _: Maker) -> str:
    """2, a template without marks: everything is learned."""
    return shown(made, np.ones(len(made.ids), bool))


def _nothing(made: Made, _: Maker) -> str:
    """2, a template without marks: nothing is learned."""
    return shown(made, np.zeros(len(made.ids), bool))


def _prefixes(made: Made, maker: Maker) -> str:
    """3, a template that writes earlier turns anew: spans are lengths of growing prefixes."""
    messages = made.conversation["messages"]
    render = ChatTemplate(ChatDefinition(made.template)).render
    tools = made.conversation.get("tools")
    parts = []
    for end, message in enumerate(messages):
        if message["role"] == "assistant":
            start = len(render(messages[:end], tools, add_generation_prompt=True))
            parts.append((start, len(render(messages[: end + 1], tools).rstrip("\n"))))
    return shown(made, made.overlapping(*parts))


def _no_stop(made: Made, _: Maker) -> str:
    """4, the token that ends a turn is not learned."""
    return shown(made, made.learned & (made.classes & ENDS_TURN == 0))


def _no_padding(made: Made, maker: Maker) -> str:
    """4, the token that ends a turn is also the padding, which is never learned."""
    return shown(made, made.learned & (np.array(made.ids) != maker.ids("<|im_end|>")[0]))


def _next_message(made: Made, maker: Maker) -> str:
    """4, the token that ends a turn belongs to the next message."""
    starts = [maker.ids(token)[0] for token in ("<|user|>", "<|observation|>")]
    return shown(made, made.learned & ~np.isin(made.ids, starts))


def _two_begins(made: Made, maker: Maker) -> str:
    """5, the tokenizer adds a begin token to the template's."""
    begin = maker.ids("<bos>")
    return shown(made, [False, *made.learned], begin + made.ids)


def _last(made: Made, _: Maker) -> str:
    """6, only the last turn is learned."""
    return shown(made, made.learned & (made.classes & LAST_TURN > 0))


def _first(made: Made, _: Maker) -> str:
    """6, only the first turn is learned."""
    learned = made.learned
    first = int(np.argmax(learned))
    end = first + int(np.argmin(learned[first:]))
    return shown(made, learned & (np.arange(len(learned)) < end))


def _tool_outputs(made: Made, _: Maker) -> str:
    """7, what a tool said is learned."""
    return shown(made, made.learned | (made.classes & ROLE_BITS == TOOL_OUTPUT))


def _no_tools(made: Made, maker: Maker) -> str:
    """7, the template gets no tools."""
    other = maker.make(made.template, {"messages": made.conversation["messages"]})
    return shown(other, other.learned)


def _searched(made: Made, _: Maker) -> str:
    """9, a reply is learned where its words first stand in the text."""
    parts = []
    for message in made.conversation["messages"]:
        if message["role"] == "assistant" and message.get("content"):
            start = made.text.index(message["content"])
            parts.append((start, start + len(message["content"])))
    return shown(made, made.overlapping(*parts))


def _with_nulls(made: Made, maker: Maker) -> str:
    """11, keys that Arrow made up for a tool are in the prompt."""
    other = maker.make(made.template, made.conversation | {"tools": _through_arrow(made.conversation)["tools"]})
    return shown(other, other.learned)


def _through_arrow(conversation: dict[str, Any]) -> dict[str, Any]:
    """Return a conversation as a table gives it back, beside one whose tools have other keys."""
    function = {"name": "other", "description": "Other.", "parameters": {"type": "object", "required": ["x"]}}
    beside = conversation | {"tools": [{"type": "function", "function": function | {"strict": True}}]}
    found: dict[str, Any] = pa.Table.from_pylist([conversation, beside]).to_pylist()[0]
    return found


def _joined(made: Made, maker: Maker) -> str:
    """13, prompt and reply are encoded one by one, so a token of white space between them is lost."""
    prompt, reply = made.text.rsplit("<|assistant|>\n", 1)
    begin = maker.ids(f"{prompt}<|assistant|>\n")
    ids = begin + maker.ids(reply)
    return shown(made, [*made.learned[: len(begin) - 1], False, *[True] * (len(ids) - len(begin))], ids)


_FAULTS: list[tuple[Callable[[Made, Maker], str], str, str]] = [
    (_all, CHATML, _CHATML),
    (_nothing, CHATML, _CHATML),
    (_prefixes, FORGETFUL, _FORGETFUL),
    (_no_stop, MARKED, _CHATML),
    (_no_padding, CHATML, _CHATML),
    (_next_message, OBSERVING, _OBSERVING),
    (_two_begins, f"<bos>{CHATML}", f"<bos>{_CHATML}"),
    (_last, CHATML, _CHATML),
    (_first, MARKED, _CHATML),
    (_tool_outputs, CHATML, _CHATML),
    (_no_tools, MARKED, _CHATML),
    (_searched, CHATML, _CHATML),
    (_with_nulls, CHATML, _CHATML),
    (_joined, OBSERVING, _OBSERVING),
]


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """What renders and encodes."""
    return Maker(tmp_path_factory.mktemp("maker"))


@pytest.mark.parametrize(("fault", "template", "expected"), _FAULTS)
def test_the_mask_of_a_conversation_is_right_and_a_wrong_one_is_seen(
    fault: Callable[[Made, Maker], str], template: str, expected: str, maker: Maker
) -> None:
    made = maker.make(template, _CONVERSATION)
    assert shown(made, made.learned) == expected
    assert made.ids == maker.ids(made.text)
    assert fault(made, maker) != expected


def test_keys_that_arrow_makes_up_reach_no_template(maker: Maker) -> None:
    row = _through_arrow(_CONVERSATION)
    assert row["tools"][0]["function"]["strict"] is None
    made = maker.make(CHATML, normalized(row["messages"], "messages", row["tools"]))
    assert shown(made, made.learned) == _CHATML
