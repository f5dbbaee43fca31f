"""Conversations to ids and classes.

The ids are those of transformers: a rendered text is cut at its added tokens, and the parts are encoded as ordinary
text, those of a whole batch in one call. The bytes of its tokens say where they are. Where they do not add up, or a
tokenizer must see a text as a whole, the reference library encodes it and says where.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.chat.conversation import ChatDefinition
from tokenloom.chat.marks import OF_ASSISTANT, any_of
from tokenloom.chat.rendering import ChatRenderer
from tokenloom.chat.spans import KEPT_OUT, Rendered
from tokenloom.errors import TokenizerError
from tokenloom.storage.formats.arrays import Int64s, UInt8s
from tokenloom.storage.formats.classes import (
    BEGINS,
    MAY_LEARN,
    ROLE_BITS,
    learned_classes,
)
from tokenloom.storage.formats.statistics import ChatCounts
from tokenloom.storage.work.segments import as_segments, take_segments
from tokenloom.tokenizers import Tokenizer
from tokenloom.tokenizers.base import ChatTokens, text_bytes

_NO_TOKEN = -1
_TARGETS = learned_classes("assistant")


@dataclass(frozen=True)
class EncodedChats:
    """The ids of n conversations in order, each followed by its end-of-text id, and the class of each token.

    Shapes: tokens (sum of num_tokens,); num_tokens (n,) uint32; classes as tokens, uint8. `counts` is of all of them.
    """

    tokens: NDArray[Any]
    num_tokens: NDArray[np.uint32]
    classes: NDArray[np.uint8]
    counts: ChatCounts


class ChatEncoder:
    """Renders and encodes conversations.

    Args:
        definition: the template.
        tokenizer: of any kind; a fast one encodes the texts between added tokens.

    Raises SpecError if the template is not valid or a stop token unknown, TokenizerError if the tokenizer has no use
    for one.
    """

    def __init__(self, definition: ChatDefinition, tokenizer: Tokenizer) -> None:
        self.definition, self._tokenizer = definition, tokenizer
        reference: Any = getattr(tokenizer, "reference", tokenizer)
        self._tokens: ChatTokens = reference.chat_tokens()
        self._renderer = ChatRenderer(definition, self._tokens.added, tokenizer.name)
        self._ids = {token.text: token.id for token in self._tokens.added}
        self._cuts = re.compile(f"({any_of([token.text for token in self._tokens.cuts or ()]).pattern})")
        self._bos = self._ids.get(definition.special_tokens.get("bos_token", ""), _NO_TOKEN)
        self._ranks, self._class_of_rank = _ranks()

    def render(self, text: str) -> Rendered:
        """Return a conversation as its template writes it; see ChatRenderer.render."""
        return self._renderer.render(text)

    def encode(self, rendered: Sequence[Rendered], dtype: np.dtype[Any]) -> EncodedChats:
        """Return the ids and classes of conversations.

        Args:
            rendered: by render.
            dtype: an unsigned type that holds every id.

        Raises TokenizerError if a text can't be encoded.
        """
        cut = np.array([self._can_cut(one) for one in rendered], bool)
        joined = self._encode_cut(list(compress(rendered, cut)), dtype)
        if not joined.fits.all():
            cut[cut] = joined.fits
            joined = self._encode_cut(list(compress(rendered, cut)), dtype)
        if not cut.all():
            joined = _merged(joined, [self._encode_whole(one, dtype) for one in compress(rendered, ~cut)], cut)
        return self._encoded(rendered, joined)

    def _can_cut(self, rendered: Rendered) -> bool:
        is_normal = not self._tokens.needs_nfc or unicodedata.is_normalized("NFC", rendered.text)
        return self._tokens.cuts is not None and is_normal

    def _encode_cut(self, rendered: Sequence[Rendered], dtype: np.dtype[Any]) -> _Joined:
        """Return conversations whose texts are cut at added tokens."""
        if not rendered:
            return _Joined(np.empty(0, dtype), np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, bool))
        texts, ids, last = list[str](), list[int](), list[int]()
        for one in rendered:
            self._cut(one, texts, ids)
            last.append(len(texts) - 1)
        part_bytes, part_tokens, ordinary = self._ordinary_ids(texts, dtype)
        added = np.array(ids, np.int64)  # the token after each part
        has_token = added != _NO_TOKEN
        added_bytes = np.where(has_token, self._tokens.num_bytes[added], 0)
        added_bytes[last] = 0
        ends = np.cumsum(part_tokens + has_token)
        is_added = np.zeros(ends[-1], bool)
        is_added[ends[has_token] - 1] = True
        tokens = np.empty(len(is_added), dtype)
        tokens[is_added], tokens[~is_added] = added[has_token], ordinary
        lengths = self._tokens.num_bytes[tokens]
        lengths[ends[last] - 1] = 0
        byte_ends = np.cumsum(lengths)
        fits = np.diff(byte_ends[ends - 1], prepend=0) == part_bytes + added_bytes
        fits = np.logical_and.reduceat(fits, np.array([0, *last[:-1]]) + (np.arange(len(last)) > 0))
        ranks = np.zeros(len(tokens), np.uint8)
        if fits.all():
            has_text = lengths > 0
            classes = np.concatenate(list(map(_byte_classes, rendered)))
            ranks[has_text] = self._highest(classes, (byte_ends - lengths)[has_text])
        return _Joined(tokens, np.diff(ends[last], prepend=0), ranks, fits)

    def _highest(self, classes: UInt8s, starts: Int64s) -> UInt8s:
        """Return the highest rank of the bytes of each token, given their classes, which seldom change in a token."""
        ranks = self._ranks[classes[starts]]
        changes = np.flatnonzero(classes[1:] != classes[:-1]) + 1
        np.maximum.at(ranks, np.searchsorted(starts, changes, "right") - 1, self._ranks[classes[changes]])
        return ranks

    def _cut(self, rendered: Rendered, texts: list[str], ids: list[int]) -> None:
        """Append the parts of a text between added tokens, and the id after each part."""
        position = 0
        for start, end in rendered.spellings:
            self._cut_part(rendered.text[position:start], texts, ids)
            texts.append(rendered.text[start:end])
            ids += [_NO_TOKEN, _NO_TOKEN]
            position = end
        self._cut_part(rendered.text[position:], texts, ids)
        ids.append(self._tokenizer.eot_id)

    def _cut_part(self, text: str, texts: list[str], ids: list[int]) -> None:
        parts = self._cuts.split(text)
        texts += parts[::2]
        ids += map(self._ids.__getitem__, parts[1::2])

    def _ordinary_ids(self, texts: list[str], dtype: np.dtype[Any]) -> tuple[Int64s, Int64s, NDArray[Any]]:
        """Return the bytes and tokens of each of (n,) texts, and their ids, without those that mark a document."""
        # Templates write the same parts again and again, such as "user" and an end of line.
        found = pa.array(texts, pa.large_string()).dictionary_encode()
        unique, index = found.dictionary, found.indices.to_numpy()
        num_bytes = np.diff(text_bytes(unique)[1])
        has_text = num_bytes > 0
        encoded = self._tokenizer.encode(unique.filter(pa.array(has_text)), dtype)
        ends = np.cumsum(encoded.num_tokens, dtype=np.int64)
        is_text = np.ones(len(encoded.tokens), bool)
        is_text[ends - 1] = False
        num_bos = len(self._tokenizer.bos_ids)
        for place in range(num_bos):
            is_text[ends - encoded.num_tokens + place] = False
        num_tokens = np.zeros(len(unique), np.int64)
        num_tokens[has_text] = encoded.num_tokens - np.uint32(num_bos + 1)
        tokens = take_segments(as_segments(encoded.tokens[is_text], num_tokens), index, dtype)
        return num_bytes[index], num_tokens[index], tokens

    def _encode_whole(self, rendered: Rendered, dtype: np.dtype[Any]) -> tuple[NDArray[Any], UInt8s]:
        """Return the ids of a conversation that is not cut, and the rank of each, with its end of text."""
        if self._tokens.locate is None:
            raise TokenizerError(f"tokenizer {self._tokenizer.name}: its ids do not add up to a text; give another")
        located = self._tokens.locate(rendered.text, rendered.spellings)
        ranks = np.append(self._ranks[np.frombuffer(rendered.classes, np.uint8)], np.uint8(0))
        places = np.stack([located.starts, located.ends], axis=1).ravel()
        of_tokens = np.maximum.reduceat(ranks, np.minimum(places, len(ranks) - 1))[::2] if len(places) else ranks[:0]
        return np.append(located.ids, self._tokenizer.eot_id).astype(dtype), np.append(of_tokens, 0).astype(np.uint8)

    def _encoded(self, rendered: Sequence[Rendered], joined: _Joined) -> EncodedChats:
        ends = np.cumsum(joined.num_tokens)
        starts = ends - joined.num_tokens
        classes = self._class_of_rank[joined.ranks]
        classes[starts] |= BEGINS
        classes[ends - 1] = 0
        has_target = np.logical_or.reduceat(_TARGETS[classes], starts) if len(starts) else np.empty(0, bool)
        second = joined.tokens[np.minimum(starts + 1, ends - 1)]
        counts = ChatCounts(
            conversations=len(rendered),
            turns=sum(one.num_turns for one in rendered),
            ended_turns=sum(one.num_ended for one in rendered),
            without_target=int(np.count_nonzero(~has_target)),
            incomplete=sum(one.is_incomplete for one in rendered),
            doubled_bos=int(np.count_nonzero((joined.tokens[starts] == self._bos) & (second == self._bos))),
        )
        return EncodedChats(joined.tokens, joined.num_tokens.astype(np.uint32), classes, counts)


@dataclass(frozen=True)
class _Joined:
    """The ids of n conversations, and the rank of the class of each; `fits` says of each whether its bytes add up."""

    tokens: NDArray[Any]
    num_tokens: Int64s
    ranks: UInt8s
    fits: NDArray[np.bool_]


def _byte_classes(rendered: Rendered) -> UInt8s:
    """Return the class of each byte of UTF-8."""
    classes = np.frombuffer(rendered.classes, np.uint8)
    if rendered.text.isascii():
        return classes
    is_first = np.frombuffer(rendered.text.encode(), np.int8) >= -0x40  # byte of a character
    found: UInt8s = classes[np.cumsum(is_first) - 1]
    return found


def _merged(joined: _Joined, others: list[tuple[NDArray[Any], UInt8s]], is_joined: NDArray[np.bool_]) -> _Joined:
    """Return conversations in order: those of `joined` where `is_joined`, and others."""
    ends = np.cumsum(joined.num_tokens)[:-1]
    own = zip(np.split(joined.tokens, ends), np.split(joined.ranks, ends), strict=True)
    rest = iter(others)
    tokens, ranks = zip(*(next(own) if is_own else next(rest) for is_own in is_joined), strict=True)
    num_tokens = np.array(list(map(len, tokens)), np.int64)
    return _Joined(np.concatenate(tokens), num_tokens, np.concatenate(ranks), np.ones(len(tokens), bool))


def _ranks() -> tuple[UInt8s, UInt8s]:
    """Return an order of the classes, (256,) each way: a token that overlaps several has the highest.

    What train_detail keeps out is above what a model may learn of the assistant, then come its messages that are kept
    out, then all others.
    """
    classes = np.arange(256)
    is_of_assistant = np.isin(classes & ROLE_BITS, OF_ASSISTANT)
    order = np.where(classes & KEPT_OUT, 3, is_of_assistant * (1 + (classes & MAY_LEARN > 0)))
    class_of_rank = np.lexsort([classes, order]).astype(np.uint8)
    ranks = np.empty(256, np.uint8)
    ranks[class_of_rank] = classes
    return ranks, class_of_rank & np.uint8(255 - KEPT_OUT)
