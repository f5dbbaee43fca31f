"""Conversations, a template that renders them, and a tokenizer with tokens around messages, for tests of builds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.builders.chat_tokenizer import write_chat_tokenizer
from tests.builders.datasets import make_spec
from tests.builders.row_files import write_rows
from tokenloom.spec.build_spec import BuildSpec

CHATML = """\
{%- for tool in tools or [] %}{{ '<|im_start|>tools\\n' + tool | tojson + '<|im_end|>\\n' }}{% endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}{{ '\\n<tool_call>' + call.function | tojson + '</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def chat_tokenizer(folder: Path, **config: Any) -> dict[str, Any]:
    """Write a tokenizer into a folder, with a tokenizer_config.json that has these keys; return its definition."""
    folder.mkdir(parents=True, exist_ok=True)
    definition = write_chat_tokenizer(folder / "tokenizer.json")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return definition | {"path": str(folder)}


def conversation(*turns: str, **more: Any) -> dict[str, Any]:
    """Return a row with a conversation in which the user begins; `more` are its other keys."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]} | more


def chat_spec(folder: Path, rows: Sequence[Any], template: str = CHATML, **fields: Any) -> BuildSpec:
    """Return a spec of one file of conversations under `messages`, which it writes, with the store next to it.

    `source` among the fields has more options of that source, and `chat` of the template.
    """
    path = write_rows(folder / "chats.jsonl", rows)
    (folder / "chat.jinja").write_text(template)
    source = {"kind": "jsonl", "path": str(path), "name": "chats", "messages": "messages"} | fields.pop("source", {})
    chat = {"template": str(folder / "chat.jinja")} | fields.pop("chat", {})
    tokenizer = fields.pop("tokenizer", None) or chat_tokenizer(folder / "tokenizer")
    return make_spec(folder / "store", [source], tokenizer=tokenizer, chat=chat, **fields)


def with_chats(spec: BuildSpec, folder: Path, num_rows: int) -> BuildSpec:
    """Return a spec with one more source, of conversations in a file that this writes."""
    rows = [conversation(f"said {i}", f"answered {i} " * (1 + i % 9)) for i in range(num_rows)]
    chats = chat_spec(folder, rows)
    return spec.model_copy(update={"sources": [*spec.sources, *chats.sources], "chat": chats.chat})


def bracketed(parts: Iterable[Any], learned: Iterable[bool], text_of: Callable[[list[Any]], str] = "".join) -> str:
    """Return the text of characters or ids with double brackets around those that are learned."""
    runs = groupby(zip(parts, learned, strict=True), key=lambda pair: bool(pair[1]))
    texts = [(is_learned, text_of([part for part, _ in run])) for is_learned, run in runs]
    return "".join(f"[[{text}]]" if is_learned else text for is_learned, text in texts)
