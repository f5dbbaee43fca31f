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

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tokenloom.chat.calls import Message, bad, calls_of, in_order, kind_of, parsed, text_of, tools_of
from tokenloom.chat.details import details_of
from tokenloom.errors import BadConversation
from tokenloom.spec.values import LAYOUTS

#: keys of a row that is a conversation itself; the columns that are read of it
ROW_KEYS = ("messages", "conversations", "instruction", "input", "output", "system", "history", "prompt", "completion")
PAIR_KEYS = ("chosen", "rejected")
PAIRS = (
    "it is a preference pair (chosen and rejected), which has no single conversation to learn; "
    "preference pairs are not supported: leave out the source, or set messages: to one side if that is a conversation"
)

_ROLES = {role: role for role in ("system", "developer", "user", "assistant", "tool")}
_ROLES |= {"function": "tool", "ipython": "tool"}
_SPEAKERS = {"system": "system", "human": "user", "user": "user"}
_SPEAKERS |= dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bot", "function_call"), "assistant")
_SPEAKERS |= dict.fromkeys(("observation", "tool", "function_response"), "tool")
_MARKS = dict.fromkeys(("train", "training", "weight", "loss_weight", "loss", "loss_mask", "step_loss_mask"), True)
_MARKS |= {"masked": False}  # what 1 says of a message: whether it is learned
_MARK = re.compile("train|loss|mask|weight", re.IGNORECASE)
_REASONINGS = ("reasoning_content", "thinking", "reasoning")
_MEDIA = ("images", "image", "audio", "audios", "videos", "video", "files")
_SAID = {"content", "reasoning_content", "tool_calls"}  # without one of these, a message says nothing
_PLAIN = {"role", "content"}  # the keys of most messages
_PART_ORDER = {"reasoning": 0, "thinking": 0, "text": 1, "tool_call": 2}
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
        messages = [one for one in messages if one.keys() & _SAID]  # a message may have held only tools
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
    found = [fitting for value in values if value is not None and (fitting := _fitting(value))]
    common = set(LAYOUTS).intersection(*found) if found else set()
    if len(common) == 1:
        return common.pop()
    names = ", ".join(LAYOUTS)
    if found:
        fit = " and ".join(layout for layout in LAYOUTS if any(layout in one for one in found))
        raise bad(f"it fits the layouts {fit}; set layout: to the one to read ({names})")
    raise bad(
        f"it is of none of the layouts {names}; set messages: to the key or column of the conversations, "
        "or messages: . if each row is a conversation"
    )


def refuse_pair(row: Mapping[str, Any]) -> None:
    """Raise BadConversation if a row is a preference pair, also where its prompt is a conversation of its own."""
    if all(row.get(key) is not None for key in PAIR_KEYS):
        raise bad(PAIRS)


def refuse_media(place: str, holder: Mapping[str, Any]) -> None:
    """Raise BadConversation if a row or a message has images, sounds or files."""
    if media := [key for key in _MEDIA if holder.get(key)]:
        raise bad(f"{place} has {media[0]}, which are not supported; leave the row out")


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
    """Yield each message of a list with its place, for errors."""
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
    for place, turn in _turns(value):
        if (plain := _plain_message(turn)) is not None:
            yield plain
            continue
        found = {"role": _role(place, turn, "role", _ROLES)}
        found |= _content(place, turn.get("content"))
        _add_reasoning(place, found, [turn[key] for key in _REASONINGS if turn.get(key) is not None])
        legacy = [] if turn.get("function_call") is None else [turn["function_call"]]
        calls = [*found.pop("calls", ()), *calls_of(place, turn.get("tool_calls")), *calls_of(place, legacy)]
        yield _finished(place, turn, found, calls)


def _plain_message(turn: Mapping[str, Any]) -> Message | None:
    """Return a message of a role and a text, as most are; None if there is more to look at."""
    role, content = turn.get("role"), turn.get("content")
    if not isinstance(role, str) or not isinstance(content, str) or role not in _ROLES:
        return None
    found = {key: value for key, value in turn.items() if value is not None}
    return found | {"role": _ROLES[role]} if found.keys() == _PLAIN else None


def _shared_gpt(value: Any) -> Iterator[Message]:
    for place, turn in _turns(value):
        found = {"role": _role(place, turn, "from", _SPEAKERS)}
        calls = []
        if turn["from"] == "function_call":
            calls = calls_of(place, turn.get("value"))
        elif turn.get("value") is not None:
            found["content"] = text_of(f"{place}.value", turn["value"])
        yield _finished(place, turn, found, calls)


def _alpaca(value: Any) -> Iterator[Message]:
    row = _row(value, "alpaca")
    history = parsed(row.get("history") or [], "history")
    if not isinstance(history, list):
        raise bad(f"history is {kind_of(history)}, not a list of pairs of texts; repair the row")
    for position, pair in enumerate(history):
        if not isinstance(pair, list) or len(pair) != 2:
            raise bad(f"history[{position}] is not a pair of texts, of the user and the assistant; repair the row")
        yield {"role": "user", "content": text_of(f"history[{position}]", pair[0])}
        yield {"role": "assistant", "content": text_of(f"history[{position}]", pair[1])}
    asked = [text_of(key, row[key]) for key in ("instruction", "input") if row.get(key)]
    yield {"role": "user", "content": "\n".join(asked)}
    yield {"role": "assistant", "content": text_of("output", row["output"])}


