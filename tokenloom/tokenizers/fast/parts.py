"""What gigatoken gets of a tokenizer, and what must be done with a text besides encoding it.

Only what decides the ids of a text is a part. Special tokens, templates and truncation are none: a text with the
spelling of an added token, white space apart, is left to the reference, and its caller puts the ids around a text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

from tiktoken_ext import openai_public

from tokenloom.storage.formats.records import sha256_of, sha256_of_bytes
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.fast.known_parts import (
    Unproven,
    adds_space,
    bare_content,
    check_ids,
    check_tokenizer_json,
    normalizes,
    pre_tokenizer,
    routed_spellings,
)
from tokenloom.tokenizers.fast.sentencepiece_parts import FILE as MODEL_FILE
from tokenloom.tokenizers.fast.sentencepiece_parts import read_model
from tokenloom.tokenizers.fast.space_runs import MARKER, find_space_runs
from tokenloom.tokenizers.huggingface_json import FILE
from tokenloom.tokenizers.patterns import CL100K, GPT_2, GPT_4, GPT_4O, QWEN_2, TEKKEN
from tokenloom.tokenizers.tiktoken_bpe import TiktokenTokenizer
from tokenloom.tokenizers.tiktoken_files import LETTERS, ranks_file

_FORMAT = 1  # of how encoders are made of parts
_PATTERNS = {
    openai_public.r50k_pat_str: "gpt2",
    GPT_2: "gpt2",
    CL100K: "gpt4",
    GPT_4O: "o200k",
    QWEN_2: "qwen2",
    TEKKEN: "nemotron",
}


@dataclass(frozen=True)
class Parts:
    """The parts of a tokenizer that decide the ids of a text.

    Attributes:
        kind: of the tokenizer, which says what the reference is.
        content: a tokenizer.json, or a .tiktoken file if there is a pattern.
        pattern: gigatoken's name for it; None for a tokenizer.json, which has its own.
        id_ranges: [first, last] of the ids that ranks stand for, in order; empty for a tokenizer.json.
        spellings: texts with one of them are left to the reference.
        normalizes: whether texts get normal form C first.
        run_ids: the ids of runs of spaces that a marker with `marker_id` replaces, see SpaceRuns; there may be none.
        marker_id: see `run_ids`.
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
        return _of_ranks(tokenizer.ranks, tokenizer.pattern)
    if tokenizer.kind == "huggingface":
        return _of_json(tokenizer.files[FILE])
    if tokenizer.kind == "sentencepiece":
        return _of_model(tokenizer.files[MODEL_FILE])
    raise Unproven(f"no fast encoder supports the kind {tokenizer.kind}")


def _of_ranks(ranks: dict[bytes, int], pattern: str) -> Parts:
    check_ids(ranks.items())
    if pattern == GPT_4:  # Llama 3: gigatoken takes no file with tokens that no merges make
        return Parts("tiktoken", _as_json(_json_of_ranks(ranks, pattern)))
    if pattern not in _PATTERNS:
        raise Unproven("its pattern is not that of GPT-2, cl100k_base, GPT-4, GPT-4o, Qwen 2 or Tekken")
    # gigatoken takes no other ranks than 0, 1, 2, ... in order.
    file = ranks_file({token: rank for rank, token in enumerate(sorted(ranks, key=ranks.__getitem__))})
    return Parts("tiktoken", file.decode(), _PATTERNS[pattern], ranges_of(sorted(ranks.values())))


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
    return {"model": model, "added_tokens": [], "pre_tokenizer": pre_tokenizer((pattern,))}


def ranges_of(ids: list[int]) -> list[tuple[int, int]]:
    """Return ascending integers as ranges [first, last]."""
    runs = [[i for _, i in run] for _, run in groupby(enumerate(ids), lambda pair: pair[1] - pair[0])]
    return [(run[0], run[-1]) for run in runs]


def _of_json(data: bytes) -> Parts:
    content: dict[str, Any] = json.loads(data)
    check_tokenizer_json(content)
    bare, spellings = bare_content(content), routed_spellings(content)
    run_ids, marker_id = list[int](), 0
    if found := find_space_runs(bare):
        runs, bare = found
        spellings, run_ids, marker_id = [*spellings, MARKER], runs.ids.tolist(), runs.marker_id
    return Parts(
        kind="huggingface",
        content=_as_json(bare),
        spellings=spellings,
        normalizes=normalizes(content),
        run_ids=run_ids,
        marker_id=marker_id,
        adds_space=adds_space(content),
    )


def _of_model(data: bytes) -> Parts:
    content, adds_space = read_model(data)
    return Parts("sentencepiece", _as_json(content), adds_space=adds_space)


def _as_json(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
