"""Write made conversations, a tokenizer, a template and a spec: `python -m tokenloom.examples.chats`.

A hundred chats about sums in chats.jsonl, every fourth with a call of a tool; tokenizer.json, whose vocabulary has the
tokens that mark turns; chatml.jinja; and chat.yaml. docs/guides/conversations.md explains them.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_TEMPLATE = """\
{# chatml.jinja #}
{%- if tools %}
    {{- '<|im_start|>system\\nCall these: ' + tools | tojson + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content }}
            {%- for call in message.tool_calls or [] %}
                {{- '<tool_call>' + call.function | tojson + '</tool_call>' }}
            {%- endfor %}
            {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
"""
_SPEC = """\
# chat.yaml
dataset: chat
store: ./store
sources:
  - {kind: jsonl, path: chats.jsonl, messages: messages}
tokenizer: {kind: huggingface, path: tokenizer.json}
chat: {template: chatml.jinja}
splits: {train: 0.9, validation: 0.1}
"""
_TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def _conversation(number: int) -> dict[str, object]:
    """Return a conversation about the double of a number."""
    messages: list[dict[str, object]] = [{"role": "user", "content": f"What is {number} + {number}?"}]
    answer = {"role": "assistant", "content": f"{number} + {number} = {2 * number}."}
    if number % 4 != 3:
        return {"messages": [*messages, answer]}
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": number, "b": number}}}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": str(2 * number)},
    ]
    return {"messages": [*messages, answer], "tools": _TOOLS}


def _write_tokenizer() -> None:
    """Write the tokenizer, trained on the conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(["chats.jsonl"], trainer)
    tokenizer.save("tokenizer.json")


if __name__ == "__main__":
    lines = [json.dumps(_conversation(number)) for number in range(100)]
    Path("chats.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_tokenizer()
    Path("chatml.jinja").write_text(_TEMPLATE, encoding="utf-8")
    Path("chat.yaml").write_text(_SPEC, encoding="utf-8")
