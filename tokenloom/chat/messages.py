"""The messages of conversations: text, reasoning, calls of tools, and the parts that are learned.

Parts of a content that are learned are those of axolotl:

    "train_detail": [{"begin_offset": 0, "end_offset": 4, "train": true}]

Offsets are those of the first and the last character of a part. Characters outside all parts are not learned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tokenloom.chat.conversation import NOT_CONVERSATION
from tokenloom.errors import BadConversation, message_of

Message = dict[str, Any]
_MARKS = dict.fromkeys(("train", "training", "weight", "loss_weight", "loss", "loss_mask", "step_loss_mask"), True)
_MARKS |= {"masked": False}  # what 1 says of a message: whether it is learned
_MARK = re.compile("train|loss|mask|weight", re.IGNORECASE)
_REASONINGS = ("reasoning_content", "thinking", "reasoning")
_MEDIA = ("images", "image", "audio", "audios", "videos", "video", "files")
SAID = {"content", "reasoning_content", "tool_calls"}  # without one of these, a message says nothing
_PART_ORDER = {"reasoning": 0, "thinking": 0, "text": 1, "tool_call": 2}
_MAX_DEPTH = 100  # limit for tools and arguments; Python's own depends on the caller


def finished(path: str, turn: Mapping[str, Any], found: Message, calls: list[Message]) -> Message:
    """Return a message with its calls, names and weight, in the order of `turn`, from which it was read."""
    refuse_media(path, turn)
    if calls and found["role"] != "assistant":
        raise bad(f"{path} ({found['role']}) calls tools, which only an assistant does; repair the row")
    if calls:
        found["tool_calls"] = calls
    if not found.keys() & {*SAID, "tools"}:
        raise bad(f"{path} ({found['role']}) has no content; repair the row")
    for key in ("name", "tool_call_id"):
        if turn.get(key) is not None:
            found[key] = text_of(f"{path}.{key}", turn[key])
    if (detail := turn.get("train_detail")) is not None:
        is_text = found.get("content") in (turn.get("content"), turn.get("value"))
        found["train_detail"] = details_of(f"{path}.train_detail", detail, found.get("content") if is_text else None)
        turn = {key: value for key, value in turn.items() if key != "train_detail"}
    if not _is_learned(path, turn):
        found["train"] = False
    return in_order(turn, found)


def content_of(path: str, content: Any) -> Message:
    """Divide the content of a message into content, reasoning_content, calls and tools."""
    if content is None:
        return {}
    if not isinstance(content, list):
        return {"content": text_of(f"{path}.content", content)}
    found: Message = {}
    order = 0
    for position, part in enumerate(content):
        at = f"{path}.content[{position}]"
        kind, value = _part(at, part)
        if kind == "tools":
            found["tools"] = [*found.get("tools", ()), *tools_of(value)]
            continue
        if _PART_ORDER[kind] < order:
            raise bad(
                f"{at} is a {kind}: a template writes reasoning, text and tool_call in this order; divide the message"
            )
        order = _PART_ORDER[kind]
        if kind == "tool_call":
            found["calls"] = [*found.get("calls", ()), *calls_of(at, value)]
        else:
            key = "content" if kind == "text" else "reasoning_content"
            found[key] = found.get(key, "") + text_of(at, value)
    return found


def _part(path: str, part: Any) -> tuple[str, Any]:
    """Return the type and the value of a part of a content."""
    kind = str(part.get("type")) if isinstance(part, Mapping) else ""
    keys = ("value", kind, "text") if kind in {*_PART_ORDER, "tools"} else ()
    value = next((part[key] for key in keys if part.get(key) is not None), None)
    if value is None:
        raise bad(f"{path} ({kind[:40]!r}) is not a part with a value of type text, reasoning, tool_call or tools")
    if not _is_learned(path, part):
        raise bad(f"{path} is not to be learned, which only a whole message can say; divide the message")
    return kind, value


def add_reasoning(path: str, found: Message, turn: Mapping[str, Any]) -> None:
    """Put the reasoning beside the content of a message into it, which has it once."""
    texts = {text_of(f"{path}.reasoning_content", turn[key]) for key in _REASONINGS if turn.get(key) is not None}
    if "reasoning_content" in found:
        texts.add(found["reasoning_content"])
    if len(texts) > 1:
        raise bad(f"{path} has two different reasonings; keep one of {', '.join(_REASONINGS)}")
    if texts:
        found["reasoning_content"] = texts.pop()


def _is_learned(path: str, turn: Mapping[str, Any]) -> bool:
    """Return whether a message or a part is learned, by the keys of other trainers; without one, it is."""
    found = {}
    for key, value in turn.items():
        if value is None or not _MARK.search(str(key)):
            continue
        if key not in _MARKS:
            raise bad(f"{path}.{key} is not known, and may say what is learned; put train on whole messages instead")
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            raise bad(f"{path}.{key} is {repr(value)[:40]}; it must be 0 or 1 (false or true): repair the row")
        found[key] = bool(value) == _MARKS[key]
    if len(set(found.values())) > 1:
        raise bad(f"{path}: {' and '.join(found)} contradict each other; keep one")
    return all(found.values())


def refuse_media(path: str, holder: Mapping[str, Any]) -> None:
    """Raise BadConversation if a row or a message has images, sounds or files."""
    if media := [key for key in _MEDIA if holder.get(key)]:
        raise bad(f"{path} has {media[0]}, which are not supported; leave the row out")


def details_of(path: str, value: Any, content: Any) -> list[Message]:
    """Return the parts of a content, from a list or JSON text; raises BadConversation if one is not of the content."""
    parts = parsed(value, path)
    if not isinstance(parts, list) or not parts or not isinstance(content, str):
        raise bad(f"{path} is not a list of parts of a content that is text; repair the row, or use train instead")
    return [_detail(f"{path}[{number}]", part, content) for number, part in enumerate(parts)]


def _detail(path: str, part: Any, content: str) -> Message:
    names = ("begin_offset", "end_offset", "train")
    begin, end, train = map(part.get, names) if isinstance(part, Mapping) else (None, None, None)
    if not (type(begin) is type(end) is int and type(train) is bool and 0 <= begin <= end < len(content)):
        wanted = f"begin_offset and end_offset below {len(content)}, and train (true or false)"
        raise bad(f"{path} is {repr(part)[:80]}; it must have {wanted}: repair the row")
    return dict(zip(names, (begin, end, train), strict=True))


def calls_of(path: str, value: Any) -> list[Message]:
    """Return the calls in an object, a list of objects, or JSON text of either."""
    if isinstance(value, str):
        found = parsed(value, f"{path}: a tool call")
        return [_call(path, one, is_text=True) for one in (found if isinstance(found, list) else [found])]
    listed = value if isinstance(value, list) else [] if value is None else [value]
    return [_call(path, parsed(one, f"{path}: a tool call"), is_text=isinstance(one, str)) for one in listed]


def _call(path: str, call: Any, *, is_text: bool) -> Message:
    """Return a call with its keys in their order; a function that was text has its name first, as models write it."""
    function = (call.get("function") or call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if function is None or not isinstance(name, str) or not name or call.get("type") not in (None, "function"):
        raise bad(f"{path}: a tool call is not an object with the name and the arguments of a function; repair it")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _object_in(arguments)
    if arguments is not None and not isinstance(arguments, str | Mapping):
        raise bad(f"{path}: the arguments of {name!r} are {kind_of(arguments)}, not an object; repair the row")
    made = {"name": name, "arguments": _without_nulls(arguments or {})}
    found: Message = {"type": "function", "function": made if is_text else in_order(function, made)}
    if call.get("id") is not None:
        found["id"] = text_of(f"{path}: the id of a tool call", call["id"])
    return in_order(call, found)


def _object_in(text: str) -> Any:
    """Return the object whose JSON is `text`; other text, which a model may have written, stays as it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def tools_of(value: Any) -> list[Any]:
    """Return the descriptions of functions in a list, or in JSON text of one; each has type and function."""
    value = None if value == "" else parsed(value, "tools")
    if value is None:
        return []
    if not isinstance(value, list):
        raise bad(f"tools are {kind_of(value)}, not a list of functions' descriptions; repair the row, or set tools:")
    return [_tool(f"tools[{position}]", parsed(one, "tools")) for position, one in enumerate(value)]


