"""The forms of a document: a text; a conversation, whose text is its canonical JSON; ids, whose bytes are its text.

What a rule means for either is here: what a transform gets, which characters count, what identifies a document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tokenloom.chat import conversation
from tokenloom.chat.layouts import normalized
from tokenloom.errors import SpecError
from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.keys import content_hashes
from tokenloom.tokenizers.base import text_bytes


@dataclass(frozen=True)
class DocumentForm:
    """How the rows of a file become documents.

    Attributes:
        type: of a text in a batch: large_string, or large_binary for ids.
        value_of: returns what a transform gets, from a text of a row.
        text_of: returns the text of a row, from what a transform returned; raises an error if that is not allowed.
        num_chars: returns how many characters the rules count in each of (n,) texts, null for null.
        sizes: returns a number for each text that is 0 where num_chars is, and null for null; faster.
        contents: returns what identifies each of (n,) texts, (n, 2), see storage.formats.keys.content_hashes.
    """

    type: pa.DataType
    value_of: Callable[[str], Any]
    text_of: Callable[[Any], str]
    num_chars: Callable[[pa.Array], pa.Array]
    sizes: Callable[[pa.Array], pa.Array]
    contents: Callable[[pa.Array], UInt64s]


def _checked_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"it returned {type(value).__name__}, not str or None")
    value.encode()  # a lone surrogate can't be encoded
    return value


def conversation_text(value: Any) -> str:
    """Return the text of a conversation that a person or a function wrote as an object; raises BadConversation."""
    if not isinstance(value, Mapping):
        raise TypeError(f"it returned {type(value).__name__}, not a conversation or None")
    text = conversation.canonical(normalized(value, "messages"))
    text.encode()  # see _checked_text
    return text


def _conversation_chars(texts: pa.Array) -> pa.Array:
    counts = [None if text is None else conversation.num_chars(text) for text in texts.to_pylist()]
    return pa.array(counts, pa.int64())


def _conversation_sizes(texts: pa.Array) -> pa.Array:
    sizes = [None if text is None else int(conversation.has_chars(text)) for text in texts.to_pylist()]
    return pa.array(sizes, pa.int64())


def _contents(texts: pa.Array, purpose: bytes = b"") -> UInt64s:
    return content_hashes(*text_bytes(texts), purpose)


def _not_of_ids(value: Any) -> Any:
    raise SpecError("documents.transform: it works on texts, and a source of tokens has none; remove it")


# Bytes are counted by the offsets alone.
TEXT = DocumentForm(pa.large_string(), str, _checked_text, pc.utf8_length, pc.binary_length, _contents)
CONVERSATION = DocumentForm(
    pa.large_string(),
    conversation.parse,
    conversation_text,
    _conversation_chars,
    _conversation_sizes,
    conversation.content_hashes,
)
#: The ids of a document, as little-endian uint32 in a large_binary; the marks of its begin and end are not part of it.
IDS = DocumentForm(
    pa.large_binary(),
    _not_of_ids,
    _not_of_ids,
    pc.binary_length,
    pc.binary_length,
    partial(_contents, purpose=b"ids\0"),
)


def form_of(options: Mapping[str, Any]) -> DocumentForm:
    """Return the form of the rows of a file, which `options` say how to read."""
    if options["kind"] == "tokens":
        return IDS
    return TEXT if options.get("messages") is None else CONVERSATION
