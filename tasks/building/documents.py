"""From documents to ids: the tokenizer encodes texts, and conversations as their template renders them.

The tokenizer of a build uses the fast encoder that its plan has chosen, or the reference library alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.chat.conversation import ChatDefinition, definition_of
from tokenloom.errors import BadConversation, InputError
from tokenloom.storage.formats.arrays import token_dtype
from tokenloom.storage.formats.classes import MASK_CLASSES, learned_classes
from tokenloom.storage.formats.records import canonical_json
from tokenloom.storage.formats.statistics import ChatCounts
from tokenloom.tasks.building.plan import Build
from tokenloom.tasks.rules import (
    CONVERSATION,
    IDS,
    TEXT,
    DocumentForm,
    FoundBad,
    too_large,
    without_bad,
    without_filtered,
)
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.memory import bounded
from tokenloom.tasks.sources.base import PlaceOf, Rows
from tokenloom.tokenizers import Tokenizer, load_job_tokenizer, load_once
from tokenloom.tokenizers.base import text_bytes
from tokenloom.tokenizers.fast.proofs import choose, installed_library
from tokenloom.tokenizers.fast.tokenizer import (
    NO_OVERLAP,
    FastEncoder,
    FastTokenizer,
    Router,
    ending_if_hung,
    left_to_reference,
    make_encoder,
)

if TYPE_CHECKING:  # Jinja stays out of builds without conversations
    from tokenloom.chat.encoding import ChatEncoder
    from tokenloom.chat.spans import Rendered
    from tokenloom.tokenizers.fast.probe import SliceJob

PART_CHARS = 4_000_000  # rendered text in memory at a time: a template may write much


@dataclass(frozen=True)
class EncodedDocuments:
    """The ids of n documents in order, each followed by its end-of-text id.

    Shapes: tokens (sum of num_tokens,); num_tokens (n,) uint32; classes as tokens, uint8. `classes` and `counts` are
    None for texts. `num_bytes` are those of the text that was encoded, in UTF-8: of conversations, as rendered.
    """

    tokens: NDArray[Any]
    num_tokens: NDArray[np.uint32]
    num_bytes: int
    classes: NDArray[np.uint8] | None = None
    counts: ChatCounts | None = None


class DocumentEncoder:
    """Encodes the documents of a file: texts, or in its subclasses those of another form."""

    form: DocumentForm = TEXT

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self._dtype = tokenizer, token_dtype(tokenizer.vocab_size)

    def prepared(
        self, batches: Iterator[Rows], on_error: str, without_target: str, place_of: PlaceOf
    ) -> Iterator[Rows]:
        """Return batches of documents as `encode` needs them, without those that can't be encoded.

        Args:
            batches: of documents, see keep_documents.
            on_error: "skip" lists a bad row, "fail" raises it.
            without_target: the treatment of conversations of which nothing is learned: "drop", "keep" or "fail".
            place_of: how a message names a row.

        Raises:
            BadRow: a row is bad, unless such rows are skipped.
            InputError: nothing of a row is learned, and such rows fail.
        """
        return batches

    def encode(self, rows: Rows) -> EncodedDocuments:
        """Return the ids of a batch that is prepared; raises TokenizerError if the library can't encode a document."""
        encoded = self.tokenizer.encode(rows.texts, self._dtype)
        return EncodedDocuments(encoded.tokens, encoded.num_tokens, len(text_bytes(rows.texts)[0]))


def document_encoder(tokenizer: Tokenizer, chat: ChatDefinition | None) -> DocumentEncoder:
    """Return the encoder for the documents of a file: conversations if `chat` says how to render them, else texts.

    Raises SpecError if the template can't be compiled, or does not fit the tokenizer; InputError if that takes too much
    memory.
    """
    if tokenizer.kind == "ids":
        return _Ids(tokenizer)
    if chat is None:
        return DocumentEncoder(tokenizer)
    with bounded(0, "chat.template", "give another template"):  # Jinja calculates what is constant as it compiles
        return _Conversations(tokenizer, chat)


class _Ids(DocumentEncoder):
    form = IDS

    def encode(self, rows: Rows) -> EncodedDocuments:
        encoded = replace(super().encode(rows), num_bytes=0)
        if rows.masks is None:
            return encoded
        return replace(encoded, classes=MASK_CLASSES[text_bytes(rows.masks)[0]])