def _tool(path: str, tool: Any) -> Any:
    described = _without_nulls(tool)
    if isinstance(described, dict) and "function" not in described and "name" in described:
        described = {"type": "function", "function": described}
    function = described.get("function") if isinstance(described, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad(f"{path} does not describe a function with a name; repair the row, or set tools:")
    return described


def _without_nulls(value: Any, depth: int = 0) -> Any:
    """Return a value without the keys whose value is null, as Arrow makes them up, at any depth."""
    if isinstance(value, str):
        return value
    if depth > _MAX_DEPTH:
        raise RecursionError
    if isinstance(value, Mapping):
        return {key: _without_nulls(one, depth + 1) for key, one in value.items() if one is not None}
    return [_without_nulls(one, depth + 1) for one in value] if isinstance(value, list | tuple) else value


def in_order(row: Mapping[str, Any], found: Message) -> Message:
    """Sort the keys that were read of a row's mapping as the row has them; other keys come last."""
    return {key: found[key] for key in (*row, *found) if key in found}


def bad(problem: str) -> BadConversation:
    """Return the error for a value that is not a conversation."""
    return BadConversation(problem, NOT_CONVERSATION)


def parsed(value: Any, what: str) -> Any:
    """Return the value of JSON text, and any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise bad(f"{what} is text that is not JSON ({message_of(error)}); repair the row") from error


def text_of(path: str, value: Any) -> str:
    """Return a value that must be text; raises BadConversation."""
    if isinstance(value, str):
        return value
    raise bad(f"{path} is {kind_of(value)}, not text; repair the row")


def kind_of(value: Any) -> str:
    """Name the kind of a value in a message: "a list"."""
    names = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")
