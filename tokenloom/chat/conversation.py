"""Conversations as text: canonical JSON of the normalized form, which layouts.py makes, and what identifies one.

    {"messages": [{"role", "content"?, "reasoning_content"?, "tool_calls"?, "name"?, "tool_call_id"?, "train"?: false,
                   "train_detail"?}],
     "tools"?: [...]}

All keys keep the order of the row, which templates write into the text that a model learns. Only the identity of a
conversation sorts them; it leaves out `train` and `train_detail`.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import xxhash

from tokenloom.errors import BadConversation, message_of
from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.keys import words_of

NOT_CONVERSATION = "not_conversation"
_PURPOSE = b"chat\0"  # keeps the identity of a conversation apart from that of a text
_CONTENT = '"content":"'

_ENCODER, _SORTING = (
    json.JSONEncoder(sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sort_keys in (False, True)
)


def canonical(conversation: dict[str, Any]) -> str:
    """Return a normalized conversation as one line of JSON; raises BadConversation if JSON can't hold its values.

    A lone surrogate stays one, which UTF-8 can't encode.
    """
    try:
        return _dumps(conversation)
    except (ValueError, TypeError, RecursionError) as error:  # NaN; a date, from Arrow; nested too deeply
        raise BadConversation(
            f"its tools or arguments are not JSON values ({message_of(error)}); repair the row", NOT_CONVERSATION
        ) from error


def parse(text: str) -> dict[str, Any]:
    """Return the conversation whose canonical JSON is `text`."""
    value: dict[str, Any] = json.loads(text)
    return value


def content_hashes(texts: pa.Array) -> UInt64s:
    """Return what identifies conversations, whatever the weights of their messages and the order of keys.

    Args:
        texts: (n,) canonical JSON.

    Returns:
        (n, 2) uint64: the high and the low half of each hash, as storage.formats.keys.content_hashes has it of texts.
    """
    digests = [xxhash.xxh3_128_digest(_PURPOSE + _identity(text).encode()) for text in texts.to_pylist()]
    return words_of(b"".join(digests)).reshape(-1, 2)


def has_chars(text: str) -> bool:
    """Return whether num_chars is not 0, without parsing most conversations; `text` is canonical JSON."""
    start = text.find(_CONTENT) + len(_CONTENT)  # messages stand before tools
    return (start >= len(_CONTENT) and text[start] != '"') or num_chars(text) > 0


def num_chars(text: str) -> int:
    """Return the characters that the messages of a conversation hold: contents, reasoning, arguments of calls.

    Args:
        text: canonical JSON.
    """
    return sum(map(_message_chars, parse(text)["messages"]))


def _identity(text: str) -> str:
    conversation = parse(text)
    for message in conversation["messages"]:
        message.pop("train", None)
        message.pop("train_detail", None)
    return _dumps(conversation, sort_keys=True)


def _dumps(value: object, *, sort_keys: bool = False) -> str:
    return (_SORTING if sort_keys else _ENCODER).encode(value)


def _message_chars(message: dict[str, Any]) -> int:
    arguments = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    written = (one if isinstance(one, str) else _dumps(one) for one in arguments)
    return len(message.get("content", "")) + len(message.get("reasoning_content", "")) + sum(map(len, written))
