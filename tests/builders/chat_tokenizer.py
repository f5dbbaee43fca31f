"""A small tokenizer.json with the tokens of chat templates, and a few templates of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

EOT = "<|endoftext|>"
SPECIAL = (EOT, "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|observation|>", "<bos>", "<s>")
PLAIN = ("<think>", "</think>", "<|bot|>", "<tool_call>", "</tool_call>")
#: Words of the vocabulary, from left to right of its merges; some join white space that a template wrote to a content.
WORDS = ("\n\n", " y", " n", "as", "us", "er", "user", " a")

_HEAD = """
{%- for tool in tools or [] %}
    {{- '<|im_start|>tool\\n' + (tool | tojson) + '<|im_end|>\\n' }}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}"""
_CALLS = """
    {%- for call in message.tool_calls or [] %}
        {{- call.function | tojson }}
    {%- endfor %}"""
_TAIL = """
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
#: ChatML, its reasoning in tags.
CHATML = f"""{_HEAD}
    {{%- if message.reasoning_content %}}
        {{{{- '<think>' + message.reasoning_content + '</think>' }}}}
    {{%- endif %}}
    {{{{- message.content or '' }}}}{_CALLS}
    {{{{- '<|im_end|>\\n' }}}}{_TAIL}"""
#: The same with the marks that say what an assistant writes.
MARKED = f"""{_HEAD}
    {{%- if message.role == 'assistant' %}}
        {{%- generation %}}
        {{%- if message.reasoning_content %}}
            {{{{- '<think>' + message.reasoning_content + '</think>' }}}}
        {{%- endif %}}
        {{{{- message.content or '' }}}}{_CALLS}
        {{{{- '<|im_end|>' }}}}
        {{%- endgeneration %}}
        {{{{- '\\n' }}}}
    {{%- else %}}
        {{{{- message.content + '<|im_end|>\\n' }}}}
    {{%- endif %}}{_TAIL}"""
#: ChatML that leaves out the reasoning of all turns but the last.
FORGETFUL = CHATML.replace("if message.reasoning_content", "if message.reasoning_content and loop.last")
#: A turn ends with the token that begins the next one.
OBSERVING = """
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|observation|>\\n' + message.content }}
    {%- else %}
        {{- '<|' + message.role + '|>\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- call.function | tojson }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}"""


def write_chat_tokenizer(path: Path, *, composes: bool = False) -> dict[str, Any]:
    """Write the tokenizer.json, which brings texts to NFC if it `composes`; return the definition of the tokenizer."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = ["".join(piece for piece, _ in byte_level.pre_tokenize_str(word)) for word in WORDS]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    merges = []
    for word in spelled:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                merges.append((word[: end - 1], word[end - 1]))
                vocabulary[word[:end]] = len(vocabulary)
    library = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    if composes:
        library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([tokenizers.AddedToken(token, normalized=False) for token in SPECIAL])
    library.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in PLAIN])
    path.write_text(library.to_str(), "utf-8")
    return {"kind": "huggingface", "path": str(path), "eot": EOT}
