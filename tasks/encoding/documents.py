"""From documents to ids: the tokenizer encodes texts, and what a template makes of conversations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.chat.definition import ChatDefinition, definition_of
from tokenloom.errors import BadConversation, InputError
from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.storage.formats.canonical import canonical_json
from tokenloom.storage.formats.classes import learned_classes
from tokenloom.storage.formats.statistics import ChatCounts
from tokenloom.tasks.rows.forms import CONVERSATION, TEXT, DocumentForm
from tokenloom.tasks.rows.rules import FoundBad, PlaceOf, too_large_to_encode, without_bad, without_filtered
from tokenloom.tasks.sources import Rows
from tokenloom.tokenizers import Tokenizer

if TYPE_CHECKING:  # Jinja stays out of builds without conversations
    from tokenloom.chat.encoding import ChatEncoder
    from tokenloom.chat.spans import Rendered

_MAX_CHAR_BYTES = 4  # of a character in UTF-8


@dataclass(frozen=True)
class EncodedDocuments:
    """The ids of n documents in order, each followed by its end-of-text id.

    Shapes: tokens (sum of num_tokens,); num_tokens (n,) uint32; classes as tokens, uint8. `classes` and `counts` are
    None for texts.
    """

    tokens: NDArray[Any]
    num_tokens: NDArray[np.uint32]
    classes: NDArray[np.uint8] | None = None
    counts: ChatCounts | None = None


class DocumentEncoder(Protocol):
    """Encodes the documents of a file."""

    form: DocumentForm

    def prepared(self, rows: Rows, on_error: str, without_target: str, place_of: PlaceOf) -> Rows:
        """Return a batch of documents with what `encode` needs, without those that can't be encoded.

        Args:
            rows: documents, see keep_documents.
            on_error: "skip" lists a bad row, "fail" raises it.
            without_target: what happens to conversations of which nothing is learned: "drop", "keep" or "fail".
            place_of: how a message names a row.

        Raises:
            BadRow: a row is bad, unless such rows are skipped.
            InputError: nothing of a row is learned, and such rows fail.
        """

    def encode(self, rows: Rows) -> EncodedDocuments:
        """Return the ids of a batch that is prepared; raises TokenizerError if the library can't encode a document."""


def document_encoder(tokenizer: Tokenizer, chat: ChatDefinition | None) -> DocumentEncoder:
    """Return what encodes the documents of a file: conversations if `chat` says how to render them, else texts.

    Raises SpecError if the template can't be compiled, or does not fit the tokenizer.
    """
    return _Texts(tokenizer) if chat is None else _Conversations(tokenizer, chat)


class _Texts:
    form = TEXT

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._dtype = tokenizer, token_dtype(tokenizer.vocab_size)

    def prepared(self, rows: Rows, on_error: str, without_target: str, place_of: PlaceOf) -> Rows:
        return rows

    def encode(self, rows: Rows) -> EncodedDocuments:
        encoded = self._tokenizer.encode(rows.texts, self._dtype)
        return EncodedDocuments(encoded.tokens, encoded.num_tokens)


class _Conversations:
    form = CONVERSATION

    def __init__(self, tokenizer: Tokenizer, chat: ChatDefinition) -> None:
        self._tokenizer, self._dtype = tokenizer, token_dtype(tokenizer.vocab_size)
        self._chats = _chat_encoder(canonical_json(chat), tokenizer, get_ident())  # type: ignore[arg-type]  # has a hash
        self._is_learned = learned_classes("assistant")

    def prepared(self, rows: Rows, on_error: str, without_target: str, place_of: PlaceOf) -> Rows:
        found: FoundBad = {}
        rendered: list[Rendered | None] = []
        for i, text in enumerate(rows.texts.to_pylist()):
            try:
                rendered.append(self._chats.render(text))
            except BadConversation as error:
                rendered.append(None)
                found[i] = error.reason, str(error)
        found |= self._too_large(rendered)
        rows = without_bad(rows, found, on_error, place_of)
        rows = replace(rows, rendered=tuple(one for i, one in enumerate(rendered) if one and i not in found))
        return rows if without_target == "keep" else self._with_target(rows, without_target, place_of)

    def _too_large(self, rendered: Sequence[Rendered | None]) -> FoundBad:
        found: FoundBad = {}
        for i, one in enumerate(rendered):
            if one is None or _MAX_CHAR_BYTES * len(one.text) <= self._tokenizer.max_text_bytes:
                continue  # as good as all: their bytes need not be counted
            if bad := too_large_to_encode(pa.array([one.text], pa.large_string()), self._tokenizer):
                found[i] = bad[0]
        return found

    def _with_target(self, rows: Rows, without_target: str, place_of: PlaceOf) -> Rows:
        has_target = np.array([self._has_target(one) for one in rows.rendered or ()], bool)
        if has_target.all():
            return rows
        if without_target == "fail":
            place = place_of(int(rows.rows[has_target.argmin()]))
            raise InputError(
                f"{place}: nothing of the conversation is learned (documents.without_target: fail); correct the row, "
                "or leave such rows out (documents.without_target: drop)"
            )
        num_dropped = len(has_target) - int(has_target.sum())
        return replace(without_filtered(rows, has_target), num_without_target=num_dropped)

    def _has_target(self, rendered: Rendered) -> bool:
        return bool((self._is_learned[rendered.classes] & (np.diff(rendered.ends, prepend=0) > 0)).any())

    def encode(self, rows: Rows) -> EncodedDocuments:
        assert rows.rendered is not None
        encoded = self._chats.encode(rows.rendered, self._dtype)
        found = encoded.counts()
        counts = ChatCounts(
            conversations=len(rows.rows),
            turns=found.turns,
            ended_turns=found.ended_turns,
            without_target=found.without_target,
            doubled_bos=found.doubled_bos,
        )
        return EncodedDocuments(encoded.tokens, encoded.num_tokens, encoded.classes, counts)


@lru_cache(maxsize=8)
def _chat_encoder(definition: bytes, tokenizer: Tokenizer, _thread: int) -> ChatEncoder:
    """Return an encoder, which only one thread uses: it remembers what it renders."""
    from tokenloom.chat.encoding import ChatEncoder

    return ChatEncoder(definition_of(json.loads(definition)), tokenizer)
