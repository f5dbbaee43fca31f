"""The layouts in which data sets hold conversations, and the one normalized form that all of them become.

| layout | a conversation is |
|---|---|
| `messages` | a list of {"role", "content", ...}: content is text, or parts of type text, reasoning, tool_call, tools |
| `sharegpt` | a list of {"from", "value"}: human, gpt, system, function_call, observation |
| `alpaca` | a row with instruction, input, output, and perhaps system and history |
| `prompt_completion` | a row with prompt and completion: texts, or lists of messages |

A list may be JSON text, and may stand under `messages` or `conversations` of an object, as the normalized form has it;
a `system` beside it is the first message, where there is no system message.
Whatever the form can't hold is refused: images, unknown roles, parts whose order would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tokenloom.chat.messages import (
    SAID,
    Message,
    add_reasoning,
    bad,
    calls_of,
    content_of,
    finished,
    kind_of,
    parsed,
    refuse_media,
    text_of,
    tools_of,
)
from tokenloom.errors import BadConversation
from tokenloom.spec.syntax import LAYOUTS

#: keys of a row that is a conversation itself; the columns that are read of it
ROW_KEYS = ("messages", "conversations", "instruction", "input", "output", "system", "history", "prompt", "completion")
PAIR_KEYS = ("chosen", "rejected")
PAIRS = "it is a preference pair (chosen and rejected); set messages: to one side, or leave out the source"

_ROLES = {role: role for role in ("system", "developer", "user", "assistant", "tool")}
_ROLES |= {"function": "tool", "ipython": "tool"}
_SPEAKERS = {"system": "system", "human": "user", "user": "user"}
_SPEAKERS |= dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bot", "function_call"), "assistant")
_SPEAKERS |= dict.fromkeys(("observation", "tool", "function_response"), "tool")
_LISTS = {"messages": "role", "sharegpt": "from"}  # layout -> the key that each of its messages has
_ROWS = {"alpaca": ("instruction", "output"), "prompt_completion": ("prompt", "completion")}


def normalized(value: Any, layout: str, tools: Any = None, system: Any = None) -> dict[str, Any]:
    """Return a conversation in the normalized form, see conversation.py.

    Args:
        value: a list of messages, JSON text of one, or an object with the keys of its layout.
        layout: one of LAYOUTS.
        tools: descriptions of functions, or JSON text of them; null or empty for none.
        system: the system prompt that stands beside the conversation; null or empty for none.

    Raises BadConversation if it is not one of that layout.
    """
    try:
        value = parsed(value, "the conversation")
        if isinstance(value, Mapping):
            refuse_pair(value)
            refuse_media("it", value)
            tools = value.get("tools") if tools is None else tools
            system = system or value.get("system")
        messages = _with_system([*_READERS[layout](value)], system)
        found = [*tools_of(tools), *(tool for one in messages for tool in one.pop("tools", ()))]
        messages = [one for one in messages if one.keys() & SAID]  # a message may have held only tools
        if not messages:
            raise bad("it has no messages; leave the row out")
        return {"messages": messages} | ({"tools": found} if found else {})
    except RecursionError as error:
        raise bad("it is nested too deeply; repair the row") from error


def recognized(values: Iterable[Any]) -> str:
    """Return the layout that all of the values have.

    Args:
        values: what the source's `messages` names in some rows; null and what is damaged is passed over.

    Raises BadConversation if none or several fit, or if they are preference pairs.
    """
    found = list(filter(None, map(_fitting, values)))
    common = set(LAYOUTS).intersection(*found)
    if len(common) == 1:
        return common.pop()
    fit = " and ".join(layout for layout in LAYOUTS if any(layout in one for one in found)) or "none"
    raise bad(
        f"it is of {fit} of the layouts {', '.join(LAYOUTS)}; set messages: to the key or column of the conversations, "
        "or to . if each row is one, or set layout: to the one to read"
    )


def refuse_pair(row: Mapping[str, Any]) -> None:
    """Raise BadConversation if a row is a preference pair, also where its prompt is a conversation of its own."""
    if all(row.get(key) is not None for key in PAIR_KEYS):
        raise bad(PAIRS)


def _listed(value: Any) -> Any:
    """Return the list of messages in an object, and any other value as it is."""
    if not isinstance(value, Mapping):
        return value
    turns = value.get("messages") if value.get("messages") is not None else value.get("conversations")
    return parsed(turns, "the list of messages")


def _fitting(value: Any) -> set[str]:
    """Return the layouts that a value has; none if it is damaged or empty."""
    try:
        value = parsed(value, "the conversation")
        turns = _listed(value)
    except BadConversation:
        return set()
    fitting = set()
    if isinstance(value, Mapping):
        refuse_pair(value)
        fitting = {name for name, keys in _ROWS.items() if all(value.get(key) is not None for key in keys)}
    if isinstance(turns, list) and turns and all(isinstance(one, Mapping) for one in turns):
        fitting |= {name for name, key in _LISTS.items() if all(one.get(key) is not None for one in turns)}
    return fitting


def _turns(value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each message of a list with its path in the row, for errors."""
    turns = _listed(value)
    if not isinstance(turns, list):
        found = kind_of(value if turns is None else turns)
        raise bad(f"it is {found}, not a list of messages, nor has it one; set layout:, or repair the row")
    for position, turn in enumerate(turns):
        if not isinstance(turn, dict | Mapping):  # the first is found faster
            raise bad(f"messages[{position}] is {kind_of(turn)}, not an object; repair the row")
        yield f"messages[{position}]", turn