class _Conversations(DocumentEncoder):
    form = CONVERSATION

    def __init__(self, tokenizer: Tokenizer, chat: ChatDefinition) -> None:
        super().__init__(tokenizer)
        self._chats = _chat_encoder(canonical_json(chat), tokenizer, get_ident())  # type: ignore[arg-type]  # has a hash
        self._is_learned = learned_classes("assistant").tobytes()

    def prepared(
        self, batches: Iterator[Rows], on_error: str, without_target: str, place_of: PlaceOf
    ) -> Iterator[Rows]:
        for rest in batches:
            is_first = True
            while is_first or len(rest.rows):
                rendered, found = self._render_some(rest, on_error, place_of)
                part, rest = rest.head(len(rendered)), rest.take(slice(len(rendered), None))
                part = without_bad(part, found, on_error, place_of) if found else part
                part = replace(part, rendered=tuple(one for i, one in enumerate(rendered) if one and i not in found))
                yield part if without_target == "keep" else self._with_target(part, without_target, place_of)
                is_first = False

    def _render_some(self, rows: Rows, on_error: str, place_of: PlaceOf) -> tuple[list[Rendered | None], FoundBad]:
        """Render the first of some conversations, until their texts are large; None for those that are bad.

        It ends with the first bad one unless such are skipped. A row whose template takes too long is never skipped:
        that depends on the machine.
        """
        rendered: list[Rendered | None] = []
        found: FoundBad = {}
        num_chars = 0
        for position, text in enumerate(rows.texts):
            try:
                one = self._chats.render(text.as_py())
            except BadConversation as error:
                rendered.append(None)
                found[position] = error.reason, str(error)
                if on_error == "skip":
                    continue
                break
            except InputError as error:
                raise InputError(f"{place_of(int(rows.rows[position]))}: {error}") from error
            rendered.append(one)
            num_chars += len(one.text)
            if (num_bytes := len(one.text.encode())) > self.tokenizer.max_text_bytes:
                found[position] = too_large(num_bytes, self.tokenizer)
            if num_chars >= PART_CHARS:
                break
        return rendered, found

    def _with_target(self, rows: Rows, without_target: str, place_of: PlaceOf) -> Rows:
        learned = [b"\1" in one.classes.translate(self._is_learned) for one in rows.rendered or ()]
        has_target = np.array(learned, bool)
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

    def encode(self, rows: Rows) -> EncodedDocuments:
        assert rows.rendered is not None
        encoded = self._chats.encode(rows.rendered, self._dtype)
        num_bytes = sum(len(one.text) if one.text.isascii() else len(one.text.encode()) for one in rows.rendered)
        return EncodedDocuments(encoded.tokens, encoded.num_tokens, num_bytes, encoded.classes, encoded.counts)


@lru_cache(maxsize=8)
def _chat_encoder(definition: bytes, tokenizer: Tokenizer, _thread: int) -> ChatEncoder:
    """Return an encoder for one thread: it caches the texts that it renders."""
    from tokenloom.chat.encoding import ChatEncoder

    return ChatEncoder(definition_of(json.loads(definition)), tokenizer)


@lru_cache(maxsize=4)
def encoding_tokenizer(build: Build) -> Tokenizer:
    """Return the tokenizer of a build: with its fast encoder, or the reference; both give the same ids.

    A machine with other releases than those of the proof uses the reference. Each step counts the texts that it
    compares by itself. Raises TokenizerError as load_job_tokenizer.
    """
    reference = load_job_tokenizer(build.definition, build.tokenizer.fingerprint, build.tokenizer_files)
    proof = build.proof
    if proof is None or (proof.library, proof.reference) != (installed_library(), reference.backend):
        return reference
    encoder = _fast_encoder(reference)  # type: ignore[arg-type]  # it is hashable
    router = Router([*left_to_reference(), *proof.odd], encoder.spellings)
    return FastTokenizer(reference, encoder, router, build.overlap)


@lru_cache(maxsize=2)
def _fast_encoder(reference: Any) -> FastEncoder:  # a protocol can't say that it is hashable
    return make_encoder(reference)


def load_for_measuring(build: Build) -> Tokenizer:
    """Return the tokenizer of a build without its sample, to measure its speed; errors as load_job_tokenizer."""
    return encoding_tokenizer(replace(build, overlap=NO_OVERLAP))


def preload_encoder(definition: Mapping[str, Any]) -> None:
    """Load a tokenizer, and its fast encoder if that is proven.

    Args:
        definition: of a plan.

    Raises TokenizerError if the tokenizer can't be loaded.
    """
    reference = load_once(definition)
    if choose(reference, definition).proof:
        _fast_encoder(reference)  # type: ignore[arg-type]  # it is hashable


def prove_slice(function: Callable[[SliceJob], Any], job: SliceJob) -> Any:
    """Compare the two encoders in one slice of a probe; runs in a worker."""
    with ending_if_hung():
        result = function(job)
    progress.report(progress.Advanced(done=1))
    return result
