"""Tokenizers: the ids of the library, end of text after each document, and fingerprints of definitions."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken_ext import openai_public

from tests.builders.vocabularies import encoding_of
from tests.counts import count
from tests.tokenloom.tokenizer_conformance import EOT, TokenizerConformance, encode_each, refused
from tokenloom.tokenizers import Tokenizer, load_job_tokenizer, load_tokenizer

Vocabulary = Callable[[str], dict[str, Any]]  # of the fixture


def by_name(name: str, **fields: Any) -> Tokenizer:
    """Return a tiktoken tokenizer by name."""
    return load_tokenizer({"kind": "tiktoken", "name": name, **fields})


def write_ranks(path: Path, merges: tuple[bytes, ...] = (b"ab", b"abc", b"  ")) -> Path:
    """Write a small .tiktoken file: all bytes and some merges."""
    tokens = [bytes([i]) for i in range(256)] + list(merges)
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % i for i, token in enumerate(tokens)))
    return path


@lru_cache
def small_encoding() -> tiktoken.Encoding:
    """Return tiktoken's own encoding from the file that write_ranks writes."""
    ranks = {bytes([i]): i for i in range(256)} | {b"ab": 256, b"abc": 257, b"  ": 258}
    pattern = openai_public.r50k_pat_str
    return tiktoken.Encoding("small", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def definition_of(path: Path, **fields: Any) -> dict[str, Any]:
    """Return the definition of a tokenizer from a small .tiktoken file with two special tokens."""
    special = {EOT: 300, "<s>": 301}
    return {"kind": "tiktoken", "ranks": str(path), "pattern": "gpt2", "special_tokens": special, **fields}


def from_file(path: Path, **fields: Any) -> Tokenizer:
    """Return the tokenizer of definition_of."""
    return load_tokenizer(definition_of(path, **fields))


class TestByteTokenizer(TokenizerConformance):
    @pytest.fixture
    def definition(self) -> dict[str, Any]:
        return {"kind": "byte"}

    def reference_ids(self, definition: dict[str, Any], text: str) -> list[int]:
        return list(text.encode())


class TestTiktokenTokenizerOfFiles(TokenizerConformance):
    other_boundary_tokens: tuple[dict[str, Any], ...] = ({"eot": "<s>"}, {"bos": "<s>"})

    @pytest.fixture
    def definition(self, tmp_path: Path) -> dict[str, Any]:
        return definition_of(write_ranks(tmp_path / "a.tiktoken"))

    def reference_ids(self, definition: dict[str, Any], text: str) -> list[int]:
        return small_encoding().encode_ordinary(text)


# Bytes


@settings(max_examples=count(100, 2000), deadline=None)
@given(st.text())
def test_byte_ids_of_a_text_decode_to_it(text: str) -> None:
    tokenizer = load_tokenizer({"kind": "byte"})
    (ids,) = encode_each(tokenizer, [text])
    assert 255 not in ids[:-1]
    assert tokenizer.decode(np.array(ids[:-1], np.uint8)) == text
    assert tokenizer.decode(np.array(ids, np.uint8)) == text + EOT


def test_byte_ids_cut_inside_a_character_decode_to_a_replacement() -> None:
    tokenizer = load_tokenizer({"kind": "byte"})
    assert tokenizer.decode(np.array(list("é".encode())[:1])) == "\ufffd"


# tiktoken


@pytest.mark.parametrize("name", ["gpt2", "cl100k_base", "o200k_base"])
def test_documents_encoded_together_have_the_ids_of_each_encoded_separately(name: str, vocabulary: Vocabulary) -> None:
    definition = vocabulary(name)
    tokenizer, encoding = load_tokenizer(definition), encoding_of(definition)

    @settings(max_examples=count(60, 1000), deadline=None)
    @given(st.lists(st.one_of(st.text(max_size=30), st.sampled_from([EOT, "<|end", "oftext|>", " ", "\n", "'s"]))))
    def check(texts: list[str]) -> None:
        assert encode_each(tokenizer, texts) == [[*encoding.encode_ordinary(t), encoding.eot_token] for t in texts]
        assert [tokenizer.decode(np.array(ids[:-1])) for ids in encode_each(tokenizer, texts)] == texts

    check()


def test_a_text_on_which_the_library_panics_has_the_ids_of_the_unbounded_engine(vocabulary: Vocabulary) -> None:
    definition = vocabulary("gpt2")
    tokenizer, encoding = load_tokenizer(definition), encoding_of(definition)
    text = " " * 1_000_000 + "x"
    with pytest.raises(BaseException, match=r"[Rr]egex|backtracking|StackOverflow|unwrap"):
        encoding.encode_ordinary(text)
    assert encode_each(tokenizer, ["before", text, "after"]) == [
        [*encoding.encode_ordinary("before"), encoding.eot_token],
        [*encoding._encode_only_native_bpe(text), encoding.eot_token],
        [*encoding.encode_ordinary("after"), encoding.eot_token],
    ]


def test_bos_can_be_the_end_of_text_token(vocabulary: Vocabulary) -> None:
    definition = vocabulary("gpt2")
    plain, marked = load_tokenizer(definition), load_tokenizer(definition | {"bos": EOT})
    texts = ["one", "", EOT, f"{EOT}two", "three"]
    expected = [[plain.eot_id, *ids] for ids in encode_each(plain, texts)]
    assert encode_each(marked, texts) == expected
    assert encode_each(marked, texts[:2]) == expected[:2]


# Fingerprints


def test_every_part_of_a_definition_changes_the_fingerprint(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "a.tiktoken")
    other = write_ranks(tmp_path / "b.tiktoken", (b"ab", b"abc", b"xy"))
    tokenizers = [
        from_file(path),
        from_file(path, bos="<s>"),
        from_file(path, eot="<s>"),
        from_file(path, special_tokens={EOT: 300}),
        from_file(path, special_tokens={EOT: 301, "<s>": 300}),
        from_file(path, pattern=r"\S+|\s+"),
        from_file(other),
        load_tokenizer({"kind": "byte"}),
    ]
    assert len({tokenizer.fingerprint for tokenizer in tokenizers}) == len(tokenizers)
    assert from_file(path, eot=EOT).fingerprint == tokenizers[0].fingerprint


# The name of every version depends on them: a change here gives every dataset a new version.
def test_the_fingerprint_of_bytes_is_pinned() -> None:
    assert load_tokenizer({"kind": "byte"}).fingerprint[:16] == "ba82a41214cfe89a"


def test_the_fingerprint_of_gpt2_is_pinned(tiktoken_cache: Path) -> None:
    assert by_name("gpt2").fingerprint[:16] == "6d6c4edc118d929b"


def test_a_vocabulary_file_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "a.tiktoken")
    planned = from_file(path)
    definition = definition_of(path)
    assert load_job_tokenizer(definition, planned.fingerprint).fingerprint == planned.fingerprint
    write_ranks(path, (b"xy",))
    with refused(r"is not the one of the plan or version.*files changed.*build again"):
        load_job_tokenizer(definition, planned.fingerprint)


