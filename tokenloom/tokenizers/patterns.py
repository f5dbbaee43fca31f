"""The regular expressions by which well-known tokenizers cut a text into words, and the steps of a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_TAIL_WITH_SLASH = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
MIXED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)

GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT_4 = rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"  # also Llama 3 and OLMo 2
QWEN_2 = rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
GPT_4O = "|".join([*(f"{word}{CONTRACTION}?" for word in MIXED_WORDS), r"\p{N}{1,3}", _TAIL_WITH_SLASH])
TEKKEN = "|".join([*MIXED_WORDS, r"\p{N}", _TAIL_WITH_SLASH])
DEEPSEEK_3 = (  # one after the other
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)

# Models with byte fallback write a space as U+2581, by this normalizer.
SPACE_MARK = "\u2581"
SPACES_TO_MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}

MARKER = "\x85"  # replaces runs of spaces that are added tokens, see fast/parts.py

# The (behavior, invert) of a Split that keep what its pattern matches. These patterns match all of a text, so that both
# give the same.
KEEPS_MATCHES = (("Isolated", False), ("Removed", True))

# That of cl100k_base as tiktoken spells it; GPT_4 matches the same.
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
    r"\s+(?!\S)|\s"
)


def steps_of(step: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """Return a normalizer or pre-tokenizer of a tokenizer.json as the list of its steps.

    Args:
        step: as in the file; None for none.
        name: the field of a Sequence that holds its steps.
    """
    if step is None:
        return []
    return [part for inner in step[name] for part in steps_of(inner, name)] if step["type"] == "Sequence" else [step]
