"""Conversations as ids and classes: equal to transformers' ids, and the right class for each token."""

from __future__ import annotations

import numpy as np

from tokenloom.chat.conversation import canonical
from tokenloom.chat.definition import ChatDefinition
from tokenloom.chat.encoding import ChatEncoder
from tokenloom.storage.formats.classes import learned_classes
from tokenloom.tokenizers import load_tokenizer

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_the_assistant_and_the_end_of_its_turn_are_learned() -> None:
    tokenizer = load_tokenizer(
        {"kind": "tiktoken", "name": "gpt2"},
    )
    encoder = ChatEncoder(ChatDefinition(_CHATML), tokenizer)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello you"}]
    encoded = encoder.encode([encoder.render(canonical({"messages": messages}))], np.dtype("<u2"))
    learned = encoded.tokens[learned_classes("assistant")[encoded.classes]]
    assert tokenizer.decode(learned) == "hello you"
