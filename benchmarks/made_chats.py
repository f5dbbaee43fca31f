"""Conversations for chat.py, put together with a fixed seed from the turns of a few small files."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

NUM_FILES = 8
GROUP_ROWS = 5_000
_ROLES = {"human": "user", "gpt": "assistant", "observation": "tool", "system": "system"}
_CALL = pa.struct({"type": pa.string(), "function": pa.struct({"name": pa.string(), "arguments": pa.string()})})
_MESSAGE = pa.struct(
    {"role": pa.string(), "content": pa.string(), "reasoning_content": pa.string(), "tool_calls": pa.list_(_CALL)}
)
#: `tools` and arguments are JSON text, since Arrow would give each of them the keys of all; `text` is for reading.
SCHEMA = pa.schema({"messages": pa.list_(_MESSAGE), "tools": pa.string(), "text": pa.string()})

Message = dict[str, Any]
Conversation = tuple[list[Message], list[Any]]


def write_conversations(folder: Path, data: Path, count: int) -> list[Path]:
    """Write `count` distinct conversations as parquet; return the paths of its files.

    Args:
        folder: is made.
        data: contains the files of conversations.
        count: at least 1.
    """
    folder.mkdir(parents=True)
    rows, per_file = made_conversations(data, count), -(-count // NUM_FILES)
    paths = [folder / f"part-{number}.parquet" for number in range(-(-count // per_file))]
    for number, path in enumerate(paths):
        with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
            for start in range(number * per_file, min(count, (number + 1) * per_file), GROUP_ROWS):
                end = min(start + GROUP_ROWS, count, (number + 1) * per_file)
                table = pa.Table.from_pylist([next(rows) for _ in range(start, end)], SCHEMA)
                writer.write_table(table)
    return paths


def made_conversations(data: Path, count: int) -> Iterator[dict[str, Any]]:
    """Yield rows of SCHEMA: of ten, seven are of questions and answers, two call tools, one also reasons.

    The first message of the user says the number of the row, so that no conversation is a duplicate.
    """
    draw = random.Random(0)
    pairs, calling, reasoning = _pairs(data), _calling(data), _reasoning(data)
    for number in range(count):
        kind = draw.randrange(10)
        messages, tools = ([], []) if kind < 7 else draw.choice(calling if kind < 9 else reasoning)
        more = [message for pair in draw.choices(pairs, k=draw.randint(kind < 7, 4)) for message in pair]
        system = [{"role": "system", "content": "You are a careful assistant."}] if draw.randrange(4) == 0 else []
        everything = [dict(message) for message in ([*messages, *more] if messages else [*system, *more])]
        first = next(message for message in everything if message["role"] == "user")
        first["content"] = f"{number}: {first['content']}"
        text = "\n".join(message.get("content") or "" for message in everything)
        yield {"messages": everything, "tools": _json(tools) if tools else None, "text": text}


def _pairs(data: Path) -> list[list[Message]]:
    rows = json.loads((data / "alpaca_en_demo.json").read_text(encoding="utf-8"))
    asked = [("\n".join(filter(None, (row["instruction"], row["input"]))), row["output"]) for row in rows]
    return [[{"role": "user", "content": one}, {"role": "assistant", "content": other}] for one, other in asked]


def _calling(data: Path) -> list[Conversation]:
    rows = json.loads((data / "glaive_toolcall_en_demo.json").read_text(encoding="utf-8"))
    return [([_turn(turn) for turn in row["conversations"]], _tools(row)) for row in rows]


def _turn(turn: dict[str, str]) -> Message:
    if turn["from"] == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": _calls(turn["value"])}
    return {"role": _ROLES[turn["from"]], "content": turn["value"]}


def _calls(text: str) -> list[dict[str, Any]]:
    """Return the calls of a JSON text, their arguments as the text that templates make of them."""
    found = json.loads(text)
    calls = found if isinstance(found, list) else [found]
    return [
        {
            "type": "function",
            "function": {"name": call["name"], "arguments": _json(_without_nulls(call.get("arguments", {})))},
        }
        for call in calls
    ]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _reasoning(data: Path) -> list[Conversation]:
    lines = (data / "reason_tool_use_demo_50.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [([_parts(message) for message in row["messages"]], _tools(row)) for row in rows]


def _parts(message: Message) -> Message:
    texts = {kind: "".join(part["value"] for part in message["content"] if part["type"] == kind) for kind in _KINDS}
    calls = [call for part in message["content"] if part["type"] == "tool_call" for call in _calls(part["value"])]
    made: Message = {"role": message["role"], "content": texts["text"]}
    return (
        made
        | ({"reasoning_content": texts["reasoning"]} if texts["reasoning"] else {})
        | ({"tool_calls": calls} if calls else {})
    )


_KINDS = ("text", "reasoning")


def _tools(row: dict[str, Any]) -> list[Any]:
    """Return the tools of a row as tokenloom normalizes them: no bare function, no key whose value is null."""
    tools = row.get("tools") or []
    found = _without_nulls(json.loads(tools) if isinstance(tools, str) else tools)
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in found]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
