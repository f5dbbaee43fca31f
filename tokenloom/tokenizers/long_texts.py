r"""Where to cut a long text for the library tokenizers without changing its ids.

A cut is after a letter of LETTERS or a digit, and before whitespace or a comma or full stop of MARKS: "foo| bar",
"1|,2", "字|。". It is safe if each step of the tokenizer returns for the whole text what it returns for the left part
followed by what it returns for the right part:

- Added tokens are found from left to right. None contains the two characters at a cut, so none spans one, and none
  strips or looks at its neighbours. Special tokens are text here, so their flags do not matter.
- Normalizers of _NORMALIZERS change one character, or one letter with the marks after it. The letter at a cut remains a
  letter in all of them, and does not compose with what follows.
- One pre-tokenizer separates the text at every cut: those that split at whitespace (Bert, Whitespace, WhitespaceSplit),
  the regular expression of GPT-2 in ByteLevel, and Split with alternatives of _ALTERNATIVES that include `\s+` and one
  for punctuation. None of these matches whitespace or MARKS after a letter or digit, so a match ends at the cut. None
  looks behind, and only `\s+(?!\S)` looks ahead, from whitespace. It may follow pre-tokenizers that look at one
  character at a time (Digits, Punctuation) or Split with other alternatives, and precede those that look at one piece
  of the text at a time.
- If ByteLevel puts a space before a part that does not start with one (add_prefix_space), cuts are only before U+0020.
  With WhitespaceSplit, or with Punctuation that is merged with a neighbour, cuts are only before whitespace.
  BertNormalizer puts spaces around Chinese characters, so there no cut is after such a character.
- Models see one piece at a time. Without special tokens, post-processors change offsets but not ids.

Anything else (Metaspace, Replace, Precompiled, unknown regular expressions) may not be local, so nothing is cut. At
load, `agrees` tries 252 texts with the installed library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.tokenizers.patterns import CONTRACTION, KEEPS_MATCHES, MIXED_WORDS

if TYPE_CHECKING:  # fast encoders of other kinds do without it
    import tokenizers

PART_BYTES = 250_000
_WINDOW_BYTES = 10_000
# Letters (L), upper or lower case, that no normal form decomposes except into letters.
LETTERS = (
    "A-Za-zΑ-ΡΣ-Ωα-ωА-ИК-Яа-ик-яԱ-Ֆա-ֆა-ჰא-תا-غف-يሀ-ቆበ-ኆነ-ኮወ-ዎዘ-ጎጠ-ፗ가-힣"
    "अ-नप-रलळव-हক-নপ-রক-নষ-হਕ-ਨਪ-ਰક-નપ-રવ-હணதந-பம-ஹక-నప-ళవ-హಕ-ನಪ-ಳವ-ಹക-നപ-ഹක-නป-รก-ฮກຂງ-ຈນ-ຟຢ-ຣက-အក-អ"
)
CHINESE = "一-龥"
MARKS = ",，。、"
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"}
_WORD_SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}

# Alternatives of known expressions: GPT-2, cl100k (Llama 3, Qwen 2), o200k, Tekken, Qwen 3.5, DeepSeek, BLOOM.
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_PUNCTUATION = [
    *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]++[\r\n]*", r" ?[\p{P}\p{S}]+[\r\n]*"),
    *(r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),
]
_ALTERNATIVES = [
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", CONTRACTION, "'(?i:[sdmt]|ll|ve|re)"),
    *(r" ?\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"),
    *(*MIXED_WORDS, *(f"{word}{CONTRACTION}?" for word in MIXED_WORDS), "[一-龥぀-ゟ゠-ヿ]+", _BLOOM),
    *(r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""", r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"),
    *(*_PUNCTUATION, r" ?\p{N}+", r"\p{N}+", r"\p{N}", r"\p{N}{1,3}"),
    *(r"\s*[\r\n]+", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+"),
]


def find_cut(library: tokenizers.Tokenizer) -> re.Pattern[str] | None:
    """Return a regular expression whose matches start at safe cuts of any text; None if no cut is known to be safe."""
    normalizers, steps = _parts(library.normalizer, "normalizers"), _parts(library.pre_tokenizer, "pretokenizers")
    kinds = {part["type"] for part in normalizers}
    if not (kinds <= _NORMALIZERS and _separate(steps) and _added_tokens_stay_apart(library)):
        return None
    letters = LETTERS if "BertNormalizer" in kinds else LETTERS + CHINESE
    return re.compile(f"(?<=[{letters}0-9])[{_allowed_after_cut(steps)}]")


