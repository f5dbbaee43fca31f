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
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import itemgetter
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
_DIGITS = {"type": "Digits", "individual_digits": True}
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
_NOT_KNOWN = "gigatoken is not known to support its"
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
    _require(tokenizer.kind == "sentencepiece", "kind")
    try:
        content, adds_space = read_model(tokenizer.files[MODEL_FILE])
    except ValueError as error:
        raise Unproven(f"{_NOT_KNOWN} {message_of(error)}") from error
    return Parts("sentencepiece", _as_json(content), adds_space=adds_space)


def _require(is_known: bool, part: str) -> None:
    """Raise Unproven unless a part of a tokenizer has a form that is known to be supported."""
    if not is_known:
        raise Unproven(f"{_NOT_KNOWN} {part}")


def _as_json(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def ranges_of(ids: list[int]) -> list[tuple[int, int]]:
    """Return ascending integers as ranges [first, last]."""
    runs = np.split(ids, np.flatnonzero(np.diff(ids) > 1) + 1)
    return [(int(run[0]), int(run[-1])) for run in runs if len(run)]


def _require_ids(ids: Mapping[Any, int]) -> None:
    """Raise Unproven if two tokens have the same id, or an id would make a library's tables far larger than needed."""
    is_unique = len(set(ids.values())) == len(ids)
    _require(is_unique and max(ids.values(), default=0) <= _MAX_ID_SHARE * len(ids), "ids")


def _parts_of_ranks(ranks: dict[bytes, int], pattern: str) -> Parts:
    _require_ids(ranks)
    if pattern == GPT_4:  # Llama 3: gigatoken takes no file with tokens that no merges make
        return Parts("tiktoken", _as_json(_json_of_ranks(ranks)))
    _require(pattern in _NAMES, "pattern")
    # gigatoken takes no other ranks than 0, 1, 2, ... in order.
    file = ranks_file({token: rank for rank, token in enumerate(sorted(ranks, key=ranks.__getitem__))})
    return Parts("tiktoken", file.decode(), _NAMES[pattern], ranges_of(sorted(ranks.values())))


def _json_of_ranks(ids: dict[bytes, int]) -> dict[str, Any]:
    """Return the content of a tokenizer.json with the pattern of GPT-4 that encodes as tiktoken does.

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
    return {"model": model, "added_tokens": [], "pre_tokenizer": _pre_tokenizer((GPT_4,))}


# ---- tokenizer.json


def _parts_of_json(content: dict[str, Any]) -> Parts:
    """Return the parts of a tokenizer.json in one form, however it writes them."""
    model, added = content["model"], content.get("added_tokens") or []
    has_pieces = bool(model.get("byte_fallback"))
    allowed = _MODEL_OF_PIECES if has_pieces else _MODEL
    _require(all(model[name] in allowed.get(name, ()) for name in model.keys() - {"vocab", "merges"}), "model")
    spaces = list(filter(is_white_space, added))
    _require(all(token["content"] for token in added), "added_tokens")
    _require(not any(token["single_word"] or token["lstrip"] or token["rstrip"] for token in spaces), "added_tokens")
    _require_ids(model["vocab"] | {token["content"]: token["id"] for token in spaces})
    vocab = dict(sorted(model["vocab"].items(), key=itemgetter(1)))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    _require(all(pair.count(" ") == 1 for pair in merges), "merges")
    spellings = [token["content"] for token in added if not is_white_space(token)]
    parts = (_parts_of_pieces if has_pieces else _parts_of_words)(content, vocab, merges)
    return replace(parts, spellings=[*spellings, *parts.spellings])


def _parts_of_words(content: dict[str, Any], vocab: dict[str, int], merges: list[str]) -> Parts:
    """Return the parts of a tokenizer.json that cuts a text into words by a known pattern."""
    normalizers = steps_of(content.get("normalizer"), "normalizers")
    steps = steps_of(content.get("pre_tokenizer"), "pretokenizers")
    added = content.get("added_tokens") or []
    _require(all(part["type"] == "NFC" for part in normalizers), "normalizer")
    _require(not normalizers or all(_is_stable(token["content"]) for token in added), "added_tokens")
    spaces = list(filter(is_white_space, added))
    _require(len({token["normalized"] for token in spaces}) <= 1, "added_tokens")
    model = {"type": "BPE", "ignore_merges": bool(content["model"].get("ignore_merges")), "vocab": vocab}
    ids = {token["content"]: token["id"] for token in spaces}
    ids |= {digit: vocab[digit] for digit in digits} if steps[:1] == [_DIGITS] else {}
    bare = {
        "model": model | {"merges": merges},
        "added_tokens": found_first(ids),
        "pre_tokenizer": _pre_tokenizer(_patterns(steps)),
    }
    return Parts("huggingface", normalizes=bool(normalizers), **_marked(bare))


def _parts_of_pieces(content: dict[str, Any], vocab: dict[str, int], merges: list[str]) -> Parts:
    """Return the parts of a tokenizer.json with byte fallback."""
    normalizers = steps_of(content.get("normalizer"), "normalizers")
    adds_space = normalizers == [_PREPEND, SPACES_TO_MARKS]
    _require(adds_space or normalizers == [SPACES_TO_MARKS], "normalizer")
    # No space is left to split at.
    _require(steps_of(content.get("pre_tokenizer"), "pretokenizers") in ([], [_NO_SPLIT]), "pre_tokenizer")
    _require({token for token in vocab if token.startswith("<0x")} == BYTES, "vocab")
    added = content.get("added_tokens") or []
    spaces = list(filter(is_white_space, added))
    _require(not (adds_space and spaces), "added_tokens")  # one puts a space before what follows
    normalized = [token for token in added if token["normalized"]]  # may appear when a text is normalized
    _require(
        not any(token in spaces or set(token["content"]) & {" ", SPACE_MARK} for token in normalized), "added_tokens"
    )
    bare = pieces_json(vocab, merges, found_first({token["content"]: token["id"] for token in spaces}))
    return Parts("huggingface", _as_json(bare), adds_space=adds_space or None)


def _patterns(steps: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    """Return the known regular expressions by which steps cut a text, one after the other."""
    *splits, last = steps or [{}]
    splits = splits[1:] if splits[:1] == [_DIGITS] else splits
    keeps = KEEPS_MATCHES if len(splits) == 1 else KEEPS_MATCHES[:1]  # one of several does not match all of a text
    known = all(step["type"] == "Split" and (step["behavior"], step["invert"]) in keeps for step in splits)
    _require(known and last.get("type") == "ByteLevel" and not last.get("add_prefix_space"), "pre_tokenizer")
    patterns = *(step["pattern"].get("Regex") for step in splits), *([GPT_2] if last.get("use_regex", True) else [])
    _require(patterns in _PATTERNS, "pre_tokenizer")
    return patterns


def is_white_space(token: Mapping[str, Any]) -> bool:
    """Return whether a fast encoder is trusted to find an added token: a run of white space that is not special."""
    return not token["special"] and token["content"].isspace()


def _is_stable(content: str) -> bool:
    """Return whether a text in normal form C contains `content` only if the text itself does.

    The three ASCII characters that are the normal form of another one are K (of U+212A), ; (U+037E) and ` (U+1FEF).
    """
    return content.isascii() and not set(content) & set("K;`")


def _pre_tokenizer(patterns: tuple[str, ...]) -> dict[str, Any]:
    """Return a pre-tokenizer that cuts a text by known patterns, as gigatoken takes it."""
    if patterns == (GPT_2,):
        return {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    splits = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [*splits, byte_level]}


def _marked(bare: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a tokenizer.json as fields of Parts, with a marker in place of runs of spaces.

    The content stays as it is if added tokens are not runs of 2 to n spaces, the pattern is not GPT-2's, or the marker
    could be a part of another token.
    """
    model, runs = bare["model"], {token["content"]: token["id"] for token in bare["added_tokens"]}
    spaces = [" " * length for length in range(2, len(runs) + 2)]
    has_runs = runs and runs.keys() == set(spaces) and bare["pre_tokenizer"] == _pre_tokenizer((GPT_2,))
    if not has_runs or model["ignore_merges"] or _MARKER_LETTERS in " ".join(model["vocab"].keys() - {_MARKER_LETTERS}):
        return {"content": _as_json(bare)}
    vocab = {_MARKER_LETTERS: max(model["vocab"].values()) + 1, **model["vocab"]}
    first = " ".join(_MARKER_LETTERS)
    merges = [first, *(pair for pair in model["merges"] if pair != first)]
    content = {**bare, "model": model | {"vocab": vocab, "merges": merges}, "added_tokens": []}
    ids = {"run_ids": [0, 0, *map(runs.__getitem__, spaces)], "marker_id": vocab[_MARKER_LETTERS]}
    return {"content": _as_json(content), "spellings": [MARKER], **ids}
