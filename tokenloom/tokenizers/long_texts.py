r"""Where a long text can be cut for the library tokenizers so that its ids stay what they are.

A cut stands behind a letter of LETTERS and before a whitespace character, "foo| bar". It is safe if each step of the
tokenizer gives for the whole text what it gives for the left part followed by what it gives for the right part:

- Added tokens are found from left to right; none of them holds a character followed by whitespace, so none lies over
  a cut, and none strips or looks at its neighbours. Special ones are text here, their flags are not looked at.
- Normalizers of _NORMALIZERS change one character, or one letter with the marks behind it. The letter at a cut is one
  that stays a letter in all of them, and nothing composes with whitespace.
- One pre-tokenizer separates the text at every cut: those that split at whitespace (Bert, Whitespace, WhitespaceSplit),
  the expression of GPT-2 in ByteLevel, and Split with alternatives out of _ALTERNATIVES that end in `\s+`. None of
  these takes whitespace after a letter, so a match ends at the cut; none looks behind; and only `\s+(?!\S)` looks
  ahead, from whitespace. Before it may stand what looks at one character at a time (Digits, Punctuation) or at no
  whitespace (Split with other alternatives); behind it, what looks at one piece of the text at a time.
- ByteLevel with add_prefix_space puts a space before a part that begins with another character, so there a cut stands
  before U+0020 only. BertNormalizer puts spaces around Chinese characters, so there a cut stands behind no such.
- Models see one piece at a time; post-processors move offsets, not ids, where no special tokens are asked for.

All else is not known to be local (Metaspace, Replace, Precompiled, unknown expressions) and is not cut. At load,
`agrees` tries it on 240 texts with the library at hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

PART_BYTES = 250_000
_WINDOW_BYTES = 10_000
# Letters (L) that no normal form decomposes or that it decomposes into letters, in any case.
LETTERS = "A-Za-zΑ-ΡΣ-Ωα-ωА-ИК-Яа-ик-яא-תا-غف-يअ-नप-रलळव-हก-ฮ가-힣"
CHINESE = "一-龥"
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"}
_WORD_SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_MIXED_WORDS = [rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}{repeats}" for repeats in (f"*{_LOWER}+", f"+{_LOWER}*")]
# What known expressions are made of: GPT-2, cl100k (Llama 3, Qwen 2), o200k, Tekken, Qwen 3.5, DeepSeek.
_ALTERNATIVES = [
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", _CONTRACTION, "'(?i:[sdmt]|ll|ve|re)"),
    *(r" ?\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"),
    *(*_MIXED_WORDS, *(f"{word}{_CONTRACTION}?" for word in _MIXED_WORDS), "[一-龥぀-ゟ゠-ヿ]+"),
    *(r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"),
    *(r" ?\p{N}+", r"\p{N}+", r"\p{N}", r"\p{N}{1,3}", r"[0-9]", r"\d", " ?[^(\\s|[.,!?…。，、।۔،])]+"),
    *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]++[\r\n]*", r" ?[\p{P}\p{S}]+[\r\n]*"),
    *(r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),
    *(r"\s*[\r\n]+", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+"),
]


def find_cut(library: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Return an expression whose every match starts at a safe cut of any text; None if none is known to be safe."""
    normalizers, steps = _parts(library.normalizer, "normalizers"), _parts(library.pre_tokenizer, "pretokenizers")
    kinds = {part["type"] for part in normalizers}
    if not (kinds <= _NORMALIZERS and _separate(steps) and _added_tokens_stay_apart(library)):
        return None
    letters = LETTERS if "BertNormalizer" in kinds else LETTERS + CHINESE
    spaces = " " if any(step.get("add_prefix_space") for step in steps) else " \t\n\r\u3000"
    return re.compile(f"(?<=[{letters}])[{spaces}]")


