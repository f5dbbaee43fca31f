"""The parts of a tokenizer that decide the ids of a text, as gigatoken takes them, if it is known to support them.

Special tokens, templates and truncation decide no ids: the reference encodes a text with the spelling of an added
token, unless it is white space, and the caller puts the ids around a text. A tokenizer with a part that is not listed
here is encoded by the reference.

A model with byte fallback, such as those of Llama 2, Phi 3 and Gemma 3, writes a space as U+2581, and looks at a text
as a whole, or at what is between two added tokens. Any other cuts a text into words by a known pattern.

gigatoken knows no pre-tokenizer that cuts off digits one by one (StarCoder 2, SmolLM), but cuts a text at added tokens,
so the ten digits become added tokens. A text with another character that counts as a digit goes to the reference, since
a proof finds that it is cut differently.

A marker replaces each run of spaces that is an added token (GPT-NeoX, OLMo), see tokenizer.mark_runs: gigatoken would
encode the parts between such tokens one by one, which takes three times as long for source code. The ids are the same.
GPT-2's pattern ends a word where the text ends, or before the last of several characters of white space
(`\\s+(?!\\S)`), which is the marker. Where the marker shares a word with its neighbours, nothing is merged across it,
because its two bytes are merged first and no other token contains them. Other patterns have a rule for line ends, which
reaches across the marker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from string import digits
from typing import Any

import numpy as np
from tiktoken_ext import openai_public

from tokenloom.errors import message_of
from tokenloom.storage.formats.records import sha256_of, sha256_of_bytes
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.fast import Unproven
from tokenloom.tokenizers.huggingface_json import FILE
from tokenloom.tokenizers.patterns import (
    CL100K,
    DEEPSEEK_3,
    GPT_2,
    GPT_4,
    GPT_4O,
    KEEPS_MATCHES,
    MARKER,
    QWEN_2,
    SPACE_MARK,
    SPACES_TO_MARKS,
    TEKKEN,
    steps_of,
)
from tokenloom.tokenizers.sentencepiece_file import BYTES, found_first, pieces_json, read_model
from tokenloom.tokenizers.sentencepiece_file import FILE as MODEL_FILE
from tokenloom.tokenizers.tiktoken_bpe import TiktokenTokenizer
from tokenloom.tokenizers.tiktoken_files import LETTERS, ranks_file

_FORMAT = 1  # raise it when the same parts make another encoder
_NAMES = {  # gigatoken's names for the patterns of ranks
    openai_public.r50k_pat_str: "gpt2",
    GPT_2: "gpt2",
    CL100K: "gpt4",
    GPT_4O: "o200k",
    QWEN_2: "qwen2",
    TEKKEN: "nemotron",
}
_PATTERNS = ((GPT_2,), (GPT_4,), (QWEN_2,), (GPT_4O,), (TEKKEN,), DEEPSEEK_3)

_MARKER_LETTERS = "".join(LETTERS[byte] for byte in MARKER.encode())
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


@dataclass(frozen=True)
class Parts:
    """The parts of a tokenizer that decide the ids of a text.

    Attributes:
        kind: the kind of the tokenizer, which determines the reference library.
        content: a tokenizer.json, or a .tiktoken file if there is a pattern.
        pattern: gigatoken's name for it; None for a tokenizer.json, which has its own.
        id_ranges: [first, last] of the ids that ranks stand for, in order; empty for a tokenizer.json.
        spellings: texts with one of them are left to the reference.
        normalizes: whether texts get normal form C first.
        run_ids: the ids that replace runs of spaces, by their length; may be empty.
        marker_id: the id of the marker.
        adds_space: whether a text that is not empty gets a space before it; None if U+2581 is not a space either.
    """

    kind: str
    content: str
    pattern: str | None = None
    id_ranges: list[tuple[int, int]] = field(default_factory=list)
    spellings: list[str] = field(default_factory=list)
    normalizes: bool = False
    run_ids: list[int] = field(default_factory=list)
    marker_id: int = 0
    adds_space: bool | None = None

    @cached_property
    def key(self) -> str:
        """The SHA-256 of all that decides ids: tokenizers with the same key have the same ids for all texts."""
        decides = [self.kind, self.pattern, self.id_ranges, self.normalizes, self.run_ids, self.marker_id]
        return sha256_of([_FORMAT, *decides, self.adds_space, sha256_of_bytes(self.content.encode())])


def parts_of(tokenizer: Tokenizer) -> Parts:
    """Return the parts of a tokenizer; raise Unproven if no fast encoder is known to support one of them."""
    untyped: Any = tokenizer  # a protocol can't say that it is hashable
    return _parts_of(untyped)


@lru_cache(maxsize=1)  # the key and the encoder of a tokenizer are made one after the other
def _parts_of(tokenizer: Any) -> Parts:
    if isinstance(tokenizer, TiktokenTokenizer):
        return _parts_of_ranks(tokenizer.ranks, tokenizer.pattern)
    if tokenizer.kind == "huggingface":
        return _parts_of_json(json.loads(tokenizer.files[FILE]))
    if tokenizer.kind != "sentencepiece":
        raise Unproven(f"no fast encoder supports the kind {tokenizer.kind}")
    try:
        content, adds_space = read_model(tokenizer.files[MODEL_FILE])
    except ValueError as error:
        raise Unproven(message_of(error)) from error
    return Parts("sentencepiece", _as_json(content), adds_space=adds_space)


def _as_json(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def ranges_of(ids: list[int]) -> list[tuple[int, int]]:
    """Return ascending integers as ranges [first, last]."""
    runs = np.split(ids, np.flatnonzero(np.diff(ids) > 1) + 1)
    return [(int(run[0]), int(run[-1])) for run in runs if len(run)]


def _check_ids(ids: Mapping[Any, int]) -> None:
    """Raise Unproven if two tokens have the same id, or an id would make a library's tables far larger than needed."""
    if len(set(ids.values())) < len(ids):
        raise Unproven("two of its tokens have the same id")
    if ids and max(ids.values()) > _MAX_ID_SHARE * len(ids):
        raise Unproven(f"its id {max(ids.values()):,} is too high for {len(ids):,} tokens")


