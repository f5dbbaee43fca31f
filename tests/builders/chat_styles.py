"""Small chat templates, one of each style, and a small tokenizer with the tokens that they write.

Each template has its assistant's words between `[[` and `]]`, which become a block of `generation`, or nothing.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|head|>", "<|/head|>", "<|eot|>", "<|user|>", "<|assistant|>"),
    *("<|observation|>", "[INST]", "[/INST]", "<|start|>", "<|channel|>", "<|message|>"),
    *("<|end|>", "<|call|>", "<|ret|>"),
)
ORDINARY = ("<think>", "</think>", "<tool_call>", "</tool_call>", "  ", "\n\n")

_CHATML = """{% for message in messages %}
<|im_start|>{{ message.role }}
{% set text = message.content + '<|im_end|>' %}
{% if message.role == 'assistant' %}[[{{ text }}]]{% else %}{{ text }}{% endif %}

{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""

_HEADERS = (
    "{{ bos_token }}{% for message in messages %}{{ '<|head|>' + message.role + '<|/head|>\\n\\n' }}"
    "{% set text = message.content | trim + '<|eot|>' %}"
    "{% if message.role == 'assistant' %}[[{{ text }}]]{% else %}{{ text }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\\n\\n' }}{% endif %}"
)

# The token that begins the next message ends a turn.
_NEXT = (
    "{% for message in messages %}"
    "{% set before = messages[loop.index0 - 1].role if loop.index0 else '' %}"
    "{% set names = {'user': '<|user|>', 'tool': '<|observation|>', 'assistant': '<|assistant|>'} %}"
    "{% if before != 'assistant' or message.role == 'assistant' %}{{ names[message.role] }}{% endif %}"
    "{% if message.role == 'assistant' %}[[{{ '\\n' + message.content.strip() }}"
    "{% if not loop.last and messages[loop.index].role != 'assistant' %}"
    "{{ names[messages[loop.index].role] }}{% endif %}]]"
    "{% else %}{{ '\\n' + message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# No generation prompt: what the user says ends with a token.
_INSTRUCT = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}"
    "{{ '[INST] ' + message.content + ' [/INST]' }}{% elif message.role == 'assistant' %}"
    "{{ ' ' }}[[{{ message.content | trim }}{{ '</s>' }}]]{% else %}{{ raise_exception('Only two roles') }}{% endif %}"
    "{% endfor %}"
)

# Earlier reasoning is left out, calls are written as JSON, outputs come in a message of the user.
_THINKING = (
    "{% set ns = namespace(last=0) %}{% for message in messages %}{% if message.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% set content = message.content %}"
    "{{ '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' }}"
    "{% if message.role == 'assistant' %}[[{% set thought = message.reasoning_content or '' %}"
    "{% if not thought and '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{% if loop.index0 > ns.last and thought %}"
    "{{ '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}"
    "{{ content }}{% for call in message.tool_calls or [] %}"
    '{{ \'\\n<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>' }}]]{{ '\\n' }}"
    "{% elif message.role == 'tool' %}{{ '<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}"
    "{% else %}{{ content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Channels; the name of a function is written again with its output.
_CHANNELS = (
    "{% set last = namespace(name='') %}{% for message in messages %}{% if message.role == 'assistant' %}"
    "{{ '<|start|>assistant' }}[[{% if message.reasoning_content %}"
    "{{ '<|channel|>analysis<|message|>' + message.reasoning_content + '<|end|><|start|>assistant' }}{% endif %}"
    "{% if message.tool_calls %}{% set call = message.tool_calls[0].function %}{% set last.name = call.name %}"
    "{{ ' to=' + call.name + '<|channel|>commentary<|message|>' }}{{ call.arguments | tojson }}<|call|>"
    "{% else %}{{ '<|channel|>final<|message|>' + message.content + ('<|ret|>' if loop.last else '<|end|>') }}"
    "{% endif %}]]{% elif message.role == 'tool' %}"
    "{{ '<|start|>' + last.name + ' to=assistant<|message|>' }}{{ message.content | tojson }}<|end|>"
    "{% else %}{{ '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)

STYLES = {
    "chatml": _CHATML,
    "headers": _HEADERS,
    "next": _NEXT,
    "instruct": _INSTRUCT,
    "thinking": _THINKING,
    "channels": _CHANNELS,
}
STOPS = {"next": ("<|user|>", "<|observation|>")}  # of a spec, where a header of a message ends a turn
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


def template(style: str, *, generation: bool) -> str:
    """Return a template, with blocks of `generation` or without."""
    tags = ("{% generation %}", "{% endgeneration %}") if generation else ("", "")
    return STYLES[style].replace("[[", tags[0]).replace("]]", tags[1])


@lru_cache
def tokenizer_json(kind: str = "plain") -> str:
    """Return a small tokenizer.json of byte-level BPE, or of a model of pieces that puts a space before a text.

    Args:
        kind: "plain"; "nfc", with that normalizer; "strips", whose special tokens strip white space on their right;
            "pieces", with byte fallback.
    """
    texts = ['the assistant says hello to a user, and the user says thanks.\n\n{"name": "get", "a": 12} ' * 3] * 9
    made = Tokenizer(models.BPE(byte_fallback=kind == "pieces"))
    if kind == "pieces":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = decoders.ByteFallback()
        fallback = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=fallback, show_progress=False)
    else:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
        if kind == "nfc":
            made.normalizer = normalizers.NFC()
    made.train_from_iterator(texts, trainer)
    content: dict[str, Any] = json.loads(made.to_str())
    content["added_tokens"] = []  # the bytes of fallback are ordinary pieces
    made = Tokenizer.from_str(json.dumps(content))
    made.add_special_tokens([AddedToken(token, special=True, rstrip=kind == "strips") for token in SPECIAL])
    made.add_tokens([AddedToken(token, normalized=False) for token in ORDINARY if kind != "pieces" or token.strip()])
    return made.to_str()
