"""What gigatoken gets of a tokenizer: all that decides the ids of a text, and nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from functools import reduce
from itertools import product
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers

from tests.builders.proofs import fast_of
from tests.counts import every
from tests.tokenloom.test_fast_encoders import ids_of, loaded, train
from tests.tokenloom.test_sentencepiece_encoder import train as train_model
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import Tokenizer as Reference
from tokenloom.tokenizers.fast import Unproven
from tokenloom.tokenizers.fast.parts import Parts, parts_of
from tokenloom.tokenizers.fast.probe import parts_with_byte_pairs, with_byte_pairs
from tokenloom.tokenizers.fast.tokenizer import NO_OVERLAP, FastEncoder, FastTokenizer, Router, mark_runs, restore_runs
from tokenloom.tokenizers.patterns import DEEPSEEK_3, GPT_4, GPT_4O, MARKER, QWEN_2, TEKKEN
from tokenloom.tokenizers.sentencepiece_file import read_model

RUNS = tuple(AddedToken(" " * length, normalized=True) for length in range(2, 9))
PLAIN, NORMAL = train(), train(normalizers.NFC(), RUNS)
_TEXTS = ["def f(x):\n          y", "naïve  cafe\u0301", "", "a" * 50, " <|endoftext|> \x85", "\u2581 x"]


def parts(data: bytes = PLAIN, *changes: Callable[[dict[str, Any]], object], eot: str | None = None) -> Parts:
    """Return the parts of a tokenizer.json after changes to its content."""
    content = json.loads(data)
    for change in changes:
        change(content)
    return parts_of(loaded(json.dumps(content).encode(), **({"eot": eot} if eot else {})))


def test_a_tokenizer_json_is_given_without_what_the_caller_does() -> None:
    found, content = parts(NORMAL), json.loads(NORMAL)
    given = json.loads(found.content)
    assert given.keys() == {"model", "pre_tokenizer", "added_tokens"}
    assert found.normalizes
    assert given["added_tokens"] == []  # a marker replaces runs of spaces
    ids = {len(token["content"]): token["id"] for token in content["added_tokens"] if not token["special"]}
    assert found.run_ids[2:] == [ids[length] for length in range(2, 9)]
    assert found.marker_id not in content["model"]["vocab"].values()
    assert given["model"]["vocab"].items() >= content["model"]["vocab"].items()
    assert found.spellings == ["<|endoftext|>", "\x85"]


# ---- the key


def _added(token: str, **flags: Any) -> Callable[[dict[str, Any]], object]:
    base = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return lambda content: content["added_tokens"].append({"id": 900, "content": token} | base | flags)


@pytest.mark.parametrize(
    "change",
    [
        _added("<|im_start|>", special=True),
        lambda content: content.update(decoder=None),
        lambda content: content["model"].update(merges=[pair.split(" ") for pair in _merges(content)]),
        lambda content: content["model"].update(vocab=dict(reversed(content["model"]["vocab"].items()))),
        lambda content: content.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [content["pre_tokenizer"]]}),
    ],
    ids=["special", "decoder", "pairs", "order", "sequence of one"],
)
def test_what_decides_no_ids_leaves_the_key(change: Callable[[dict[str, Any]], object]) -> None:
    assert parts(PLAIN, change).key == parts().key


def _merges(content: dict[str, Any]) -> list[str]:
    return [pair if isinstance(pair, str) else " ".join(pair) for pair in content["model"]["merges"]]


def _swap_merges(content: dict[str, Any]) -> None:
    content["model"]["merges"][1:3] = content["model"]["merges"][2:0:-1]


def _swap_ids(content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    first, second = list(vocab)[-2:]
    vocab[first], vocab[second] = vocab[second], vocab[first]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["model"]["merges"].pop(),
        _swap_merges,
        _swap_ids,
        lambda content: content["model"].update(ignore_merges=True),
        lambda content: content.update(normalizer={"type": "NFC"}),
        _added("   "),
    ],
    ids=["a merge less", "order of merges", "ids", "ignore_merges", "normalizer", "white space"],
)
def test_what_decides_ids_changes_the_key(change: Callable[[dict[str, Any]], object]) -> None:
    assert parts(PLAIN, change).key != parts().key


def test_the_same_vocabulary_of_another_reference_has_another_key(tmp_path: Path) -> None:
    one = Parts("tiktoken", "x", "gpt2")
    assert one.key == Parts("tiktoken", "x", "gpt2", spellings=["<s>"]).key
    assert len({one.key, Parts("huggingface", "x", "gpt2").key, Parts("tiktoken", "x", "gpt4").key}) == 3


# ---- the encoder made of them


def _tiktoken(tmp_path: Path, tokens: list[bytes], first_id: int = 0, gap_at: int = -1, **fields: Any) -> Any:
    """Return a tokenizer of all bytes and some tokens whose ids begin with `first_id`, and do not contain `gap_at`."""
    tokens = [*(bytes([byte]) for byte in range(256)), *tokens]
    ids = [i for i in range(first_id, first_id + len(tokens) + 1) if i != gap_at]
    pairs = zip(tokens, ids, strict=False)
    (tmp_path / "x.tiktoken").write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % i for token, i in pairs))
    definition = {"ranks": str(tmp_path / "x.tiktoken"), "special_tokens": {"<|endoftext|>": 900}, **fields}
    return load_tokenizer({"kind": "tiktoken", **definition})


def _same_ids(reference: Any, texts: list[str] = _TEXTS) -> bool:
    fast = fast_of(reference)
    return ids_of(fast, texts) == ids_of(reference, texts)


@pytest.mark.parametrize(("first_id", "gap_at"), [(0, -1), (30, -1), (0, 257)], ids=["ranks", "tekken", "p50k_base"])
def test_an_encoder_of_ranks_gives_the_ids_of_the_reference(first_id: int, gap_at: int, tmp_path: Path) -> None:
    assert _same_ids(_tiktoken(tmp_path, [b"  ", b"de", b"def", b"aa", b"aaaa"], first_id, gap_at))


def split(*patterns: str, behavior: str = "Isolated", invert: bool = False) -> Callable[[dict[str, Any]], object]:
    """Return what lets a tokenizer.json cut texts by patterns."""
    how = {"type": "Split", "behavior": behavior, "invert": invert}
    splits = [how | {"pattern": {"Regex": pattern}} for pattern in patterns]
    steps = [*splits, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]
    return lambda content: content.update(pre_tokenizer={"type": "Sequence", "pretokenizers": steps})


def _digits_first(content: dict[str, Any]) -> None:
    digits = {"type": "Digits", "individual_digits": True}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, content["pre_tokenizer"]]}


_CUT = [
    "In 2026, 1234567 of 12345; it's 3,14 IT'S x1y22z",
    "日本語のtext 2026年 カタカナ12字 !a @b",
    "aB cD\n\n /x\r\n\t 9 ",
]


@pytest.mark.parametrize(
    "change",
    every(
        2,
        [
            pytest.param(split(GPT_4), id="Llama 3"),
            pytest.param(split(GPT_4, behavior="Removed", invert=True), id="OLMo 2"),
            pytest.param(split(QWEN_2), id="Qwen 2"),
            pytest.param(split(GPT_4O), id="GPT-4o"),
            pytest.param(split(TEKKEN), id="Mistral Nemo"),
            pytest.param(split(*DEEPSEEK_3), id="DeepSeek 3"),
            pytest.param(_digits_first, id="StarCoder 2"),
        ],
    ),
)
def test_each_known_pre_tokenizer_cuts_as_that_of_the_reference(change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(PLAIN)
    change(content)
    reference = loaded(json.dumps(content).encode())
    assert _same_ids(reference, _CUT)
    pairs = with_byte_pairs(reference)
    assert _same_ids(pairs, _CUT)
    encoder = FastEncoder(parts_with_byte_pairs(parts_of(reference)), [], pairs.eot_id)
    fast = FastTokenizer(pairs, encoder, Router([], []), NO_OVERLAP)
    assert ids_of(fast, _CUT) == ids_of(pairs, _CUT)


def test_tokens_that_no_merges_make_are_found_as_whole_words_of_llama_3(tmp_path: Path) -> None:
    tokens = [b"bc", b"abc", b" a", b" abcd", b"aa", b"aaa", b"aaaa"]
    reference = _tiktoken(tmp_path, tokens, pattern=GPT_4)
    texts = ["x abcd abcde abcd abc bcd", "aaaaaaaaaaa aaaaa aaaaaaa", " a bc  abcd\n"]
    assert _same_ids(reference, texts)


# ---- byte fallback


def _byte_fallback(adds_space: bool) -> dict[str, Any]:
    """Return the content of a tokenizer.json as those of Phi 3 (which adds a space) and Gemma 3."""
    content, _ = read_model(train_model(user_defined_symbols=[]))
    content["model"] |= {"unk_token": "<unk>", "fuse_unk": True, "merges": list(map(list, content["model"]["merges"]))}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = {"<unk>": 400, "</s>": 401, **({} if adds_space else {"\n\n": 402, "\u2581\u2581": 403})}
    content["model"]["vocab"] |= special  # or the library gives them ids of its own
    content["added_tokens"] = [
        {"id": i, "content": token, "special": token.startswith("<"), **flags} for token, i in special.items()
    ]
    if adds_space:
        both = [{"type": "Prepend", "prepend": "\u2581"}, content["normalizer"]]
        content["normalizer"] = {"type": "Sequence", "normalizers": both}
    else:
        content["pre_tokenizer"] = _NO_SPLIT
    return {"version": "1.0", "truncation": None, "padding": None, "post_processor": None, "decoder": None} | content


_NO_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_PIECES = ["a\n\nb\n\n\n x", "  aaaa  -----", "\u2581été \u2581\u2581", "<0x41> </s> <unk>", "x = f(x)\n    y é 日本"]


@pytest.mark.parametrize("adds_space", [True, False], ids=["Phi 3", "Gemma 3"])
def test_an_encoder_with_byte_fallback_gives_the_ids_of_the_reference(adds_space: bool) -> None:
    reference = loaded(json.dumps(_byte_fallback(adds_space)).encode(), eot="</s>")
    assert parts_of(reference).adds_space == (adds_space or None)
    assert _same_ids(reference, [*_TEXTS, *_PIECES])


# ---- runs of spaces that are added tokens


_EOT = "<|endoftext|>"
_FRAGMENTS = [
    *(" " * length for length in (1, 1, 2, 3, 4, 5, 6, 7, 10, 11)),
    *("\n", "\n\n", "\r\n", "\t", "\t\n", "\x0b", "\u00a0", "\u2003", "\u3000", "\u200b"),
    *("a", "bc", "Def", "\u00e9", "e\u0301", "\u0301", "\u4e00", "1", "234"),
    *("'s", "'LL", "'", ")", "):", "/", "#!", "_"),
    *(MARKER, _EOT, "\U0001f600"),
]
_texts = st.lists(st.lists(st.sampled_from(_FRAGMENTS), max_size=12).map("".join), max_size=4)


def gpt_2() -> dict[str, Any]:
    """Return a small tokenizer.json with the pattern of GPT-2, and added tokens for runs of 2 to 5 spaces."""
    runs = tuple(AddedToken(" " * length, normalized=True) for length in range(5, 1, -1))
    content: dict[str, Any] = json.loads(train(normalizers.NFC(), runs))
    return content


def qwen_2() -> dict[str, Any]:
    """Return a tokenizer.json with the pattern of Qwen 2, in which white space before a line end is one word."""
    content = gpt_2()
    split(QWEN_2)(content)
    return content


@pytest.fixture(scope="module", params=product([gpt_2, qwen_2], [False, True]))
def reference(request: pytest.FixtureRequest) -> Reference:
    """A tokenizer with runs of spaces, with its vocabulary or with one that shows each cut."""
    made, shows_cuts = request.param
    found = loaded(json.dumps(made()).encode(), eot=_EOT)
    return with_byte_pairs(found) if shows_cuts else found


@pytest.fixture(scope="module")
def fast(reference: Reference) -> FastTokenizer:
    """What encodes with the fast encoder of `reference`."""
    return fast_of(reference)


@given(_texts)
def test_texts_with_runs_of_spaces_have_the_ids_of_the_reference(
    reference: Reference, fast: FastTokenizer, texts: list[str]
) -> None:
    assert ids_of(fast, texts) == ids_of(reference, texts)


def test_markers_that_were_lost_are_an_error() -> None:
    _, runs = mark_runs([b"a  b   c"], [0, 0, 7, 8])
    with pytest.raises(ValueError, match="runs of spaces became 0 markers"):
        restore_runs([np.array([5, 6], np.uint32)], runs, 9)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["added_tokens"].pop(2),
        lambda content: content["added_tokens"][1].update(content="\t\t"),
        lambda content: content["model"].update(ignore_merges=True),
        lambda content: content["model"]["vocab"].update({"\u00c2\u0127a": 999}),
        lambda content: content.update(added_tokens=content["added_tokens"][:1]),
        lambda content: content.update(pre_tokenizer=qwen_2()["pre_tokenizer"]),
    ],
    ids=["a gap", "tabs", "ignore_merges", "a token with the marker", "no runs", "another pattern"],
)
def test_runs_are_left_to_the_library_where_a_marker_might_change_the_ids(
    change: Callable[[dict[str, Any]], object],
) -> None:
    content = gpt_2()
    change(content)
    assert parts_of(_unread(content)).run_ids == []


# ---- what is not known


def _unread(content: dict[str, Any]) -> Any:
    """Return a tokenizer with a file that its library need not take."""
    return type("Unread", (), {"kind": "huggingface", "files": {"tokenizer.json": json.dumps(content).encode()}})()


def _put(value: Any, *path: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: reduce(getitem, path[:-1], content).__setitem__(path[-1], value)


_LOWERCASE = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}
_UNKNOWN: dict[str, list[Any]] = {
    "model": [_put(0.1, "model", "dropout")],
    "merges": [_put([["a b", "c"]], "model", "merges")],
    "normalizer": [_put(_LOWERCASE, "normalizer")],
    "ids": [_put(2_000_000_000, "model", "vocab", "x y"), _put(5, "model", "vocab", "x y")],
    "pre_tokenizer": [
        _put(True, "pre_tokenizer", "add_prefix_space"),
        split(GPT_4, behavior="Removed"),
        split(*DEEPSEEK_3, behavior="Removed", invert=True),
        split(GPT_4.replace("{1,3}", "{1,2}")),
    ],
    "added_tokens": [
        _put("", "added_tokens", 0, "content"),
        _added("<K>"),  # may appear when a text gets normal form C
        _added("  ", lstrip=True),
        _put(False, "added_tokens", 2, "normalized"),  # other runs of spaces are found in normalized text
    ],
}
_UNKNOWN_PIECES: list[tuple[bool, Any, str]] = [
    (False, _put(_NO_SPLIT | {"behavior": "Removed"}, "pre_tokenizer"), "pre_tokenizer"),
    (False, _put(600, "model", "vocab", "<0xab>"), "vocab"),
    (True, _added("  "), "added_tokens"),  # puts a space before what follows
    (False, _added("  ", normalized=True), "added_tokens"),
]


def test_a_part_that_is_not_known_to_be_supported_is_named() -> None:
    words = [(json.loads(NORMAL), change, part) for part, changes in _UNKNOWN.items() for change in changes]
    pieces = [(_byte_fallback(adds_space), change, part) for adds_space, change, part in _UNKNOWN_PIECES]
    for content, change, part in [*words, *pieces]:
        change(content)
        with pytest.raises(Unproven, match=f"^gigatoken is not known to support its {part}$"):
            parts_of(_unread(content))
    with pytest.raises(Unproven, match=r"its kind$"):
        parts_of(load_tokenizer({"kind": "byte"}))


def test_an_unknown_pattern_of_ranks_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unproven, match=r"its pattern$"):
        parts_of(_tiktoken(tmp_path, [], pattern=r"\S+|\s+"))
