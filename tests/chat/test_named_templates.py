"""The templates that `chat.template` names: what they write, what of that is learned, and what they refuse."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.builders.chats import bracketed, chat_spec, conversation
from tests.builders.datasets import build
from tests.builders.vocabularies import encoding_of
from tokenloom.chat.conversation import ChatDefinition, canonical
from tokenloom.chat.rendering import ChatRenderer, stop_as_text
from tokenloom.chat.template import ChatTemplate
from tokenloom.errors import BadConversation
from tokenloom.spec.blocks import TEMPLATES
from tokenloom.storage.formats.classes import learned_classes
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import AddedToken

_MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hi\n"},
    {"role": "assistant", "content": " Hello! "},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": ""},
]
#: What each writes of them, the learned parts in brackets, and the tokens of its family.
_WRITTEN = {
    "chatml": (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi\n<|im_end|>\n"
        "<|im_start|>assistant\n[[ Hello! <|im_end|>]]\n<|im_start|>user\nWhy?<|im_end|>\n"
        "<|im_start|>assistant\n[[<|im_end|>]]\n",
        ["<|im_start|>", "<|im_end|>"],
    ),
    "gemma": (
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n[[Hello!<end_of_turn>]]\n"
        "<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n[[<end_of_turn>]]\n",
        ["<bos>", "<start_of_turn>", "<end_of_turn>"],
    ),
    "llama3": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[[Hello!<|eot_id|>]]"
        "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[[<|eot_id|>]]",
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    ),
    "phi3": (
        "<|system|>\nBe brief.<|end|>\n<|user|>\n Hi\n<|end|>\n<|assistant|>\n[[ Hello! <|end|>]]\n"
        "<|user|>\nWhy?<|end|>\n<|assistant|>\n[[<|end|>]]\n<|endoftext|>",
        ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"],
    ),
    "zephyr": (
        "<|system|>\nBe brief.</s>\n<|user|>\n Hi\n</s>\n<|assistant|>\n[[ Hello! </s>]]\n<|user|>\nWhy?</s>\n"
        "<|assistant|>\n[[</s>]]\n",
        ["</s>"],
    ),
}


def named_definition(name: str) -> ChatDefinition:
    """Return the definition with a template of ours."""
    return ChatDefinition((resources.files("tokenloom.chat") / "templates" / f"{name}.jinja").read_text("utf-8"))


def test_every_template_is_named_and_tried() -> None:
    files = {file.name for file in (resources.files("tokenloom.chat") / "templates").iterdir()}
    assert files == {f"{name}.jinja" for name in TEMPLATES}
    assert set(_WRITTEN) == set(TEMPLATES)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_stop_that_is_no_token_of_gpt2_is_named_with_its_tokens(
    name: str, vocabulary: Callable[[str], dict[str, Any]]
) -> None:
    definition = vocabulary("gpt2")
    gpt2 = load_tokenizer(definition)
    stop = re.findall(r"Hello! ?(<.*?>)", _WRITTEN[name][0])[0]
    num_tokens = len(encoding_of(definition).encode(f"a{stop}", disallowed_special=())) - 1
    place = f"{stop!r}, which ends a turn in the template, is not a token of {gpt2.name}"
    expected = f"{place} but {num_tokens} ordinary tokens"
    assert stop_as_text(named_definition(name), gpt2).startswith(expected)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_named_template_writes_the_format_of_its_family_and_learns_the_turns(name: str) -> None:
    expected, tokens = _WRITTEN[name]
    added = [AddedToken(text, number, special=True) for number, text in enumerate(tokens)]
    rendered = ChatRenderer(named_definition(name), added, name).render(canonical({"messages": _MESSAGES}))
    flags = learned_classes("assistant")[list(rendered.classes)]
    assert bracketed(rendered.text, flags) == expected
    assert (rendered.num_turns, rendered.num_ended) == (2, 2)
    prompt = ChatTemplate(named_definition(name)).render(_MESSAGES[:4], add_generation_prompt=True)
    assert rendered.text.startswith(prompt)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("more", [{"reasoning_content": "Hm."}, {"tool_calls": [{"type": "function"}]}])
def test_a_named_template_refuses_what_its_family_does_not_write(name: str, more: Any) -> None:
    with pytest.raises(BadConversation, match=f"{name} has .* give a template that writes them"):
        ChatTemplate(named_definition(name)).render([_MESSAGES[1], _MESSAGES[2] | more])


def test_a_build_names_its_template(tmp_path: Path) -> None:
    spec = chat_spec(tmp_path, [conversation("the dog", "a fox")], chat={"template": "chatml"})
    assert build(spec).facts.manifest.spec["chat"]["template"] == named_definition("chatml").template  # type: ignore[index]
