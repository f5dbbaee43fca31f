"""What a SentencePiece model may hold for a fast encoder, and the same model as a tokenizer.json.

A BPE model joins again and again the two neighbours that make the piece with the highest score, the leftmost of equals.
So every way to make a piece of two others is a merge, in the order of the scores. Control pieces, bytes and the unknown
piece are never made of text and are no merges. User-defined pieces are found first, from left to right, the longest at
each place: they are added tokens. A space is the same as U+2581.

The model file is a message of protobuf (sentencepiece_model.proto). The library protobuf would be one more dependency,
and fails where another package of the process registered its own copy of that file, as transformers does.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

from tokenloom.tokenizers.fast.known_parts import BYTES, SPACE_MARK, Unproven, pieces_json

FILE = "tokenizer.model"
_PIECES, _TRAINER, _NORMALIZER, _SELF_TEST, _DENORMALIZER = range(1, 6)
_LAST_TRAINER_FIELD = 55  # of sentencepiece 0.2.3
_NORMALIZER_NAME, _ADD_DUMMY_PREFIX = 1, 3
# The field of a part, its default, what it must be, and what the model is otherwise.
_NEEDED: list[tuple[int, int, int | bytes, int | bytes, str]] = [
    (_TRAINER, 3, 1, 2, "its model_type is not BPE"),
    (_TRAINER, 24, 0, 0, "it has treat_whitespace_as_suffix"),
    (_TRAINER, 35, 0, 1, "it has no byte_fallback"),
    (_NORMALIZER, 2, b"", b"", "it normalizes text: it has a precompiled_charsmap"),
    (_NORMALIZER, 4, 1, 0, "it has remove_extra_whitespaces"),
    (_NORMALIZER, 5, 1, 1, "it has no escape_whitespaces"),
    (_NORMALIZER, 6, b"", b"", "it normalizes text: it has a normalization_rule_tsv"),
]


class _Fixed(bytes):
    """A value of 4 or 8 bytes, such as a float."""


_Value = int | bytes | _Fixed
_Message = dict[int, _Value]  # the last value of each field


class _Type(IntEnum):
    NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def spaced(text: bytes, adds_space: bool) -> bytes:
    """Return a text, UTF-8, with spaces for U+2581, and a space before it where the model adds one."""
    with_spaces = text.replace(SPACE_MARK.encode(), b" ")
    return b" " + with_spaces if text and adds_space else with_spaces


def as_text(piece: str) -> str:
    """Return the text of a piece."""
    return piece.replace(SPACE_MARK, " ")


def read_model(data: bytes) -> tuple[dict[str, Any], bool]:
    """Return the content of a tokenizer.json with the ids of a model, and whether the model adds a space; see `spaced`.

    Args:
        data: a file that SentencePiece has read.

    Raises Unproven if it has a part that a fast encoder is not known to support.
    """
    parts: dict[int, _Message] = {_TRAINER: {}, _NORMALIZER: {}}
    pieces: dict[int, dict[str, tuple[int, float]]] = defaultdict(dict)
    num_pieces = 0
    for number, value in _fields(data):
        if number == _PIECES:
            piece, score, kind = _piece(dict(_fields(value)))
            pieces[kind][piece] = num_pieces, score
            num_pieces += 1
        elif number in parts:
            parts[number].update(_fields(value))
        elif number not in (_SELF_TEST, _DENORMALIZER):
            raise Unproven(f"its file has the unknown field {number}")
    _check_settings(parts)
    _check_pieces(pieces)
    ids, defined = (
        {piece: i for piece, (i, _) in each.items()}
        for each in (pieces[_Type.NORMAL] | pieces[_Type.BYTE], pieces[_Type.USER_DEFINED])
    )
    merges = _merges({piece: score for piece, (_, score) in pieces[_Type.NORMAL].items()})
    adds_space = parts[_NORMALIZER].get(_ADD_DUMMY_PREFIX, 1) != 0
    return pieces_json(ids, merges, {as_text(piece): i for piece, i in defined.items()}), adds_space


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the pairs that make a piece, in the order in which they are merged.

    Of pieces with the same score, which are runs of U+2581, the longest is first: only the leftmost run of a text
    grows as long as it can. The halves of one piece have the order of transformers' converter.
    """
    ranked = [
        (-score, -end, end - len(piece), piece[:end], piece[end:])
        for piece, score in scores.items()
        for end in range(1, len(piece))
        if piece[:end] in scores and piece[end:] in scores
    ]
    return [(left, right) for *_, left, right in sorted(ranked)]