def agrees(cut: re.Pattern[str], encode: Callable[[list[str]], Sequence[NDArray[Any]]]) -> bool:
    """Return whether texts with a cut give the ids of their parts.

    Args:
        cut: of find_cut.
        encode: ids of each of several texts.
    """
    before = ["a", "B", "1x", "we'll", "1.5e", "McGRAW", "\n\nя", "(字", "e\u0301 n", "i\u200dj", "A'S", "  k"]
    after = [" b", " B", "  b", " 1", " 's", " ", "\n", "\n\n b", "\r\n", "\t", " \n", " \u0301", " 字", " .", " (c)"]
    texts = [first + second for first, second in product(before, [*after, "\n.", "\u3000字", " \u3000", "\nB", " <s>"])]
    whole = encode(texts)
    places = [match.start() if (match := cut.search(text, 1)) else len(text) for text in texts]
    left = encode([text[:place] for text, place in zip(texts, places, strict=True)])
    right = encode([text[place:] for text, place in zip(texts, places, strict=True)])
    return all(np.array_equal(ids, np.concatenate(pair)) for ids, *pair in zip(whole, left, right, strict=True))


def cut_text(text: NDArray[np.uint8], cut: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the parts [start, end) of a text, in bytes; a part ends at the first cut behind PART_BYTES.

    Args:
        text: (num_bytes,) valid UTF-8.
        cut: of find_cut; a text is longer where it has no place for a cut.
    """
    start, place = 0, _next_cut(text, PART_BYTES, cut)
    while place < len(text):
        yield start, place
        start, place = place, _next_cut(text, place + PART_BYTES, cut)
    yield start, len(text)


def _next_cut(text: NDArray[np.uint8], start: int, cut: re.Pattern[str]) -> int:
    """Return the place of the first cut from `start` (or the character before it) on, else the end of the text."""
    for window_start in range(start, len(text), _WINDOW_BYTES):
        first = window_start - 1
        while text[first] & 0xC0 == 0x80:
            first -= 1
        window = str(
            text[first : window_start + _WINDOW_BYTES].data, "utf-8", "ignore"
        )  # the last may be half a character
        if match := cut.search(window):
            return first + len(window[: match.start()].encode())
    return len(text)


def _parts(step: Any, name: str) -> list[dict[str, Any]]:
    """Return a normalizer or pre-tokenizer of the library as JSON values, each part of a Sequence alone."""
    return [] if step is None else _flat(json.loads(step.__getstate__()), name)


def _flat(step: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [part for inner in step[name] for part in _flat(inner, name)] if step["type"] == "Sequence" else [step]


def _separate(steps: list[dict[str, Any]]) -> bool:
    """Return whether pre-tokenizers, one after the other, separate a text at every cut and change no other place."""
    separated = False
    for step in steps:
        kind = step["type"]
        if kind in _WORD_SPLITTERS or (kind == "ByteLevel" and step["use_regex"]):
            separated = True
        elif kind == "Split" and not separated:
            if not _is_known(step):
                return False
            separated = step["pattern"]["Regex"].endswith(("|\\s+", ",।۔،])]+"))
        elif kind not in ("Split", "Digits", "Punctuation") and not (kind == "ByteLevel" and separated):
            return False
    return separated


def _is_known(split: dict[str, Any]) -> bool:
    one = "|".join(map(re.escape, sorted(_ALTERNATIVES, key=len, reverse=True)))
    keeps_matches = (split["behavior"], split["invert"]) in [("Isolated", False), ("Removed", True)]
    return keeps_matches and re.fullmatch(rf"(?:{one})(?:\|(?:{one}))*", split["pattern"].get("Regex", "")) is not None


def _added_tokens_stay_apart(library: tokenizers.Tokenizer) -> bool:
    """Return whether no added token can lie over a cut or look over it."""
    tokens = library.get_added_tokens_decoder().values()
    spelled = [token.content for token in tokens]
    if library.normalizer is not None:
        spelled += [library.normalizer.normalize_str(content) for content in spelled]
    looks_around = any(token.lstrip or token.rstrip or token.single_word for token in tokens if not token.special)
    return not looks_around and not any(re.search(r"\S\s", content) for content in spelled)
