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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenloom.tokenizers.patterns import SPACE_MARK, SPACES_TO_MARKS

FILE = "tokenizer.model"
BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
_PIECES, _TRAINER, _NORMALIZER, _SELF_TEST, _DENORMALIZER = range(1, 6)
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # types of pieces
_TEXT, _SCORE, _TYPE = range(1, 4)  # fields of a piece
_LAST_TRAINER_FIELD = 55  # the last that sentencepiece 0.2.3 writes
_NORMALIZER_NAME, _ADD_DUMMY_PREFIX = 1, 3
# The part of a field, its number, its default and the supported value.
_SUPPORTED: list[tuple[int, int, int | bytes, int | bytes]] = [
    (_TRAINER, 3, 1, 2),  # model_type: BPE
    (_TRAINER, 24, 0, 0),  # treat_whitespace_as_suffix
    (_TRAINER, 35, 0, 1),  # byte_fallback
    (_NORMALIZER, 2, b"", b""),  # precompiled_charsmap
    (_NORMALIZER, 4, 1, 0),  # remove_extra_whitespaces
    (_NORMALIZER, 5, 1, 1),  # escape_whitespaces
    (_NORMALIZER, 6, b"", b""),  # normalization_rule_tsv
]
_Value = int | float | bytes
_Pieces = dict[int, dict[str, tuple[int, float]]]  # by type: the id and the score of each piece


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

    Raises ValueError if no tokenizer.json is known to give the ids of the model; its message names the part.
    """
    parts: dict[int, dict[int, _Value]] = {_TRAINER: {}, _NORMALIZER: {}}  # the last value of each field
    pieces: _Pieces = {kind: {} for kind in range(_NORMAL, _BYTE + 1)}
    num_pieces = 0
    for number, value in _fields(data):
        if number == _PIECES:
            fields = {_TEXT: b"", _SCORE: 0.0, _TYPE: _NORMAL} | dict(_fields(value))
            text, score, kind = fields[_TEXT], fields[_SCORE], fields[_TYPE]
            if type(text) is not bytes or type(score) is not float or kind not in pieces:
                raise ValueError("pieces")
            pieces[int(kind)][text.decode()] = num_pieces, score
            num_pieces += 1
        elif number in parts:
            parts[number].update(_fields(value))
        elif number not in (_SELF_TEST, _DENORMALIZER):
            raise ValueError("fields")
    adds_space = parts[_NORMALIZER].get(_ADD_DUMMY_PREFIX, 1)
    if type(adds_space) is not int or not _are_supported(parts):
        raise ValueError("settings")
    if not _are_merged(pieces):
        raise ValueError("pieces")
    ids = {piece: i for piece, (i, _) in (pieces[_NORMAL] | pieces[_BYTE]).items()}
    added = {as_text(piece): i for piece, (i, _) in pieces[_USER_DEFINED].items()}
    merges = _merges({piece: score for piece, (_, score) in pieces[_NORMAL].items()})
    return pieces_json(ids, merges, found_first(added)), adds_space != 0


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


def _are_supported(parts: Mapping[int, Mapping[int, _Value]]) -> bool:
    """Return whether the settings are those of a BPE model with byte fallback that does not normalize."""
    found = [(parts[part].get(number, default), supported) for part, number, default, supported in _SUPPORTED]
    known = {_NORMALIZER_NAME, _ADD_DUMMY_PREFIX, *(number for part, number, *_ in _SUPPORTED if part == _NORMALIZER)}
    return (
        all(type(value) is type(supported) and value == supported for value, supported in found)
        and parts[_NORMALIZER].keys() <= known
        and max(parts[_TRAINER], default=0) <= _LAST_TRAINER_FIELD
    )


def _are_merged(pieces: _Pieces) -> bool:
    """Return whether the pieces are known to be merged alike: from characters that are pieces, in an order.

    Runs of U+2581, which trainers add, may share a score.
    """
    normal, made = pieces[_NORMAL], pieces[_NORMAL] | pieces[_USER_DEFINED]
    characters = {piece for piece in made if len(piece) == 1}
    scores = [(score, not piece.strip(SPACE_MARK)) for piece, (_, score) in normal.items() if len(piece) > 1]
    shared, others = {score for score, is_run in scores if is_run}, [score for score, is_run in scores if not is_run]
    return (
        pieces[_BYTE].keys() == BYTES
        and not pieces[_UNUSED]
        and not any(len(piece) == 1 for piece in pieces[_CONTROL])
        and not any(" " in piece or piece.startswith("<0x") for piece in made)
        and all(map(characters.issuperset, normal))
        and all(math.isfinite(score) for score, _ in scores)
        and len(shared.union(others)) == len(shared) + len(others)
    )


def _fields(message: _Value) -> Iterator[tuple[int, _Value]]:
    """Yield the number and the value of each field, see https://protobuf.dev/programming-guides/encoding.

    The library ignores a field whose value has another type than its definition says, so callers refuse it.
    """
    if type(message) is not bytes:
        raise ValueError("fields")
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire_type = divmod(key, 8)
        if wire_type == 0:
            value, at = _varint(message, at)
            yield number, value
        elif wire_type == 2:
            length, at = _varint(message, at)
            yield number, message[at : at + length]
            at += length
        elif wire_type == 5:
            yield number, struct.unpack_from("<f", message, at)[0]
            at += 4
        else:
            raise ValueError("fields")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return an integer, 7 bits a byte with the lowest first, and the index of the byte after it."""
    value = shift = 0
    while message[at] >= 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1
