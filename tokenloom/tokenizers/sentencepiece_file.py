"""The file of a SentencePiece model, read as a tokenizer.json with the same ids.

A BPE model joins again and again the two neighbours that make the piece with the highest score, the leftmost of equals.
So every way to make a piece of two others is a merge, in the order of the scores. Control pieces, bytes and the unknown
piece are never made of text and are no merges. User-defined pieces are found first, from left to right, the longest at
each position: they are added tokens. A space is the same as U+2581.

The file is a message of protobuf (sentencepiece_model.proto). The library protobuf would be one more dependency, and
fails where another package of the process registered its own copy of that schema, as transformers does.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

from tokenloom.tokenizers.patterns import SPACE_MARK, SPACES_TO_MARKS

FILE = "tokenizer.model"
BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
_PIECES, _TRAINER, _NORMALIZER, _SELF_TEST, _DENORMALIZER = range(1, 6)
_NUM_BYTES = {1: 8, 5: 4}  # by wire type
_LAST_TRAINER_FIELD = 55  # the last that sentencepiece 0.2.3 writes
_NORMALIZER_NAME, _ADD_DUMMY_PREFIX = 1, 3
# The part of a field, its number, its default, the supported value, and the reason why no other one is.
_SUPPORTED: list[tuple[int, int, int | bytes, int | bytes, str]] = [
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


def as_text(piece: str) -> str:
    """Replace U+2581 by spaces."""
    return piece.replace(SPACE_MARK, " ")


def pieces_json(
    ids: Mapping[str, int], merges: Sequence[Any], added_tokens: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the content of a tokenizer.json with byte fallback.

    Args:
        ids: the ids of the pieces that are made of text, or of a byte.
        merges: the pairs that make a piece, in the order in which they are merged.
        added_tokens: found before a text is cut.
    """
    return {
        "added_tokens": added_tokens,
        "normalizer": SPACES_TO_MARKS,
        "pre_tokenizer": None,
        "model": {"type": "BPE", "byte_fallback": True, "vocab": ids, "merges": merges},
    }


def found_first(ids: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return added tokens, by their ids, that are found wherever a text has them."""
    flags = dict.fromkeys(("special", "single_word", "lstrip", "rstrip", "normalized"), False)
    return [{"id": i, "content": token, **flags} for token, i in sorted(ids.items(), key=lambda item: item[1])]


def read_model(data: bytes) -> tuple[dict[str, Any], bool]:
    """Convert a model to the content of a tokenizer.json.

    Args:
        data: a file that SentencePiece has read.

    Returns:
        The content, and whether the model puts a space before each text.

    Raises ValueError if no tokenizer.json is known to give the ids of the model; its message is a clause.
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
            raise ValueError(f"its file has the unknown field {number}")
    _check_settings(parts)
    _check_pieces(pieces)
    ids = {piece: i for piece, (i, _) in (pieces[_Type.NORMAL] | pieces[_Type.BYTE]).items()}
    added = {as_text(piece): i for piece, (i, _) in pieces[_Type.USER_DEFINED].items()}
    merges = _merges({piece: score for piece, (_, score) in pieces[_Type.NORMAL].items()})
    return pieces_json(ids, merges, found_first(added)), parts[_NORMALIZER].get(_ADD_DUMMY_PREFIX, 1) != 0


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
    for part, number, default, supported, otherwise in _SUPPORTED:
        if parts[part].get(number, default) != supported:
            raise ValueError(otherwise)
    if type(parts[_NORMALIZER].get(_ADD_DUMMY_PREFIX, 1)) is not int:
        raise ValueError("its add_dummy_prefix is not a number")
    known = {_NORMALIZER_NAME, _ADD_DUMMY_PREFIX, *(number for part, number, *_ in _SUPPORTED if part == _NORMALIZER)}
    if unknown := sorted(parts[_NORMALIZER].keys() - known):
        raise ValueError(f"its normalizer_spec has the unknown field {unknown[0]}")
    if (last := max(parts[_TRAINER], default=0)) > _LAST_TRAINER_FIELD:
        raise ValueError(f"its trainer_spec has the unknown field {last}")


def _check_pieces(by_type: dict[int, dict[str, tuple[int, float]]]) -> None:
    made = {**by_type[_Type.NORMAL], **by_type[_Type.USER_DEFINED]}
    characters = {piece for piece in made if len(piece) == 1}
    if unknown := sorted(by_type.keys() - set(_Type)):  # the library takes such a piece for a normal one
        raise ValueError(f"its pieces have the unknown type {unknown[0]}")
    if set(by_type[_Type.BYTE]) != BYTES:
        raise ValueError("its bytes are not <0x00> to <0xFF>")
    refused = [
        ("piece {!r} is unused", by_type[_Type.UNUSED]),
        ("control piece {!r} is one character", [one for one in by_type[_Type.CONTROL] if len(one) == 1]),
        ("piece {!r} has a space or looks like a byte", [one for one in made if " " in one or one.startswith("<0x")]),
        (
            "piece {!r} has a character that is not a piece",
            [one for one in by_type[_Type.NORMAL] if not characters.issuperset(one)],
        ),
    ]
    for reason, pieces in refused:
        for piece in pieces:
            raise ValueError(f"its {reason.format(piece)}")
    _check_scores({piece: score for piece, (_, score) in by_type[_Type.NORMAL].items() if len(piece) > 1})


def _check_scores(scores: dict[str, float]) -> None:
    """Raise ValueError unless the scores give an order; runs of U+2581, which trainers add, may share one."""
    seen: dict[float, str] = {}
    for piece, score in scores.items():
        other = seen.setdefault(score, piece)
        if not math.isfinite(score):
            raise ValueError(f"the score of its piece {piece!r} is {score}")
        if other != piece and {*other, *piece} != {SPACE_MARK}:
            raise ValueError(f"its pieces {other!r} and {piece!r} have the same score")


def _piece(message: _Message) -> tuple[str, float, int]:
    """Return the text, the score and the type of a piece."""
    text, score, kind = message.get(1, b""), message.get(2, _Fixed(4)), message.get(3, int(_Type.NORMAL))
    if type(text) is bytes and isinstance(score, _Fixed) and len(score) == 4 and isinstance(kind, int):
        return text.decode(), struct.unpack("<f", score)[0], kind
    raise ValueError(f"its piece {text!r} is not text, a score and a type")


def _fields(message: _Value) -> Iterator[tuple[int, _Value]]:
    """Yield the number and the value of each field, see https://protobuf.dev/programming-guides/encoding.

    The library ignores a field whose value has another type than its definition says, so callers refuse it.
    """
    if type(message) is not bytes:
        raise ValueError("its file has a number in place of a message")
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire_type = divmod(key, 8)
        if wire_type == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire_type not in _NUM_BYTES and wire_type != 2:
            raise ValueError(f"its file has the field {number} of the type {wire_type}")
        length, at = _varint(message, at) if wire_type == 2 else (_NUM_BYTES[wire_type], at)
        data = message[at : at + length]
        yield number, data if wire_type == 2 else _Fixed(data)
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return an integer, 7 bits a byte with the lowest first, and the index of the byte after it."""
    value = shift = 0
    while message[at] >= 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1
