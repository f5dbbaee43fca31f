"""What messages hold beside text: calls of tools, the tools' descriptions, and JSON text of either."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenloom.chat.conversation import NOT_CONVERSATION
from tokenloom.errors import BadConversation, message_of

Message = dict[str, Any]
_MAX_DEPTH = 100  # of tools and arguments; Python's own limit depends on who calls


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


def calls_of(place: str, value: Any) -> list[Message]:
    """Return the calls in an object, a list of objects, or JSON text of either."""
    if isinstance(value, str):
        found = parsed(value, f"{place}: a tool call")
        return [_call(place, one, is_text=True) for one in (found if isinstance(found, list) else [found])]
    listed = value if isinstance(value, list) else [] if value is None else [value]
    return [_call(place, parsed(one, f"{place}: a tool call"), is_text=isinstance(one, str)) for one in listed]


def _call(place: str, call: Any, *, is_text: bool) -> Message:
    """Return a call with its keys in their order; a function that was text has its name first, as models write it."""
    function = (call.get("function") or call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if function is None or not isinstance(name, str) or not name or call.get("type") not in (None, "function"):
        raise bad(f"{place}: a tool call is not an object with the name and the arguments of a function; repair it")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _object_in(arguments)
    if arguments is not None and not isinstance(arguments, str | Mapping):
        raise bad(f"{place}: the arguments of {name!r} are {kind_of(arguments)}, not an object; repair the row")
    made = {"name": name, "arguments": _without_nulls(arguments or {})}
    found: Message = {"type": "function", "function": made if is_text else in_order(function, made)}
    if call.get("id") is not None:
        found["id"] = text_of(f"{place}: the id of a tool call", call["id"])
    return in_order(call, found)


def in_order(row: Mapping[str, Any], found: Message) -> Message:
    """Return what was read of a row's mapping in the order of its keys; other keys come last."""
    return {key: found[key] for key in (*row, *found) if key in found}


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


def _tool(place: str, tool: Any) -> Any:
    described = _without_nulls(tool)
    if isinstance(described, dict) and "function" not in described and "name" in described:
        described = {"type": "function", "function": described}
    function = described.get("function") if isinstance(described, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad(f"{place} does not describe a function with a name; repair the row, or set tools:")
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


def text_of(place: str, value: Any) -> str:
    """Return a value that must be text; raises BadConversation."""
    if isinstance(value, str):
        return value
    raise bad(f"{place} is {kind_of(value)}, not text; repair the row")


def kind_of(value: Any) -> str:
    """Return what a message calls a value: "a list"."""
    names = {str: "text", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")
