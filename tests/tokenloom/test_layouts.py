"""The normalized form of conversations in each layout, what identifies them, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tokenloom.chat.conversation import canonical, content_hashes, parse
from tokenloom.chat.layouts import normalized, recognized
from tokenloom.errors import BadConversation

_HI = {"content": "Hi", "role": "user"}
_HELLO = {"content": "Hello!", "role": "assistant"}
_CALL = {"type": "function", "function": {"name": "add", "arguments": {"b": 2, "a": 1}}}
_TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def _messages(*messages: Any, tools: Any = None, layout: str = "messages") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = normalized(list(messages), layout, tools)["messages"]
    return found


def _hash(conversation: dict[str, Any]) -> list[int]:
    hashes: list[int] = content_hashes(pa.array([canonical(conversation)]))[0].tolist()
    return hashes


def _problem(value: Any, layout: str = "messages", tools: Any = None) -> str:
    with pytest.raises(BadConversation) as caught:
        canonical(normalized(value, layout, tools))
    assert caught.value.reason == "not_conversation"
    return str(caught.value)


@pytest.mark.parametrize(
    ("layout", "value"),
    [
        ("messages", [_HI, _HELLO]),
        ("messages", json.dumps([_HI, _HELLO])),
        ("messages", {"messages": [_HI, _HELLO], "tools": []}),
        ("messages", [{**_HI, "tool_calls": None, "name": None}, {**_HELLO, "weight": 1, "tool_calls": []}]),
        (
            "messages",
            [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "value": "i"}]}, _HELLO],
        ),
        ("sharegpt", [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]),
        ("sharegpt", {"conversations": [{"from": "user", "value": "Hi"}, {"from": "bot", "value": "Hello!"}]}),
        ("alpaca", {"instruction": "Hi", "input": "", "output": "Hello!", "system": None, "history": None}),
        ("prompt_completion", {"prompt": "Hi", "completion": "Hello!"}),
        ("prompt_completion", {"prompt": [_HI], "completion": [_HELLO]}),
    ],
)
def test_every_layout_becomes_the_same_normalized_form(layout: str, value: Any) -> None:
    assert recognized([None, value]) == layout
    found = canonical(normalized(value, layout))
    assert found == '{"messages":[{"content":"Hi","role":"user"},{"content":"Hello!","role":"assistant"}]}'
    assert normalized(parse(found), "messages") == parse(found)
