"""Conversations as text: canonical JSON of the normalized form, which layouts.py makes, and how a build renders it.

    {"messages": [{"role", "content"?, "reasoning_content"?, "tool_calls"?, "name"?, "tool_call_id"?, "train"?: false,
                   "train_detail"?}],
     "tools"?: [...]}

All keys keep the order of the row, which templates write into the text that a model learns. Only the identity of a
conversation sorts them; it leaves out `train` and `train_detail`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import xxhash

from tokenloom.errors import BadConversation, message_of
from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.keys import words_of
from tokenloom.storage.formats.manifest import MANIFEST, Manifest
from tokenloom.storage.formats.records import decode_record
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import version_path

CHAT_RULES = 3  # raise it with every change of the ids or the mask of conversations
NOT_CONVERSATION = "not_conversation"
_PURPOSE = b"chat\0"  # keeps the identity of a conversation apart from that of a text


@dataclass(frozen=True)
class ChatDefinition:
    """How a build renders its conversations; JSON values only, as they stand in the identity of a version.

    Attributes:
        template: the text of the Jinja template.
        arguments: the keyword arguments of the template.
        date: what `strftime_now` takes for the present day, YYYY-MM-DD; None if a template must not ask.
        special_tokens: the tokens that a template knows by name, such as {"bos_token": "<s>"}.
        stop_tokens: tokens that end a turn of the assistant; empty for the last special token before the next message.
        special_tokens_in_content: what the spelling of a special token in a message becomes: "text", "token", or, with
            "fail", a bad row.
        rules: the rules of the release that renders; other rules may give other ids and classes.
    """

    template: str
    arguments: dict[str, object] = field(default_factory=dict)
    date: str | None = None
    special_tokens: dict[str, str] = field(default_factory=dict)
    stop_tokens: tuple[str, ...] = ()
    special_tokens_in_content: str = "text"
    rules: int = CHAT_RULES

    def json(self) -> dict[str, Any]:
        """Return its fields as JSON values."""
        return asdict(self) | {"stop_tokens": list(self.stop_tokens)}


def definition_of(value: object, place: str = "", field: str = "") -> ChatDefinition:
    """Return the definition whose JSON is `value`, which the file `place` has as `field`; raises FormatError."""
    given = {"rules": 1} | value if isinstance(value, dict) else value
    return decode_record(ChatDefinition, given, place, field)


def version_chat(store: Store, manifest: Manifest) -> ChatDefinition | None:
    """Return the definition by which a version rendered its conversations; None if it has none.

    Raises FormatError for values that no build writes.
    """
    if "chat" not in manifest.spec:
        return None
    place = store.place(version_path(manifest.version, MANIFEST))
    return definition_of(manifest.spec["chat"], place, "spec.chat")


def canonical(conversation: dict[str, Any]) -> str:
    """Return a normalized conversation as one line of JSON; raises BadConversation if JSON can't hold its values.

    A lone surrogate stays one, which UTF-8 can't encode.
    """
    try:
        return _dumps(conversation)
    except (ValueError, TypeError, RecursionError) as error:  # NaN; a date, from Arrow; nested too deeply
        problem = f"its tools or arguments are not JSON values ({message_of(error)}); repair the row"
        raise BadConversation(problem, NOT_CONVERSATION) from error


def parse(text: str) -> dict[str, Any]:
    """Return the conversation whose canonical JSON is `text`."""
    value: dict[str, Any] = json.loads(text)
    return value


def content_hashes(texts: pa.Array) -> UInt64s:
    """Hash conversations, without the weights of their messages and the order of their keys.

    Args:
        texts: (n,) canonical JSON.

    Returns:
        (n, 2) uint64: the high and the low half of each hash, as storage.formats.keys.content_hashes has it of texts.
    """
    digests = [xxhash.xxh3_128_digest(_PURPOSE + _identity(text).encode()) for text in texts.to_pylist()]
    return words_of(b"".join(digests)).reshape(-1, 2)


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
    return json.dumps(value, sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _message_chars(message: dict[str, Any]) -> int:
    arguments = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    written = (one if isinstance(one, str) else _dumps(one) for one in arguments)
    return len(message.get("content", "")) + len(message.get("reasoning_content", "")) + sum(map(len, written))