# Refusals


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"eot": "<|nope|>"}, r"'<\|nope\|>' is not one of its special tokens; it has .*: <\|endoftext\|>, <s>$"),
        ({"special_tokens": {"<s>": 301}}, r"its end-of-text token is unknown; give tokenizer\.eot; it has .*: <s>$"),
        ({"special_tokens": {}}, r"no special tokens.*such as tokenizer\.special_tokens: \{<\|endoftext\|>: 259\}$"),
        ({"special_tokens": {EOT: 7}}, r"id 7 of .* is the rank of an ordinary token; give it an id of its own"),
        ({"special_tokens": {EOT: 300, "<s>": 300}}, r"id 300 of .*'<s>' is that of another special token; give it"),
    ],
)
def test_an_inconsistent_definition_is_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with refused(message):
        from_file(write_ranks(tmp_path / "a.tiktoken"), **fields)


@pytest.mark.parametrize(
    "content", [b"", b"no base64 !\n", b"YQ== x\n", b"YQ==\n", b"\xff\xfe 1\n", b"YQ== 0\nYQ== 1\n"]
)
def test_an_invalid_file_of_ranks_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.tiktoken"
    path.write_bytes(content)
    with refused(r"a\.tiktoken is not a \.tiktoken file: (line 1|some) .*; download it again$"):
        from_file(path)


def test_an_invalid_pattern_is_refused(tmp_path: Path) -> None:
    with refused(r"not a regular expression of tiktoken: .*; repair tokenizer\.pattern"):
        from_file(write_ranks(tmp_path / "a.tiktoken"), pattern="(")


def test_unknown_kinds_and_names_are_refused_with_a_list_of_known_ones() -> None:
    with refused(r"'magic' is not supported by this release; supported kinds: byte, tiktoken, huggingface, s"):
        load_tokenizer({"kind": "magic"})
    with refused(r"no encoding 'gpt9'\. Did you mean gpt2\? Allowed: cl100k_base, gpt2"):
        by_name("gpt9")