def _parts_of_ranks(ranks: dict[bytes, int], pattern: str) -> Parts:
    _check_ids(ranks)
    if pattern == GPT_4:  # Llama 3: gigatoken takes no file with tokens that no merges make
        return Parts("tiktoken", _as_json(_json_of_ranks(ranks, pattern)))
    if pattern not in _NAMES:
        raise Unproven("its pattern is not that of GPT-2, cl100k_base, GPT-4, GPT-4o, Qwen 2 or Tekken")
    # gigatoken takes no other ranks than 0, 1, 2, ... in order.
    file = ranks_file({token: rank for rank, token in enumerate(sorted(ranks, key=ranks.__getitem__))})
    return Parts("tiktoken", file.decode(), _NAMES[pattern], ranges_of(sorted(ranks.values())))


def _json_of_ranks(ids: dict[bytes, int], pattern: str) -> dict[str, Any]:
    """Return the content of a tokenizer.json that encodes as tiktoken does.

    tiktoken joins the two neighbours that make the token with the lowest rank, the leftmost of equals, whatever the two
    are: each way to make a token of two others is a merge. A whole word that is a token is not merged at all.
    """
    letters = {token: "".join(map(LETTERS.__getitem__, token)) for token in ids}
    merges = [
        f"{letters[token[:end]]} {letters[token[end:]]}"
        for token in sorted(ids, key=ids.__getitem__)
        for end in range(1, len(token))
        if token[:end] in ids and token[end:] in ids
    ]
    vocab = {letters[token]: i for token, i in ids.items()}
    model = {"type": "BPE", "ignore_merges": True, "vocab": vocab, "merges": merges}
    return {"model": model, "added_tokens": [], "pre_tokenizer": _pre_tokenizer((pattern,))}


# ---- tokenizer.json


def _parts_of_json(content: dict[str, Any]) -> Parts:
    check_tokenizer_json(content)
    bare = bare_content(content)
    spellings = [token["content"] for token in _added_tokens(content) if not is_white_space(token)]
    run_ids, marker_id = list[int](), 0
    if found := with_marker(bare):
        bare, run_ids, marker_id = found
        spellings.append(MARKER)
    return Parts(
        kind="huggingface",
        content=_as_json(bare),
        spellings=spellings,
        normalizes=_normalizes(content),
        run_ids=run_ids,
        marker_id=marker_id,
        adds_space=_adds_space(content) or None,
    )


def check_tokenizer_json(content: Mapping[str, Any]) -> None:
    """Raise Unproven if the content of a tokenizer.json has a part that is not known to be supported."""
    model, has_pieces = content["model"], _has_pieces(content)
    allowed = _MODEL_OF_PIECES if has_pieces else _MODEL
    for name, value in model.items():
        if name not in ("vocab", "merges") and value not in allowed.get(name, ()):
            raise Unproven(f"its model has {name}: {value!r}")
    for token in _added_tokens(content):
        if not token["content"]:
            raise Unproven("it has an empty added token")
        if is_white_space(token) and (token["single_word"] or token["lstrip"] or token["rstrip"]):
            raise Unproven(f"its added token {token['content']!r} looks at its neighbours")
    if has_pieces:
        _check_pieces(content)
    else:
        _check_words(content)
    _check_ids(model["vocab"] | _white_space_ids(content))


def _check_words(content: Mapping[str, Any]) -> None:
    if unknown := sorted({part["type"] for part in _normalizers(content)} - {"NFC"}):
        raise Unproven(f"its normalizer is {unknown[0]}")
    _check_pre_tokenizers(_steps(content))
    added = _added_tokens(content)
    for token in added:
        if _normalizes(content) and not _is_stable(token["content"]):
            raise Unproven(f"its added token {token['content']!r} may appear when a text is normalized")
    if len({token["normalized"] for token in added if is_white_space(token)}) > 1:
        raise Unproven("some of its added tokens are found in normalized text, others are not")


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