def _with_system(messages: list[Message], system: Any) -> list[Message]:
    """Return messages that begin with the system prompt beside them, if there is one."""
    if not system:
        return messages
    prompt = {"role": "system", "content": text_of("system", system)}
    found = [one.get("content") for one in messages if one["role"] in ("system", "developer")]
    if found and found != [prompt["content"]]:
        raise bad("the system prompt beside its messages is not that of its system message; keep one of them")
    return messages if found else [prompt, *messages]


def _messages(value: Any) -> Iterator[Message]:
    for path, turn in _turns(value):
        found = {"role": _role(path, turn, "role", _ROLES)}
        found |= content_of(path, turn.get("content"))
        add_reasoning(path, found, turn)
        legacy = [] if turn.get("function_call") is None else [turn["function_call"]]
        calls = [*found.pop("calls", ()), *calls_of(path, turn.get("tool_calls")), *calls_of(path, legacy)]
        yield finished(path, turn, found, calls)


def _shared_gpt(value: Any) -> Iterator[Message]:
    for path, turn in _turns(value):
        found = {"role": _role(path, turn, "from", _SPEAKERS)}
        calls = []
        if turn["from"] == "function_call":
            calls = calls_of(path, turn.get("value"))
        elif turn.get("value") is not None:
            found["content"] = text_of(f"{path}.value", turn["value"])
        yield finished(path, turn, found, calls)


def _alpaca(value: Any) -> Iterator[Message]:
    row = _row(value, "alpaca")
    history = parsed(row.get("history") or [], "history")
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise bad("history is not a list of pairs of texts, of the user and the assistant; repair the row")
    for position, pair in enumerate(history):
        for role, text in zip(("user", "assistant"), pair, strict=True):
            yield {"role": role, "content": text_of(f"history[{position}]", text)}
    asked = [text_of(key, row[key]) for key in ("instruction", "input") if row.get(key)]
    yield {"role": "user", "content": "\n".join(asked)}
    yield {"role": "assistant", "content": text_of("output", row["output"])}


def _prompt_completion(value: Any) -> Iterator[Message]:
    row = _row(value, "prompt_completion")
    for key, role in (("prompt", "user"), ("completion", "assistant")):
        said = [{"role": role, "content": row[key]}] if isinstance(row[key], str) else _messages(row[key])
        for one in said:  # what the assistant said in the prompt is not the completion, so it is not learned
            yield one | {"train": False} if key == "prompt" and one["role"] == "assistant" else one


_READERS: dict[str, Callable[[Any], Iterator[Message]]] = {
    "messages": _messages,
    "sharegpt": _shared_gpt,
    "alpaca": _alpaca,
    "prompt_completion": _prompt_completion,
}


def _row(value: Any, layout: str) -> Mapping[str, Any]:
    """Return a row that has the keys of a layout."""
    if not isinstance(value, Mapping) or any(value.get(key) is None for key in _ROWS[layout]):
        keys = " and ".join(_ROWS[layout])
        raise bad(f"it is not an object with {keys}, as {layout} has; set layout:, or set messages: . for whole rows")
    return value


def _role(path: str, turn: Mapping[str, Any], key: str, roles: Mapping[str, str]) -> str:
    name = turn.get(key)
    if isinstance(name, str) and name in roles:
        return roles[name]
    raise bad(f"{path} has {key} {str(name)[:40]!r}; it must be one of {', '.join(roles)}: repair the row")
