"""What a tokenizer.json may hold for a fast encoder: parts that gigatoken is known to support.

A file with any other part is encoded by the reference. Added tokens in a text are the caller's matter: a text with one
never reaches a fast encoder, unless it is_white_space.

A model with byte fallback, such as those of Llama 2, Phi 3 and Gemma 3, writes a space as U+2581, and looks at a text
as a whole, or at what is between two added tokens. Any other cuts a text into words by a known pattern.

gigatoken knows no pre-tokenizer that cuts off digits one by one (StarCoder 2, SmolLM), but cuts a text at added tokens,
so the ten digits become added tokens. A text with another character that counts as a digit goes to the reference, since
a proof finds that it is cut differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from string import digits
from typing import Any

from tokenloom.tokenizers.patterns import DEEPSEEK_3, GPT_2, GPT_4, GPT_4O, KEEPS_MATCHES, QWEN_2, TEKKEN, steps_of

_PATTERNS = ((GPT_2,), (GPT_4,), (QWEN_2,), (GPT_4O,), (TEKKEN,), DEEPSEEK_3)
_FLAGS = dict.fromkeys(("special", "single_word", "lstrip", "rstrip", "normalized"), False)
SPACE_MARK = "\u2581"
SPACES_TO_MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}  # a normalizer
BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
_PREPEND = {"type": "Prepend", "prepend": SPACE_MARK}
_NO_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
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
_MODEL_OF_PIECES = _MODEL | {
    "unk_token": (None, "<unk>"),
    "fuse_unk": (True, False, None),
    "byte_fallback": (True,),
    "ignore_merges": (False, None),
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
    model, is_of_pieces = content["model"], _is_of_pieces(content)
    allowed = _MODEL_OF_PIECES if is_of_pieces else _MODEL
    for name, value in model.items():
        if name not in ("vocab", "merges") and value not in allowed.get(name, ()):
            raise Unproven(f"its model has {name}: {value!r}")
    for token in _added_tokens(content):
        if not token["content"]:
            raise Unproven("it has an empty added token")
        if is_white_space(token) and (token["single_word"] or token["lstrip"] or token["rstrip"]):
            raise Unproven(f"its added token {token['content']!r} looks at its neighbours")
    if is_of_pieces:
        _check_pieces(content)
    else:
        _check_words(content)
    check_ids(chain(model["vocab"].items(), _white_space_ids(content).items()))


def _is_of_pieces(content: Mapping[str, Any]) -> bool:
    """Return whether a model has byte fallback."""
    return bool(content["model"].get("byte_fallback"))


def _check_words(content: Mapping[str, Any]) -> None:
    if unknown := sorted({part["type"] for part in _normalizers(content)} - {"NFC"}):
        raise Unproven(f"its normalizer is {unknown[0]}")
    _check_pre_tokenizers(_steps(content))
    added = _added_tokens(content)
    for token in added:
        if normalizes(content) and not _is_stable(token["content"]):
            raise Unproven(f"its added token {token['content']!r} may appear when a text is normalized")
    if len({token["normalized"] for token in added if is_white_space(token)}) > 1:
        raise Unproven("some of its added tokens are found in normalized text, others are not")


def _check_pieces(content: Mapping[str, Any]) -> None:
    if _normalizers(content) not in ([SPACES_TO_MARKS], [_PREPEND, SPACES_TO_MARKS]):
        raise Unproven("its normalizer does more than replace spaces by U+2581")
    if _steps(content) not in ([], [_NO_SPLIT]):  # no space is left to split at
        raise Unproven("its pre-tokenizer splits a text")
    if {token for token in content["model"]["vocab"] if token.startswith("<0x")} != BYTES:
        raise Unproven("its bytes are not <0x00> to <0xFF>")
    for token in _added_tokens(content):
        shown = f"its added token {token['content']!r}"
        if is_white_space(token) and adds_space(content):
            raise Unproven(f"{shown} puts a space before what follows")
        if token["normalized"] and (is_white_space(token) or set(token["content"]) & {" ", SPACE_MARK}):
            raise Unproven(f"{shown} may appear when a text is normalized")


def normalizes(content: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer.json that passed check_tokenizer_json brings texts into normal form C."""
    return any(part["type"] == "NFC" for part in _normalizers(content))


def adds_space(content: Mapping[str, Any]) -> bool | None:
    """Return whether a tokenizer.json puts a space before each text; None if U+2581 is not a space either."""
    return True if _PREPEND in _normalizers(content) else None


