"""What a tokenizer.json with byte fallback may hold for a fast encoder, such as those of Llama 2, Phi 3 and Gemma 3.

Such a model writes a space as U+2581, and looks at a text as a whole, or at what is between two added tokens. gigatoken
encodes with it as it does with a SentencePiece model.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from tokenloom.tokenizers.fast.known_parts import (
    Unproven,
    check_ids,
    check_model,
    in_order,
    is_white_space,
    merge,
    white_space_ids,
)
from tokenloom.tokenizers.fast.sentencepiece_parts import BYTES, SPACE_MARK, SPACES_TO_MARKS, pieces_json
from tokenloom.tokenizers.long_texts import parts_of

_MODEL = {
    "type": ("BPE",),
    "dropout": (None,),
    "unk_token": (None, "<unk>"),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "fuse_unk": (True, False, None),
    "byte_fallback": (True,),
    "ignore_merges": (False, None),
}
_PREPEND = {"type": "Prepend", "prepend": SPACE_MARK}
_NO_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def check_byte_fallback(content: Mapping[str, Any]) -> None:
    """Raise Unproven if the content of a tokenizer.json has a part that is not known to be supported."""
    model = content["model"]
    check_model(model, _MODEL)
    if _normalizers(content) not in ([SPACES_TO_MARKS], [_PREPEND, SPACES_TO_MARKS]):
        raise Unproven("its normalizer does more than replace spaces by U+2581")
    if parts_of(content.get("pre_tokenizer"), "pretokenizers") not in ([], [_NO_SPLIT]):  # no space is left to split at
        raise Unproven("its pre-tokenizer splits a text")
    if {token for token in model["vocab"] if token.startswith("<0x")} != BYTES:
        raise Unproven("its bytes are not <0x00> to <0xFF>")
    for token in content.get("added_tokens") or []:
        spelled, is_found = token["content"], is_white_space(token)
        shown = f"its added token {spelled!r}"
        if not spelled:
            raise Unproven("it has an empty added token")
        if is_found and (token["single_word"] or token["lstrip"] or token["rstrip"]):
            raise Unproven(f"{shown} looks at its neighbours")
        if is_found and adds_space(content):
            raise Unproven(f"{shown} puts a space before what follows")
        if token["normalized"] and (is_found or set(spelled) & {" ", SPACE_MARK}):
            raise Unproven(f"{shown} may appear when a text is normalized")
    check_ids(chain(model["vocab"].items(), white_space_ids(content).items()))


def adds_space(content: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer.json that passed check_byte_fallback puts a space before each text."""
    return _PREPEND in _normalizers(content)


def _normalizers(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return parts_of(content.get("normalizer"), "normalizers")


def bare_pieces(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides the ids of a tokenizer.json that passed check_byte_fallback, see bare_content."""
    model = content["model"]
    return pieces_json(in_order(model["vocab"]), list(map(merge, model["merges"])), white_space_ids(content))
