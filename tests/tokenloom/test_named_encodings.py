"""An encoding that this machine keeps is the library's, or is loaded from the library again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import tiktoken
from tiktoken_ext import openai_public

from tokenloom.storage.formats.canonical import read_signed_record, sign_record
from tokenloom.tokenizers import load_tokenizer, machine_records, named_encodings
from tokenloom.tokenizers.named_encodings import NamedEncoding
from tokenloom.tokenizers.tiktoken_bpe import TiktokenTokenizer

NAMES = ("gpt2", "cl100k_base", "o200k_base")
TEXTS = ["", "Zebra crossings", "naïve café, 1234\n\n\t  x", "日本語 👩‍👩‍👧 <|endoftext|> <|endofprompt|>"]


class Machine(NamedTuple):
    """A cache of this test's own, and the encodings that the library was asked for."""

    folder: Path
    asked: list[str]

    @property
    def records(self) -> list[Path]:
        return sorted(self.folder.glob("tokenizers/*.json"))

    @property
    def record(self) -> Path:
        """The only record."""
        (path,) = self.records
        return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiktoken_cache: Path) -> Iterator[Machine]:
    """Start with an empty cache."""
    machine = Machine(tmp_path / "cache", [])
    get_encoding: Callable[[str], tiktoken.Encoding] = tiktoken.get_encoding

    def ask(name: str) -> tiktoken.Encoding:
        machine.asked.append(name)
        return get_encoding(name)

    monkeypatch.setenv("TOKENLOOM_CACHE", str(machine.folder))
    monkeypatch.setattr(machine_records, "_held", {})
    monkeypatch.setattr(tiktoken, "get_encoding", ask)
    yield machine
    named_encodings.load_named.cache_clear()  # of what this test has kept


def load(name: str = "gpt2") -> TiktokenTokenizer:
    """Load an encoding as a new process does."""
    named_encodings.load_named.cache_clear()
    tokenizer = load_tokenizer({"kind": "tiktoken", "name": name})
    assert isinstance(tokenizer, TiktokenTokenizer)
    return tokenizer


def all_of(tokenizer: TiktokenTokenizer) -> tuple[Any, ...]:
    """Return what a tokenizer consists of, and the ids of some texts."""
    encoding = tokenizer._encoding
    encoded = tokenizer.encode(pa.array(TEXTS, pa.large_string()), np.dtype(np.uint32))
    return (
        tokenizer.fingerprint,
        tokenizer.pattern,
        tokenizer.vocab_size,
        tokenizer.ranks.ids,
        tokenizer.ranks.file,
        tokenizer.ranks.sha256,
        encoding._special_tokens,
        encoding.encode(TEXTS[-1], allowed_special="all"),
        encoded.tokens.tolist(),
        encoded.num_tokens.tolist(),
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_the_encoding_of_the_library(name: str, machine: Machine) -> None:
    first = load(name)
    assert machine.asked == [name]
    again = load(name)
    assert machine.asked == [name]
    assert all_of(again) == all_of(first)
    assert again.ranks.ids == tiktoken.get_encoding(name)._mergeable_ranks


@pytest.mark.parametrize("changed", ["library", "modules"])
def test_other_code_loads_it_from_the_library(changed: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    if changed == "library":
        monkeypatch.setattr(type(distribution("tiktoken")), "read_text", lambda self, name: "core.py,sha256=abc,9\n")
    else:
        monkeypatch.setattr(named_encodings, "installed_code", lambda package: "another release of ours")
    load()
    load()
    assert machine.asked == ["gpt2", "gpt2"]  # and kept beside the other one
    assert len(machine.records) == 2


def test_a_damaged_record_is_replaced(machine: Machine) -> None:
    found = load()
    good = machine.record.read_bytes()
    for number, damaged in enumerate([b"", good[:-1], good.replace(b"IQ== 0", b"Ig== 0"), b"{}"], 2):
        assert damaged != good
        machine.record.write_bytes(damaged)
        assert load().ranks.ids == found.ranks.ids
        assert len(machine.asked) == number
        assert machine.record.read_bytes() == good


def test_code_that_is_unknown_keeps_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(distribution("tiktoken")), "read_text", lambda self, name: None)
    load()
    load()
    assert machine.asked == ["gpt2", "gpt2"]
    assert not machine.folder.exists()


def test_an_encoding_of_a_plugin_is_not_kept(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(openai_public.ENCODING_CONSTRUCTORS, "gpt2")
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["gpt2"])
    load()
    load()
    assert machine.asked == ["gpt2", "gpt2"]
    assert not machine.folder.exists()


def test_a_cache_that_cannot_be_written_is_no_error(machine: Machine) -> None:
    machine.folder.write_text("a file, not a folder")
    assert load().fingerprint == load().fingerprint
    assert len(machine.asked) == 1  # the process keeps it


def test_a_kept_encoding_needs_no_vocabulary_of_tiktoken(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = load()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "empty"))
    assert load().fingerprint == found.fingerprint
    assert machine.asked == ["gpt2"]


def test_a_pipe_in_place_of_a_record_is_not_read(machine: Machine) -> None:
    load()
    path = machine.record
    path.unlink()
    os.mkfifo(path)
    load()
    assert path.is_file()


def test_a_process_shares_an_encoding(machine: Machine) -> None:
    assert load()._encoding is load_tokenizer({"kind": "tiktoken", "name": "gpt2", "bos": "<|endoftext|>"})._encoding  # type: ignore[attr-defined]


def test_the_fingerprint_is_made_of_the_kept_checksum(machine: Machine) -> None:
    found = load()
    path = machine.record
    kept = read_signed_record(path.read_bytes(), str(path), NamedEncoding)
    path.write_bytes(sign_record(replace(kept, sha256="0" * 64)))
    assert load().fingerprint != found.fingerprint