def _check_pieces(content: Mapping[str, Any]) -> None:
    if _normalizers(content) not in ([SPACES_TO_MARKS], [_PREPEND, SPACES_TO_MARKS]):
        raise Unproven("its normalizer does more than replace spaces by U+2581")
    if _steps(content) not in ([], [_NO_SPLIT]):  # no space is left to split at
        raise Unproven("its pre-tokenizer splits a text")
    if {token for token in content["model"]["vocab"] if token.startswith("<0x")} != BYTES:
        raise Unproven("its bytes are not <0x00> to <0xFF>")
    for token in _added_tokens(content):
        shown = f"its added token {token['content']!r}"
        if is_white_space(token) and _adds_space(content):
            raise Unproven(f"{shown} puts a space before what follows")
        if token["normalized"] and (is_white_space(token) or set(token["content"]) & {" ", SPACE_MARK}):
            raise Unproven(f"{shown} may appear when a text is normalized")


def _has_pieces(content: Mapping[str, Any]) -> bool:
    return bool(content["model"].get("byte_fallback"))


def _normalizes(content: Mapping[str, Any]) -> bool:
    return any(part["type"] == "NFC" for part in _normalizers(content))


def _adds_space(content: Mapping[str, Any]) -> bool:
    return _PREPEND in _normalizers(content)


def _normalizers(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return steps_of(content.get("normalizer"), "normalizers")


def _steps(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return steps_of(content.get("pre_tokenizer"), "pretokenizers")


def _patterns(steps: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    """Return the regular expressions by which known steps cut a text, one after the other."""
    patterns = [step["pattern"].get("Regex") for step in steps if step["type"] == "Split"]
    return (*patterns, GPT_2) if steps[-1].get("use_regex", True) else tuple(patterns)


def _added_tokens(content: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return content.get("added_tokens") or []


def is_white_space(token: Mapping[str, Any]) -> bool:
    """Return whether a fast encoder is trusted to find an added token: a run of white space that is not special."""
    return not token["special"] and token["content"].isspace()


def _white_space_ids(content: Mapping[str, Any]) -> dict[str, int]:
    return {token["content"]: token["id"] for token in _added_tokens(content) if is_white_space(token)}


def _is_stable(content: str) -> bool:
    """Return whether a text in normal form C contains `content` only if the text itself does.

    The three ASCII characters that are the normal form of another one are K (of U+212A), ; (U+037E) and ` (U+1FEF).
    """
    return content.isascii() and not set(content) & set("K;`")


def bare_content(content: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce a tokenizer.json that passed check_tokenizer_json to the parts that decide ids, in one form.

    Two files have the same bare content if they differ only in what a fast encoder must not know or do (special tokens,
    templates, the normalizer), or in how they write the same.
    """
    model, steps, added = content["model"], _steps(content), _white_space_ids(content)
    ids = model["vocab"]
    vocab = {token: ids[token] for token in sorted(ids, key=ids.__getitem__)}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    if any(pair.count(" ") != 1 for pair in merges):
        raise Unproven("a token of its merges has a space")
    if _has_pieces(content):
        return pieces_json(vocab, merges, found_first(added))
    if steps[0]["type"] == "Digits":
        added |= {digit: vocab[digit] for digit in digits}
    ignore_merges = bool(model.get("ignore_merges"))
    return {
        "model": {"type": "BPE", "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges},
        "added_tokens": found_first(added),
        "pre_tokenizer": _pre_tokenizer(_patterns(steps)),
    }


def _pre_tokenizer(patterns: tuple[str, ...]) -> dict[str, Any]:
    """Return a pre-tokenizer that cuts a text by known patterns, as gigatoken takes it."""
    if patterns == (GPT_2,):
        return {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    splits = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [*splits, byte_level]}


def with_marker(bare: Mapping[str, Any]) -> tuple[dict[str, Any], list[int], int] | None:
    """Put a marker in place of added tokens that are runs of spaces.

    Args:
        bare: see bare_content.

    Returns:
        The content with the marker, the ids of the runs by their length, and the marker's id. None if the added tokens
        are not runs of 2 to n spaces, the pattern is not GPT-2's, or the marker could be a part of another token.
    """
    model = bare["model"]
    runs = {len(token["content"]): token["id"] for token in bare["added_tokens"]}
    has_all_lengths = runs and sorted(runs) == list(range(2, len(runs) + 2))
    is_of_spaces = not any(token["content"].strip(" ") for token in bare["added_tokens"])
    if not (has_all_lengths and is_of_spaces) or bare["pre_tokenizer"] != _pre_tokenizer((GPT_2,)):
        return None
    if model["ignore_merges"] or _MARKER_LETTERS in " ".join(model["vocab"].keys() - {_MARKER_LETTERS}):
        return None
    vocab = {_MARKER_LETTERS: max(model["vocab"].values()) + 1, **model["vocab"]}
    first = " ".join(_MARKER_LETTERS)
    merges = [first, *(pair for pair in model["merges"] if pair != first)]
    content = {**bare, "model": model | {"vocab": vocab, "merges": merges}, "added_tokens": []}
    return content, [0, 0, *(runs[length] for length in sorted(runs))], vocab[_MARKER_LETTERS]