def _check_settings(parts: dict[int, _Message]) -> None:
    for part, number, default, needed, otherwise in _NEEDED:
        if parts[part].get(number, default) != needed:
            raise Unproven(otherwise)
    if type(parts[_NORMALIZER].get(_ADD_DUMMY_PREFIX, 1)) is not int:
        raise Unproven("its add_dummy_prefix is not a number")
    known = {_NORMALIZER_NAME, _ADD_DUMMY_PREFIX, *(number for part, number, *_ in _NEEDED if part == _NORMALIZER)}
    if unknown := sorted(parts[_NORMALIZER].keys() - known):
        raise Unproven(f"its normalizer_spec has the unknown field {unknown[0]}")
    if (last := max(parts[_TRAINER], default=0)) > _LAST_TRAINER_FIELD:
        raise Unproven(f"its trainer_spec has the unknown field {last}")


def _check_pieces(by_type: dict[int, dict[str, tuple[int, float]]]) -> None:
    normal, defined = by_type[_Type.NORMAL], by_type[_Type.USER_DEFINED]
    if unknown := sorted(by_type.keys() - set(_Type)):  # the library takes such a piece for a normal one
        raise Unproven(f"its pieces have the unknown type {unknown[0]}")
    if unused := [*by_type[_Type.UNUSED]]:
        raise Unproven(f"its piece {unused[0]!r} is unused")
    if set(by_type[_Type.BYTE]) != BYTES:
        raise Unproven("its bytes are not <0x00> to <0xFF>")
    if short := [piece for piece in by_type[_Type.CONTROL] if len(piece) == 1]:
        raise Unproven(f"its control piece {short[0]!r} is one character")
    if misleading := [piece for piece in (*normal, *defined) if " " in piece or piece.startswith("<0x")]:
        raise Unproven(f"its piece {misleading[0]!r} has a space or looks like a byte")
    characters = {piece for piece in (*normal, *defined) if len(piece) == 1}
    if unmade := [piece for piece in normal if not characters.issuperset(piece)]:
        raise Unproven(f"its piece {unmade[0]!r} has a character that is not a piece")
    _check_scores({piece: score for piece, (_, score) in normal.items() if len(piece) > 1})


def _check_scores(scores: dict[str, float]) -> None:
    """Raise Unproven unless the scores give an order; runs of U+2581, which trainers add, may share one."""
    seen: dict[float, str] = {}
    for piece, score in scores.items():
        other = seen.setdefault(score, piece)
        if not math.isfinite(score):
            raise Unproven(f"the score of its piece {piece!r} is {score}")
        if other != piece and {*other, *piece} != {SPACE_MARK}:
            raise Unproven(f"its pieces {other!r} and {piece!r} have the same score")


def _piece(message: _Message) -> tuple[str, float, int]:
    """Return the text, the score and the type of a piece."""
    text, score, kind = message.get(1, b""), message.get(2, _Fixed(4)), message.get(3, int(_Type.NORMAL))
    try:
        if type(text) is bytes and isinstance(score, _Fixed) and isinstance(kind, int):
            return text.decode(), struct.unpack("<f", score)[0], kind
    except (UnicodeDecodeError, struct.error):
        pass
    raise Unproven(f"its piece {text!r} is not text, a score and a type")


def _fields(message: _Value) -> Iterator[tuple[int, _Value]]:
    """Yield the number and the value of each field, see https://protobuf.dev/programming-guides/encoding.

    The library ignores a field whose value has another type than its definition says, so callers refuse it.
    """
    if type(message) is not bytes:
        raise Unproven("its file has a number in place of a message")
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key >= 2**32:
            raise Unproven("its file has a field whose number is too large")
        number, wire_type = divmod(key, 8)
        if wire_type == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire_type not in (1, 2, 5):
            raise Unproven(f"its file has a field of the type {wire_type}")
        length, at = _varint(message, at) if wire_type == 2 else (8 if wire_type == 1 else 4, at)
        data = message[at : at + length]
        if len(data) < length:
            raise Unproven("its file has a message that ends within a field")
        yield number, data if wire_type == 2 else _Fixed(data)
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return an integer at a place, 7 bits a byte with the lowest first, and the place behind it."""
    value = shift = 0
    while True:
        if at >= len(message):
            raise Unproven("its file has a message that ends within a number")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if value >= 2**64:
            raise Unproven("its file has a number of over 64 bits")
        if byte < 0x80:
            return value, at