def agrees(library: tokenizers.Tokenizer, cut: re.Pattern[str]) -> bool:
    """Return whether sample texts have the same pieces as their two parts at a cut of find_cut."""
    before = ["a", "B", "1x", "we'll", "1.5e", "McGRAW", "\n\nя", "(字", "e\u0301 n", "i\u200dj", "A'S", "-7"]
    after = [
        " b",
        " B",
        "  b",
        " 1",
        " 's",
        " ",
        "\n",
        "\n\n b",
        "\r\n",
        "\t",
        " \n",
        " \u0301",
        " 字",
        " .",
        ",b",
        "。字",
    ]
    texts = [first + second for first, second in product(before, [*after, "\n.", "\u3000字", " \u3000", "\nB", " <s>"])]
    places = [match.start() if (match := cut.search(text)) else len(text) for text in texts]
    return all(
        _pieces(library, text) == _pieces(library, text[:place]) + _pieces(library, text[place:])
        for text, place in zip(texts, places, strict=True)
    )


def _pieces(library: tokenizers.Tokenizer, text: str) -> list[str]:
    normal = text if library.normalizer is None else library.normalizer.normalize_str(text)
    return [piece for piece, _ in library.pre_tokenizer.pre_tokenize_str(normal)] if normal else []


def cut_text(text: NDArray[np.uint8], cut: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the parts [start, end) of a text, in bytes; a part ends at the first cut after PART_BYTES.

    Args:
        text: (num_bytes,) valid UTF-8.
        cut: from find_cut. A part without a place for a cut is longer.
    """
    start, place = 0, _next_cut(text, PART_BYTES, cut)
    while place < len(text):
        yield start, place
        start, place = place, _next_cut(text, place + PART_BYTES, cut)
    yield start, len(text)


def _next_cut(text: NDArray[np.uint8], start: int, cut: re.Pattern[str]) -> int:
    """Return the first cut at or after `start` (or the character before it); the end of the text if there is none."""
    for window_start in range(start, len(text), _WINDOW_BYTES):
        first = window_start - 1
        while text[first] & 0xC0 == 0x80:
            first -= 1
        end = window_start + _WINDOW_BYTES  # perhaps within a character, which is ignored
        window = str(text[first:end].data, "utf-8", "ignore")
        if match := cut.search(window):
            return first + len(window[: match.start()].encode())
    return len(text)


def _parts(step: Any, name: str) -> list[Mapping[str, Any]]:
    """Return a normalizer or pre-tokenizer of the library as the list of its parts."""
    return parts_of(None if step is None else json.loads(step.__getstate__()), name)


def parts_of(step: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """Return a normalizer or pre-tokenizer of a tokenizer.json as the list of its parts.

    Args:
        step: as in the file; None for none.
        name: the field of a Sequence that holds its parts.
    """
    if step is None:
        return []
    return [part for inner in step[name] for part in parts_of(inner, name)] if step["type"] == "Sequence" else [step]


def _separate(steps: list[Mapping[str, Any]]) -> bool:
    """Return whether a sequence of pre-tokenizers separates a text at every cut and works locally elsewhere."""
    separated = False
    for step in steps:
        kind = step["type"]
        if kind in _WORD_SPLITTERS or (kind == "ByteLevel" and step["use_regex"]):
            separated = True
        elif kind == "Split" and not separated:
            if not _is_known(step):
                return False
            separated = _matches_all(step["pattern"]["Regex"])
        elif kind not in ("Split", "Digits", "Punctuation") and not (kind == "ByteLevel" and separated):
            return False
    return separated


def _allowed_after_cut(steps: list[Mapping[str, Any]]) -> str:
    """Return the characters before which these pre-tokenizers allow a cut."""
    if any(step.get("add_prefix_space") for step in steps):
        return " "
    merges = any(step["type"] == "Punctuation" and step["behavior"].startswith("Merged") for step in steps)
    marks = "" if merges or any(step["type"] == "WhitespaceSplit" for step in steps) else MARKS
    return " \t\n\r\u3000" + marks


def _is_known(split: Mapping[str, Any]) -> bool:
    one = "|".join(map(re.escape, sorted(_ALTERNATIVES, key=len, reverse=True)))
    keeps_matches = (split["behavior"], split["invert"]) in KEEPS_MATCHES
    return keeps_matches and re.fullmatch(rf"(?:{one})(?:\|(?:{one}))*", split["pattern"].get("Regex", "")) is not None


def _matches_all(pattern: str) -> bool:
    """Return whether known alternatives match all whitespace and punctuation, or (BLOOM) all letters and digits."""
    marks = any(f"|{alternative}|" in pattern for alternative in _PUNCTUATION)
    return pattern == _BLOOM or (marks and pattern.endswith(r"|\s+"))


def _added_tokens_stay_apart(library: tokenizers.Tokenizer) -> bool:
    """Return whether no added token can span a cut or look across it."""
    tokens = library.get_added_tokens_decoder().values()
    spelled = [token.content for token in tokens]
    if library.normalizer is not None:
        spelled += [library.normalizer.normalize_str(content) for content in spelled]
    looks_around = any(token.lstrip or token.rstrip or token.single_word for token in tokens if not token.special)
    return not looks_around and not any(re.search(rf"\w[\s{MARKS}]", content) for content in spelled)