def _prompt_completion(value: Any) -> Iterator[Message]:
    row = _row(value, "prompt_completion")
    if isinstance(row["prompt"], str):
        yield {"role": "user", "content": row["prompt"]}
    else:  # what the assistant said in the prompt is not the completion, so it is not learned
        for one in _messages(row["prompt"]):
            yield one | {"train": False} if one["role"] == "assistant" else one
    if isinstance(row["completion"], str):
        yield {"role": "assistant", "content": row["completion"]}
    else:
        yield from _messages(row["completion"])


_READERS: dict[str, Callable[[Any], Iterator[Message]]] = {
    "messages": _messages,
    "sharegpt": _shared_gpt,
    "alpaca": _alpaca,
    "prompt_completion": _prompt_completion,
}


def _row(value: Any, layout: str) -> Mapping[str, Any]:
    """Return a row that has the keys of a layout."""
    if not isinstance(value, Mapping):
        raise bad(f"it is {kind_of(value)}, not an object with the keys of {layout}; set messages: . for whole rows")
    if missing := [key for key in _ROWS[layout] if value.get(key) is None]:
        raise bad(f"it has no {missing[0]!r}, which {layout} needs; set layout:, or repair the row")
    return value


def _role(place: str, turn: Mapping[str, Any], key: str, roles: Mapping[str, str]) -> str:
    name = turn.get(key)
    if isinstance(name, str) and name in roles:
        return roles[name]
    found = f"no {key!r}" if name is None else f"{key} {str(name)[:40]!r}"
    raise bad(f"{place} has {found}; it must be one of {', '.join(roles)}: repair the row")


def _finished(place: str, turn: Mapping[str, Any], found: Message, calls: list[Message]) -> Message:
    """Return a message with its calls, names and weight, in the order of `turn`, from which it was read."""
    refuse_media(place, turn)
    if calls and found["role"] != "assistant":
        raise bad(f"{place} ({found['role']}) calls tools, which only an assistant does; repair the row")
    if calls:
        found["tool_calls"] = calls
    if not found.keys() & {*_SAID, "tools"}:
        raise bad(f"{place} ({found['role']}) has no content; repair the row")
    for key in ("name", "tool_call_id"):
        if turn.get(key) is not None:
            found[key] = text_of(f"{place}.{key}", turn[key])
    if (detail := turn.get("train_detail")) is not None:
        is_text = found.get("content") in (turn.get("content"), turn.get("value"))
        found["train_detail"] = details_of(f"{place}.train_detail", detail, found.get("content") if is_text else None)
        turn = {key: value for key, value in turn.items() if key != "train_detail"}
    if not _is_learned(place, turn):
        found["train"] = False
    return in_order(turn, found)


def _is_learned(place: str, turn: Mapping[str, Any]) -> bool:
    """Return what the marks of a message or a part say, as other trainers have them; without one, it is learned."""
    found = {}
    for key, value in turn.items():
        if value is None or not _MARK.search(str(key)):
            continue
        if key not in _MARKS:
            raise bad(
                f"{place}.{key} is not known, and may say what is learned; put train: false or true on whole messages "
                "in its place, or remove it"
            )
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            raise bad(f"{place}.{key} is {repr(value)[:40]}; it must be 0 or 1 (false or true): repair the row")
        found[key] = bool(value) == _MARKS[key]
    if len(set(found.values())) > 1:
        raise bad(f"{place}: {' and '.join(found)} contradict each other; keep one")
    return all(found.values())


def _content(place: str, content: Any) -> Message:
    """Return what the content of a message holds: content, reasoning_content, calls, tools."""
    if content is None:
        return {}
    if not isinstance(content, list):
        return {"content": text_of(f"{place}.content", content)}
    found: Message = {}
    order = 0
    for position, part in enumerate(content):
        at = f"{place}.content[{position}]"
        kind, value = _part(at, part)
        if kind == "tools":
            found["tools"] = [*found.get("tools", ()), *tools_of(value)]
            continue
        if _PART_ORDER[kind] < order:
            raise bad(
                f"{at} is a {kind} after a part that a template writes later (reasoning, text, tool_call); "
                "divide the message"
            )
        order = _PART_ORDER[kind]
        if kind == "tool_call":
            found["calls"] = [*found.get("calls", ()), *calls_of(at, value)]
        else:
            key = "content" if kind == "text" else "reasoning_content"
            found[key] = found.get(key, "") + text_of(at, value)
    return found


def _part(place: str, part: Any) -> tuple[str, Any]:
    """Return the type and the value of a part of a content."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str) or kind not in {*_PART_ORDER, "tools"}:
        shown = kind_of(part) if kind is None else f"of type {str(kind)[:40]!r}"
        raise bad(f"{place} is {shown}; parts of type text, reasoning, tool_call and tools are supported")
    value = next((part[key] for key in ("value", kind, "text") if part.get(key) is not None), None)
    if value is None:
        raise bad(f"{place} has no value; repair the row")
    if not _is_learned(place, part):
        raise bad(f"{place} is not to be learned, which only a whole message can say; divide the message")
    return kind, value


def _add_reasoning(place: str, found: Message, given: list[Any]) -> None:
    """Put the reasoning beside the content of a message into it, which has it once."""
    if not given:
        return
    texts = {text_of(f"{place}.reasoning_content", one) for one in given}
    texts |= {found["reasoning_content"]} if "reasoning_content" in found else set()
    if len(texts) > 1:
        raise bad(f"{place} has two different reasonings; keep one of {', '.join(_REASONINGS)}")
    found["reasoning_content"] = texts.pop()
