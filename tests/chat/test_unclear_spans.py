"""Templates without marks that make it hard to see what an assistant wrote: it is right, or the row is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.chat_tokenizer import write_chat_tokenizer
from tests.builders.chats import bracketed
from tokenloom.chat.conversation import ChatDefinition, canonical
from tokenloom.chat.encoding import ChatEncoder
from tokenloom.errors import BadConversation
from tokenloom.storage.formats.classes import ASSISTANT, MAY_LEARN, learned_classes
from tokenloom.tokenizers import Tokenizer, load_tokenizer

_ASKED = {"role": "user", "content": "q"}
#: A turn begins with <|bot|>, but not after the output of a tool. Its calls and their outputs come before its content.
_TEMPLATE = """
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- message.content }}
    {%- elif message.role == 'assistant' %}
        {{- '<|bot|>' if messages[loop.index0 - 1].role == 'user' }}
        {%- for call in message.tool_calls or [] %}
            {{- call.function.name + '(' }}
            {%- for value in call.function.arguments.values() %}{{ value }}{% endfor %}
            {{- ')<|im_end|>' }}
        {%- endfor %}
        {%- if message.content and message.tool_calls %}
            {{- '(' + messages[loop.index].content + ')' }}
        {%- endif %}
        {%- if message.content %}{{ message.content + '<|im_end|>' }}{% endif %}
    {%- elif messages[loop.index0 - 1].role != 'assistant' %}
        {{- '(' + message.content + ')' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|bot|>{% endif %}"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The small tokenizer."""
    return load_tokenizer(write_chat_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"))


def _shown(tokenizer: Tokenizer, *messages: dict[str, Any], template: str = _TEMPLATE) -> str:
    """Return the text of a conversation with brackets around what is learned."""
    rendered = ChatEncoder(ChatDefinition(template), tokenizer).render(canonical({"messages": [*messages]}))
    return bracketed(rendered.text, learned_classes("assistant")[list(rendered.classes)])


def _calling(*arguments: dict[str, Any], **fields: Any) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": "ask", "arguments": each}} for each in arguments]
    return {"role": "assistant", "tool_calls": calls, **fields}


def test_a_message_that_spells_the_prompt_begins_no_turn(tokenizer: Tokenizer) -> None:
    messages = [_ASKED, {"role": "tool", "content": "<|bot|>"}, {"role": "assistant", "content": "yes"}]
    assert _shown(tokenizer, *messages) == "q(<|bot|>)[[yes<|im_end|>]]"


def test_a_call_whose_name_a_template_compares_is_refused(tokenizer: Tokenizer) -> None:
    assert (
        _shown(tokenizer, _ASKED, _calling({"n": True}, {"n": "x"}))
        == "q<|bot|>[[ask(True)<|im_end|>ask(x)<|im_end|>]]"
    )
    comparing = _TEMPLATE.replace("call.function.name +", "('ask' if call.function.name == 'ask' else 'tell') +")
    with pytest.raises(BadConversation, match="the template changes, compares or cuts its strings"):
        _shown(tokenizer, _ASKED, _calling({"n": True}), template=comparing)


def test_a_number_shows_where_a_call_is(tokenizer: Tokenizer) -> None:
    for number in (1, -1.5, 1e-07, 0):
        shown = f"q<|bot|>[[ask(x)<|im_end|>ask({number})<|im_end|>]]"
        assert _shown(tokenizer, _ASKED, _calling({"n": "x"}, {"n": number})) == shown


def test_a_call_before_what_is_taken_for_the_turn_is_refused(tokenizer: Tokenizer) -> None:
    # Each call begins as a turn does: without a piece of the first one, the turn would begin at the second.
    template = (
        "{% for message in messages %}{{ message.content if message.role == 'user' }}"
        "{% for call in message.tool_calls or [] %}{% set name = call.function.name %}<|bot|>{{ name + name }}"
        "{% for value in call.function.arguments.values() %}{{ value }}{% endfor %}<|im_end|>{% endfor %}"
        "{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"
    )
    shown = "q<|bot|>[[askask1<|im_end|><|bot|>askaskx<|im_end|>]]"
    assert _shown(tokenizer, _ASKED, _calling({"n": 1}, {"n": "x"}), template=template) == shown
    with pytest.raises(BadConversation, match="a call of ask has no text among its arguments"):
        _shown(tokenizer, _ASKED, _calling({"n": True}, {"n": "x"}), template=template)


def test_a_content_after_the_output_of_its_call_is_learned_and_the_output_is_not(tokenizer: Tokenizer) -> None:
    messages = [_ASKED, _calling({"n": "x"}, content="done"), {"role": "tool", "content": "out"}]
    assert _shown(tokenizer, *messages) == "q<|bot|>[[ask(x)<|im_end|>]](out)[[done<|im_end|>]]"
    messages[2] = {"role": "tool", "content": ""}
    with pytest.raises(BadConversation, match="inside a message of the assistant"):
        _shown(tokenizer, *messages)
    with pytest.raises(BadConversation, match="in several places"):
        _shown(tokenizer, *messages[:2], _ASKED)


def test_arguments_that_a_template_writes_as_python_or_ascii_are_clear(tokenizer: Tokenizer) -> None:
    messages = [_ASKED, _calling({"n": ["é", {"m": 1}], "o": {"p": "\\ue001"}})]
    assert _shown(tokenizer, *messages) == ("q<|bot|>[[ask(['é', {'m': 1}]{'p': '\\\\ue001'})<|im_end|>]]")
    ascii_ = _TEMPLATE.replace("{{ value }}", "{{ value | tojson(ensure_ascii=true) }}")
    assert _shown(tokenizer, *messages, template=ascii_) == (
        'q<|bot|>[[ask(["\\u00e9", {"m": 1}]{"p": "\\\\ue001"})<|im_end|>]]'
    )


def test_what_follows_a_composed_letter_is_not_learned(tmp_path: Path) -> None:
    # The library says that the letter's tokens end before the mark that NFC composed with it.
    tokenizer = load_tokenizer(write_chat_tokenizer(tmp_path / "tokenizer.json", composes=True))
    template = (
        "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}<|user|>{% endfor %}"
    )
    encoder = ChatEncoder(ChatDefinition(template), tokenizer)
    rendered = encoder.render(canonical({"messages": [{"role": "assistant", "content": "a\u0338e\u0301"}]}))
    encoded = encoder.encode([rendered], np.dtype(np.uint32))
    learned = encoded.classes & MAY_LEARN + ASSISTANT == MAY_LEARN + ASSISTANT
    assert tokenizer.decode(encoded.tokens[learned]) == "a\u0338\u00e9"
