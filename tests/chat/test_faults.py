"""One conversation with everything at which trainers' masks went wrong, in templates of five kinds.

What is compared is a text: a conversation as its ids decode, what is learned of it in brackets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers

from tests.builders.chat_tokenizer import CHATML, FORGETFUL, MARKED, OBSERVING, write_chat_tokenizer
from tests.builders.chats import bracketed
from tokenloom.chat.conversation import ChatDefinition, canonical
from tokenloom.chat.encoding import ChatEncoder
from tokenloom.chat.layouts import normalized
from tokenloom.storage.formats.classes import learned_classes
from tokenloom.tokenizers import load_tokenizer

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


class Maker:
    """Renders and encodes conversations with the small tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = load_tokenizer(write_chat_tokenizer(folder / "tokenizer.json"))
        self.library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def shown(self, template: str, conversation: dict[str, Any]) -> str:
        """Return the text of a conversation as its ids decode, with brackets around what is learned by default."""
        stops = ("<|user|>", "<|observation|>") if template == OBSERVING else ()
        definition = ChatDefinition(template, special_tokens={"bos_token": "<bos>"}, stop_tokens=stops)
        encoder = ChatEncoder(definition, self.tokenizer)
        encoded = encoder.encode([encoder.render(canonical(conversation))], np.dtype(np.uint32))
        assert (encoded.tokens[-1], encoded.classes[-1]) == (self.tokenizer.eot_id, 0)
        ids, learned = encoded.tokens[:-1].tolist(), learned_classes("assistant")[encoded.classes[:-1]]
        text = self.tokenizer.decode(encoded.tokens[:-1])
        assert ids == self.library.encode(text, add_special_tokens=False).ids  # spellings of tokens are tokens there
        return bracketed(ids, learned, lambda run: self.tokenizer.decode(np.array(run)))


def _through_arrow(conversation: dict[str, Any]) -> dict[str, Any]:
    """Return a conversation as a table gives it back, beside one whose tools have other keys."""
    function = {"name": "other", "description": "Other.", "parameters": {"type": "object", "required": ["x"]}}
    beside = conversation | {"tools": [{"type": "function", "function": function | {"strict": True}}]}
    found: dict[str, Any] = pa.Table.from_pylist([conversation, beside]).to_pylist()[0]
    return found


_RENDERED = {
    "chatml": (CHATML, _CHATML),
    "a begin token": (f"<bos>{CHATML}", f"<bos>{_CHATML}"),
    "generation": (MARKED, _CHATML),
    "earlier reasoning left out": (FORGETFUL, _FORGETFUL),
    "the next header ends a turn": (OBSERVING, _OBSERVING),
}


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """What renders and encodes."""
    return Maker(tmp_path_factory.mktemp("maker"))


@pytest.mark.parametrize("name", _RENDERED)
def test_ids_and_mask_of_a_conversation(name: str, maker: Maker) -> None:
    template, expected = _RENDERED[name]
    assert maker.shown(template, _CONVERSATION) == expected


def test_keys_that_arrow_makes_up_reach_no_template(maker: Maker) -> None:
    row = _through_arrow(_CONVERSATION)
    assert row["tools"][0]["function"]["strict"] is None
    assert maker.shown(CHATML, normalized(row["messages"], "messages", row["tools"])) == _CHATML