def _normalizers(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return steps_of(content.get("normalizer"), "normalizers")


def _steps(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return steps_of(content.get("pre_tokenizer"), "pretokenizers")


def bare_content(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides the ids of a tokenizer.json that passed check_tokenizer_json, in one form.

    Two files have the same bare content if they differ only in what a fast encoder must not know or do (special tokens,
    templates, the normalizer), or in how they write the same.
    """
    model, steps, found = content["model"], _steps(content), _white_space_ids(content)
    merges = list(map(_merge, model["merges"]))
    if _is_of_pieces(content):
        return pieces_json(_in_order(model["vocab"]), merges, found)
    if steps[0]["type"] == "Digits":
        found |= {digit: model["vocab"][digit] for digit in digits}
    return {
        "model": {
            "type": "BPE",
            "ignore_merges": bool(model.get("ignore_merges")),
            "vocab": _in_order(model["vocab"]),
            "merges": merges,
        },
        "added_tokens": _found_first(found),
        "pre_tokenizer": pre_tokenizer(_patterns(steps)),
    }


def pieces_json(ids: Mapping[str, int], merges: Sequence[Any], added: Mapping[str, int]) -> dict[str, Any]:
    """Return the content of a tokenizer.json with byte fallback.

    Args:
        ids: of the pieces that are made of text, or of a byte.
        merges: the pairs that make a piece, in the order in which they are merged.
        added: ids of texts that are found first.
    """
    return {
        "added_tokens": _found_first(added),
        "normalizer": SPACES_TO_MARKS,
        "pre_tokenizer": None,
        "model": {"type": "BPE", "byte_fallback": True, "vocab": ids, "merges": merges},
    }


def _in_order(ids: Mapping[str, int]) -> dict[str, int]:
    """Return tokens and their ids in the order of the ids."""
    return dict(sorted(ids.items(), key=itemgetter(1)))


def _found_first(ids: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the added tokens of a tokenizer.json that are found wherever a text has them."""
    return [{"id": i, "content": token, **_FLAGS} for token, i in _in_order(ids).items()]


def _white_space_ids(content: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of the added tokens that a fast encoder finds."""
    return {token["content"]: token["id"] for token in _added_tokens(content) if is_white_space(token)}


def _merge(pair: str | Sequence[str]) -> str:
    """Return the two tokens of a merge with a space between them; raise Unproven if one of them has a space."""
    joined = pair if isinstance(pair, str) else " ".join(pair)
    if joined.count(" ") != 1:
        raise Unproven(f"its merge {joined!r} has a space in a token")
    return joined


def pre_tokenizer(patterns: tuple[str, ...]) -> dict[str, Any]:
    """Return a pre-tokenizer that cuts a text by known patterns, as gigatoken takes it."""
    if patterns == (GPT_2,):
        return {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    splits = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [*splits, byte_level]}


def _added_tokens(content: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return content.get("added_tokens") or []


def routed_spellings(content: Mapping[str, Any]) -> list[str]:
    """Return the added tokens that a fast encoder must not get in a text."""
    return [token["content"] for token in _added_tokens(content) if not is_white_space(token)]


def _check_pre_tokenizers(steps: Sequence[Mapping[str, Any]]) -> None:
    if not steps or steps[-1]["type"] != "ByteLevel":
        raise Unproven("its pre-tokenizer does not end with ByteLevel")
    if steps[-1].get("add_prefix_space"):
        raise Unproven("its pre-tokenizer ByteLevel has add_prefix_space: True")
    others = steps[1:-1] if steps[0] == {"type": "Digits", "individual_digits": True} else steps[:-1]
    if unknown := [step["type"] for step in others if step["type"] != "Split"]:
        raise Unproven(f"its pre-tokenizer is {unknown[0]}")
    if _patterns(steps) not in _PATTERNS:
        raise Unproven("its pattern is not that of GPT-2, GPT-4, GPT-4o, Qwen 2, Tekken or DeepSeek 3")
    keeps = KEEPS_MATCHES if len(others) == 1 else KEEPS_MATCHES[:1]  # one of several does not match all of a text
    if any((split["behavior"], split["invert"]) not in keeps for split in others):
        raise Unproven("its pre-tokenizer Split does not keep the matches of its pattern")


def _patterns(steps: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    """Return the regular expressions by which known steps cut a text, one after the other."""
    patterns = [step["pattern"].get("Regex") for step in steps if step["type"] == "Split"]
    return (*patterns, GPT_2) if steps[-1].get("use_regex", True) else tuple(patterns)


def is_white_space(token: Mapping[str, Any]) -> bool:
    """Return whether a fast encoder is trusted to find an added token: a run of white space that is not special.

    A text with any other added token is left to the reference.
    """
    return not token["special"] and token["content"].isspace()


def _is_stable(content: str) -> bool:
    """Return whether a text in normal form C contains `content` only if the text itself does.

    The three ASCII characters that are the normal form of another one are K (of U+212A), ; (U+037E) and ` (U+1FEF).
    """
    return content.isascii() and not set(content) & set("K;`")
