"""The properties of a tokenizer.json that decide how conversations are encoded.

A text may be cut at added tokens, and its parts be encoded on their own, if the library does just that: it finds the
added tokens first, and each part between them gets its normal form and its words alone. That is not so if a token looks
at its neighbours, if a normalizer or pre-tokenizer puts a space before a text, or if tokens that are found before and
after the normalizer could overlap. Then the library encodes the whole text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models

from tokenloom.tokenizers.base import AddedToken, ChatTokens, Located, num_bytes
from tokenloom.tokenizers.patterns import SPACE_MARK, SPACES_TO_MARKS, steps_of

_SPACES = [code for code in range(0x3001) if chr(code).isspace()]
_LOCAL_STEPS = {"Split", "ByteLevel", "Digits"}


def chat_tokens_of(library: tokenizers.Tokenizer, vocab_size: int) -> ChatTokens:
    """Return the properties of a tokenizer.json."""
    decoder = library.get_added_tokens_decoder()
    added = [AddedToken(token.content, i, token.special) for i, token in sorted(decoder.items())]
    normalizers, steps = _parts(library.normalizer, "normalizers"), _parts(library.pre_tokenizer, "pretokenizers")
    vocabulary = library.get_vocab(with_added_tokens=False)
    has_pieces = isinstance(library.model, models.BPE) and library.model.byte_fallback
    lengths = map(_piece_bytes if has_pieces else len, vocabulary)  # a letter of a byte-level token is a byte
    is_local = (
        isinstance(library.model, models.BPE)
        and all(part == SPACES_TO_MARKS or part["type"] == "NFC" for part in normalizers)
        and all(step["type"] in _LOCAL_STEPS and not step.get("add_prefix_space") for step in steps)
        and not any(token.lstrip or token.rstrip or token.single_word for token in decoder.values())
        and not _may_overlap(decoder.values())
    )
    return ChatTokens(
        added=added,
        num_bytes=num_bytes(vocabulary.values(), lengths, added, vocab_size),
        # Runs of white space are left to the encoder, which finds them; they touch no other token.
        cuts=[token for token in added if token.special or not token.text.isspace()] if is_local else None,
        needs_nfc=any(part["type"] == "NFC" for part in normalizers),
        locate=partial(_locate, library),
    )


def _parts(step: Any, name: str) -> Sequence[Any]:
    return steps_of(None if step is None else json.loads(step.__getstate__()), name)


def _piece_bytes(token: str) -> int:
    """Return the bytes of a piece of a model with byte fallback."""
    is_byte = len(token) == 6 and token.startswith("<0x")
    return 1 if is_byte else len(token.replace(SPACE_MARK, " ").encode())


def _may_overlap(tokens: Iterable[tokenizers.AddedToken]) -> bool:
    """Return whether a token found before the normalizer and one found after it can overlap, or hold one another."""
    found = [[token.content for token in tokens if token.normalized is after] for after in (False, True)]
    starts = [{text[:end] for text in texts for end in range(1, len(text) + 1)} for texts in found]
    ends = [{text[start:] for text in texts for start in range(len(text))} for texts in found]
    inside = any(one in other or other in one for one in found[0] for other in found[1])
    return inside or bool(starts[0] & ends[1]) or bool(starts[1] & ends[0])


def _locate(library: tokenizers.Tokenizer, text: str, ordinary: Sequence[tuple[int, int]]) -> Located:
    """See ChatTokens.locate."""
    parts, position = [], 0
    library.encode_special_tokens = False
    try:
        for start, end in ordinary:
            parts += [_part(library, text, position, start), _ordinary(library, text, start, end)]
            position = end
        parts.append(_part(library, text, position, len(text)))
    finally:
        library.encode_special_tokens = True
    ids, offsets = zip(*parts, strict=True)
    spans = np.concatenate(offsets)
    _close_gaps(text, spans)
    return Located(np.concatenate(ids), spans[:, 0], np.maximum(spans[:, 1], spans[:, 0] + 1))


def _close_gaps(text: str, spans: Any) -> None:
    """Give the characters that no token has to one; `spans`, (n, 2) [start, end), are those of the tokens.

    Some libraries leave out white space, which belongs to the token that follows, and the marks that a normalizer
    composes with a letter, which belong to the letter's tokens.
    """
    starts, ends = spans.T
    reached = np.maximum.accumulate(np.concatenate([[0], ends[:-1]]))
    gaps = starts > reached
    if gaps.any():
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        num_others = np.concatenate([[0], np.cumsum(~np.isin(codes, _SPACES))])  # characters that are no white space
        has_others = gaps & (num_others[starts] > num_others[reached])
        gap_starts, gap_ends = reached[has_others], starts[has_others]
        starts[gaps & ~has_others] = reached[gaps & ~has_others]
        gap = np.searchsorted(gap_starts, ends)
        is_before = np.append(gap_starts, -1)[gap] == ends
        ends[is_before] = gap_ends[gap[is_before]]


def _part(library: tokenizers.Tokenizer, text: str, start: int, end: int) -> tuple[Any, Any]:
    """Return the ids of a part of a text, and their spans in the text.

    A part that begins within the text is encoded after a line break, so that no space is put before it.
    """
    if start > 0:
        newline = library.encode("\n", add_special_tokens=False).ids
        encoding = library.encode("\n" + text[start:end], add_special_tokens=False)
        if start < end and encoding.ids[: len(newline)] == newline:
            return _arrays(encoding.ids[len(newline) :], encoding.offsets[len(newline) :], start - 1)
    encoding = library.encode(text[start:end], add_special_tokens=False)
    return _arrays(encoding.ids, encoding.offsets, start)


def _ordinary(library: tokenizers.Tokenizer, text: str, start: int, end: int) -> tuple[Any, Any]:
    """Return the ids of a part in which no added token is found; each is as long as the part."""
    newline = library.encode("\n", add_special_tokens=False).ids
    ids = _ids_of_words(library, "\n" + text[start:end])
    follows = ids[: len(newline)] == newline
    ids = ids[len(newline) :] if follows else _ids_of_words(library, text[start:end])
    return _arrays(ids, [(0, end - start)] * len(ids), start)


def words_of(library: tokenizers.Tokenizer, text: str) -> list[str]:
    """Normalize a text in which no added token is found, and cut it into words."""
    normal = text if library.normalizer is None else library.normalizer.normalize_str(text)
    if library.pre_tokenizer is None:
        return [normal]
    return [word for word, _ in library.pre_tokenizer.pre_tokenize_str(normal)]


def _ids_of_words(library: tokenizers.Tokenizer, text: str) -> list[int]:
    """Return the ids of a text in which no added token is found."""
    return [token.id for word in words_of(library, text) for token in library.model.tokenize(word)]


def _arrays(ids: Sequence[int], offsets: Sequence[tuple[int, int]], start: int) -> tuple[Any, Any]:
    return np.array(ids, np.uint32), np.array(offsets, np.int64).reshape(-1, 2) + start
