"""What a tokenizer.json may hold for a fast encoder: parts that splintr-rs is known to support.

A file with any other part is encoded by the reference. Added tokens in a text are the caller's matter: a text with one
never reaches a fast encoder, unless it is_white_space.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from tokenloom.tokenizers.long_texts import parts_of
from tokenloom.tokenizers.patterns import GPT_2, GPT_4, GPT_4O, KEEPS_MATCHES, QWEN_2

_PATTERNS = (GPT_2, GPT_4, QWEN_2, GPT_4O)
_MODEL = {
    "type": ("BPE",),
    "dropout": (None,),
    "unk_token": (None,),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "fuse_unk": (False, None),
    "byte_fallback": (False, None),
    "ignore_merges": (True, False, None),
}
_MAX_ID_SHARE = 16  # libraries allocate a place for each id up to the highest, and end the process if they can't


class Unproven(Exception):
    """No fast encoder is known to give the ids of a tokenizer; the message says why, as a clause."""


def check_ids(tokens: Iterable[tuple[str | bytes, int]]) -> None:
    """Raise Unproven if two tokens have the same id, or an id would make a library's tables far larger than needed.

    Args:
        tokens: the tokens and their ids; a token may be there twice.
    """
    ids: dict[int, str | bytes] = {}
    for token, i in tokens:
        if ids.setdefault(i, token) != token:
            raise Unproven(f"its tokens {ids[i]!r} and {token!r} have the same id {i}")
    if ids and max(ids) > _MAX_ID_SHARE * len(ids):
        raise Unproven(f"the id {max(ids):,} of its token {ids[max(ids)]!r} is too high for {len(ids):,} tokens")


def check_tokenizer_json(content: Mapping[str, Any]) -> None:
    """Raise Unproven if the content of a tokenizer.json has a part that is not known to be supported."""
    model = content["model"]
    for name, value in model.items():
        if name not in ("vocab", "merges") and value not in _MODEL.get(name, ()):
            raise Unproven(f"its model has {name}: {value!r}")
    if unknown := sorted({part["type"] for part in _normalizers(content)} - {"NFC"}):
        raise Unproven(f"its normalizer is {unknown[0]}")
    _check_pre_tokenizers(parts_of(content.get("pre_tokenizer"), "pretokenizers"))
    added = _added_tokens(content)
    _check_added_tokens(added, normalizes(content))
    spaces = ((token["content"], token["id"]) for token in added if is_white_space(token))
    check_ids(chain(model["vocab"].items(), spaces))


def normalizes(content: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer.json that passed check_tokenizer_json brings texts into normal form C."""
    return bool(_normalizers(content))


def _normalizers(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return parts_of(content.get("normalizer"), "normalizers")


def bare_content(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides the ids of a tokenizer.json that passed check_tokenizer_json, in one form.

    Two files have the same bare content if they differ only in what a fast encoder must not know or do (special tokens,
    templates, the normalizer), or in how they write the same.
    """
    model = content["model"]
    flags = dict.fromkeys(("special", "single_word", "lstrip", "rstrip", "normalized"), False)
    spaces = [{"id": t["id"], "content": t["content"], **flags} for t in _added_tokens(content) if is_white_space(t)]
    return {
        "model": {
            "type": "BPE",
            "ignore_merges": bool(model.get("ignore_merges")),
            "vocab": dict(sorted(model["vocab"].items(), key=itemgetter(1))),
            "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]],
        },
        "added_tokens": sorted(spaces, key=itemgetter("id")),
        "pre_tokenizer": _pre_tokenizer(parts_of(content.get("pre_tokenizer"), "pretokenizers")),
    }


def _pre_tokenizer(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the pre-tokenizer with these steps."""
    patterns = [step["pattern"]["Regex"] for step in steps if step["type"] == "Split"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": patterns in ([], [GPT_2])}
    if byte_level["use_regex"]:
        return byte_level
    splits = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    return {"type": "Sequence", "pretokenizers": [*splits, byte_level]}


def _added_tokens(content: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return content.get("added_tokens") or []


def routed_spellings(content: Mapping[str, Any]) -> list[str]:
    """Return the added tokens that a fast encoder must not get in a text."""
    return [token["content"] for token in _added_tokens(content) if not is_white_space(token)]


def _check_pre_tokenizers(steps: list[Mapping[str, Any]]) -> None:
    if not steps or steps[-1]["type"] != "ByteLevel":
        raise Unproven("its pre-tokenizer does not end with ByteLevel")
    *others, byte_level = steps
    if byte_level.get("add_prefix_space"):
        raise Unproven("its pre-tokenizer ByteLevel has add_prefix_space: True")
    splits = [step for step in others if step["type"] == "Split"]
    if unknown := [step["type"] for step in others if step["type"] not in ("Split", "Digits")]:
        raise Unproven(f"its pre-tokenizer is {unknown[0]}")
    if len(splits) + byte_level.get("use_regex", True) != 1:
        raise Unproven("its pre-tokenizer does not have one pattern")
    if any(split["pattern"].get("Regex") not in _PATTERNS for split in splits):
        raise Unproven("its pattern is not that of GPT-2, GPT-4, Qwen 2 or GPT-4o")
    if any((split["behavior"], split["invert"]) not in KEEPS_MATCHES for split in splits):
        raise Unproven("its pre-tokenizer Split does not keep the matches of its pattern")


def is_white_space(token: Mapping[str, Any]) -> bool:
    """Return whether a fast encoder is trusted to find an added token: a run of white space that is not special.

    A text with any other added token is left to the reference.
    """
    return not token["special"] and token["content"].isspace()


def _check_added_tokens(tokens: Sequence[Mapping[str, Any]], normalizes: bool) -> None:
    for token in tokens:
        shown = f"its added token {token['content']!r}"
        if not token["content"]:
            raise Unproven("it has an empty added token")
        if is_white_space(token) and (token["single_word"] or token["lstrip"] or token["rstrip"]):
            raise Unproven(f"{shown} looks at its neighbours")
        if normalizes and not _is_stable(token["content"]):
            raise Unproven(f"{shown} may appear when a text is normalized")
    if len({token["normalized"] for token in tokens if is_white_space(token)}) > 1:
        raise Unproven("some of its added tokens are found in normalized text, others are not")


def _is_stable(content: str) -> bool:
    """Return whether a text in normal form C contains `content` only if the text itself does.

    The three ASCII characters that are the normal form of another one are K (of U+212A), ; (U+037E) and ` (U+1FEF).
    """
    return content.isascii() and not set(content) & set("K;`")
