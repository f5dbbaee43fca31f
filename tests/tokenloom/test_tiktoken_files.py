"""Llama 3's tokenizer.model and Mistral's tekken.json: their patterns, special tokens and ids."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import tiktoken

from tests.tokenloom.test_huggingface_tokenizer import train_bpe
from tests.tokenloom.test_sentencepiece_tokenizer import train
from tests.tokenloom.test_tokenizers import write_ranks
from tests.tokenloom.tokenizer_conformance import TokenizerConformance, encode_each, refused
from tokenloom.tokenizers import load_tokenizer, tiktoken_files
from tokenloom.tokenizers.patterns import GPT_4
from tokenloom.tokenizers.tiktoken_bpe import TiktokenTokenizer

_MERGES = (b"ab", b"abc", b"  ", b"lo", b"lor", b"12")
_NUM_ORDINARY = 256 + len(_MERGES)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@lru_cache
def plain_encoding(pattern: str) -> tiktoken.Encoding:
    """Return tiktoken's own encoding of the ordinary tokens, whose ids are their ranks."""
    tokens = [*(bytes([i]) for i in range(256)), *_MERGES]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    return tiktoken.Encoding("plain", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def tekken(num_special: int = 30, num_unused: int = 5, **changes: Any) -> dict[str, Any]:
    """Return the content of a small tekken.json, with some tokens for which its default size has no room."""
    tokens = [*(bytes([i]) for i in range(256)), *_MERGES, *(b"unused%d" % i for i in range(num_unused))]
    vocab = [{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for i, t in enumerate(tokens)]
    config = {
        "pattern": _TEKKEN,
        "num_vocab_tokens": len(tokens),
        "default_vocab_size": _NUM_ORDINARY + num_special,
        "default_num_special_tokens": num_special,
        "version": "v3",
    }
    return {"config": config | changes.pop("config", {}), "vocab": vocab, **changes}


def llama3_definition(folder: Path, **fields: Any) -> dict[str, Any]:
    """Write a small tokenizer.model of Llama 3's format and return its definition."""
    path = write_ranks(folder / "tokenizer.model", _MERGES)
    return {"kind": "tiktoken", "name": "llama3", "ranks": str(path), **fields}


def tekken_definition(folder: Path, content: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Write a small tekken.json and return its definition."""
    path = folder / "tekken.json"
    path.write_text(json.dumps(tekken() if content is None else content))
    return {"kind": "tiktoken", "name": "tekken", "ranks": str(path), **fields}


@pytest.fixture(autouse=True)
def _small_llama3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiktoken_files, "NUM_LLAMA_3_TOKENS", _NUM_ORDINARY)


def loaded(definition: dict[str, Any]) -> TiktokenTokenizer:
    """Return the tokenizer, as one of tiktoken."""
    tokenizer = load_tokenizer(definition)
    assert isinstance(tokenizer, TiktokenTokenizer)
    return tokenizer


class TestLlama3(TokenizerConformance):
    label = ""
    spellings = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<s>", "</s>")
    bos_ids = (_NUM_ORDINARY,)
    other_boundary_tokens = ({"bos": None}, {"eot": "<|eot_id|>"})

    @pytest.fixture
    def definition(self, tmp_path: Path) -> dict[str, Any]:
        return llama3_definition(tmp_path, bos="<|begin_of_text|>")

    def reference_ids(self, definition: dict[str, Any], text: str) -> list[int]:
        return plain_encoding(GPT_4).encode_ordinary(text)


class TestTekken(TokenizerConformance):
    label = ""
    spellings = ("<s>", "</s>", "[INST]", "<SPECIAL_25>")
    bos_ids = (1,)
    other_boundary_tokens = ({"bos": None}, {"eot": "<pad>"})

    @pytest.fixture
    def definition(self, tmp_path: Path) -> dict[str, Any]:
        return tekken_definition(tmp_path, bos="<s>")

    def reference_ids(self, definition: dict[str, Any], text: str) -> list[int]:
        return [30 + rank for rank in plain_encoding(_TEKKEN).encode_ordinary(text)]


# Llama 3


def test_the_special_tokens_of_llama3_are_256_after_the_others(tmp_path: Path) -> None:
    tokenizer = loaded(llama3_definition(tmp_path))
    places = {name: i - _NUM_ORDINARY for name, i in tokenizer._encoding._special_tokens.items()}
    assert sorted(places.values()) == list(range(256))
    known = ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eom_id", "eot_id", "python_tag")
    assert [places[f"<|{name}|>"] for name in known] == [0, 1, 6, 7, 8, 9, 10]
    reserved = {f"<|reserved_special_token_{i}|>": i for i in range(246)}
    assert [places[name] for name in reserved] == [2, 3, *range(12, 256)]
    assert (tokenizer.eot_id, tokenizer.bos_ids) == (_NUM_ORDINARY + 1, [])


def test_a_file_of_llama3_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    definition = llama3_definition(tmp_path)
    path = Path(definition["ranks"])
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with refused(r"it has 261 tokens, not the 262 of Llama 3; download it again, or give pattern"):
        loaded(definition)


def test_llama3_by_name_is_what_its_definition_in_full_is(tmp_path: Path) -> None:
    named = loaded(llama3_definition(tmp_path))
    special = named._encoding._special_tokens
    full = llama3_definition(tmp_path, name="label", pattern=GPT_4, special_tokens=special, eot="<|end_of_text|>")
    assert load_tokenizer(full).fingerprint == named.fingerprint


def test_the_name_of_a_file_with_a_pattern_is_only_a_label(tmp_path: Path) -> None:
    fields = {"pattern": "gpt2", "special_tokens": {"<|endoftext|>": 300}}
    label, other = (llama3_definition(tmp_path, name=name, **fields) for name in ("llama3", "other"))
    assert load_tokenizer(label).fingerprint == load_tokenizer(other).fingerprint


# Tekken


def test_the_special_tokens_of_tekken_come_first_and_its_vocabulary_is_cut(tmp_path: Path) -> None:
    tokenizer = loaded(tekken_definition(tmp_path))
    assert tokenizer.vocab_size == _NUM_ORDINARY + 30
    assert sorted(tokenizer._encoding._special_tokens.values()) == list(range(30))
    assert set(tokenizer.ranks.values()) == set(range(30, tokenizer.vocab_size))
    known = {"<unk>": 0, "<s>": 1, "</s>": 2, "[INST]": 3, "<pad>": 11, "[TOOL_CONTENT]": 19, "<SPECIAL_20>": 20}
    assert known.items() <= tokenizer._encoding._special_tokens.items()
    assert tokenizer.eot_id == 2


def test_the_special_tokens_that_a_tekken_file_lists_are_its_own(tmp_path: Path) -> None:
    names = {0: "<unk>", 1: "<s>", 2: "</s>", 4: "[THINK]"}
    listed = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in names.items()]
    content = tekken(6, special_tokens=listed, config={"version": "v13"})
    tokenizer = loaded(tekken_definition(tmp_path, content))
    expected = {name: rank for rank, name in names.items()} | {"<SPECIAL_3>": 3, "<SPECIAL_5>": 5}
    assert tokenizer._encoding._special_tokens == expected
    assert encode_each(tokenizer, ["abc"]) == [[6 + 257, 2]]


_BASE = tekken()
_BEYOND = [{"rank": 99, "token_str": "<s>", "is_control": True}]
_BAD_TEKKEN = {
    "must list its special tokens": tekken(config={"version": "v13"}),
    "are not 0, 1, 2": _BASE | {"vocab": _BASE["vocab"][:7] + _BASE["vocab"][8:]},
    r"different ranks in \[0, 30\)": tekken(special_tokens=_BEYOND),
    "its entries are not those": {"vocab": []},
    "Incorrect padding": _BASE | {"vocab": [entry | {"token_bytes": "YQ"} for entry in _BASE["vocab"]]},
}


@pytest.mark.parametrize("why", _BAD_TEKKEN)
def test_a_tekken_file_that_is_not_one_is_refused(why: str, tmp_path: Path) -> None:
    with refused(rf"/tekken\.json is not Mistral's tekken\.json: .*{why}.*; download it"):
        load_tokenizer(tekken_definition(tmp_path, _BAD_TEKKEN[why]))


# A file of another kind

_OTHER_FILES: dict[str, Callable[[], bytes]] = {
    "a tekken.json": lambda: json.dumps(tekken()).encode(),
    "a tokenizer.json": lambda: train_bpe().encode(),
    "a SentencePiece model": lambda: train("bpe"),
    "a .tiktoken file": lambda: b"IQ== 0\nIg== 1\n",
    "deep lists": lambda: b"[" * 10_000,
    "all bytes": lambda: bytes(range(256)) * 20,
}
_READERS = {
    "a tokenizer.json": {"kind": "huggingface", "path": "FILE"},
    "a SentencePiece model": {"kind": "sentencepiece", "path": "FILE"},
    "a tekken.json": {"kind": "tiktoken", "name": "tekken", "ranks": "FILE"},
    "a tokenizer.model": {"kind": "tiktoken", "name": "llama3", "ranks": "FILE"},
}


@pytest.mark.parametrize("wanted", _READERS)
@pytest.mark.parametrize("case", _OTHER_FILES)
def test_a_file_of_another_kind_is_refused_by_name(case: str, wanted: str, tmp_path: Path) -> None:
    if case == wanted:
        return
    path = tmp_path / "file"
    path.write_bytes(_OTHER_FILES[case]())
    with refused(rf"^tokenizer file {path} is not .*download it again"):
        load_tokenizer({key: value.replace("FILE", str(path)) for key, value in _READERS[wanted].items()})
