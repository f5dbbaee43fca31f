"""What a tokenizer.json may hold for a fast encoder: parts that splintr-rs is known to support.

A file with any other part is encoded by the reference. Special tokens in a text are the caller's matter: such texts
never reach a fast encoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# The patterns of GPT-4 (also Llama 3 and OLMo 2), Qwen 2 and GPT-4o, as their files spell them.
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT_4 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
QWEN_2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT_4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
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


class Unproven(Exception):
    """No fast encoder is known to give the ids of a tokenizer; the message says why, as a clause."""


def check_tokenizer_json(content: Mapping[str, Any]) -> None:
    """Raise Unproven if the content of a tokenizer.json has a part that is not known to be supported."""
    model = content["model"]
    for name, value in model.items():
        if name not in ("vocab", "merges") and value not in _MODEL.get(name, ()):
            raise Unproven(f"its model has {name}: {value!r}")
    normalizers = {part["type"] for part in parts(content.get("normalizer"), "normalizers")}
    if unknown := sorted(normalizers - {"NFC"}):
        raise Unproven(f"its normalizer is {unknown[0]}")
    _check_pre_tokenizers(parts(content.get("pre_tokenizer"), "pretokenizers"))
    _check_added_tokens(content.get("added_tokens") or [], bool(normalizers))


def parts(step: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """Return a normalizer or pre-tokenizer as the list of its parts, which a Sequence has under `name`."""
    if step is None:
        return []
    return [part for inner in step[name] for part in parts(inner, name)] if step["type"] == "Sequence" else [step]


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
    if any(split["behavior"] != "Isolated" or split["invert"] for split in splits):
        raise Unproven("its pre-tokenizer Split does not isolate the matches of its pattern")


def _check_added_tokens(tokens: Sequence[Mapping[str, Any]], normalizes: bool) -> None:
    ordinary = [token for token in tokens if not token["special"]]
    for token in tokens:
        shown = f"its added token {token['content']!r}"
        if not token["content"]:
            raise Unproven("it has an empty added token")
        if token["special"] and token["normalized"]:
            raise Unproven(f"{shown} is special and found in normalized text")
    for token in ordinary:
        shown = f"its added token {token['content']!r}"
        if token["single_word"] or token["lstrip"] or token["rstrip"]:
            raise Unproven(f"{shown} looks at its neighbours")
        if not token["content"].isascii():
            raise Unproven(f"{shown} is not ASCII")
        # A mark may compose with the last letter of a token that is found in normalized text, never with a space.
        if normalizes and token["normalized"] and not token["content"].isspace():
            raise Unproven(f"{shown} is found in normalized text")
    if len({token["normalized"] for token in ordinary}) > 1:
        raise Unproven("some of its added tokens are found in normalized text, others are not")
