"""What gigatoken gets of a tokenizer.json is kept as it is made, and made again for another file or other code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import AddedToken, normalizers

from tests.tokenloom.test_fast_encoders import loaded, train
from tokenloom.storage.formats.canonical import sign_record
from tokenloom.tokenizers import huggingface_json
from tokenloom.tokenizers.fast import bare_json as module
from tokenloom.tokenizers.fast.bare_json import bare_json
from tokenloom.tokenizers.fast.gigatoken_library import make_encoder
from tokenloom.tokenizers.fast.known_parts import Unproven, bare_content

RUNS = tuple(AddedToken(" " * length, normalized=True) for length in range(2, 9))
PLAIN, NORMAL = train(), train(normalizers.NFC(), RUNS)
_UINT32 = np.dtype(np.uint32)


class Machine(NamedTuple):
    """A cache of this test's own, and the files that were parsed since the test began."""

    folder: Path
    parsed: list[bytes]

    @property
    def records(self) -> list[Path]:
        return sorted(self.folder.glob("tokenizers/bare-json-*.json"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Start with an empty cache."""
    machine = Machine(tmp_path / "cache", [])

    def parse(data: bytes) -> dict[str, Any]:
        machine.parsed.append(data)
        return bare_content(data)

    monkeypatch.setenv("TOKENLOOM_CACHE", str(machine.folder))
    monkeypatch.setattr(module, "bare_content", parse)
    return machine


@pytest.mark.parametrize("data", [PLAIN, NORMAL], ids=["plain", "NFC and runs of spaces"])
def test_it_is_parsed_once(data: bytes, machine: Machine) -> None:
    first, again = bare_json(data), bare_json(data)
    assert again == first
    assert machine.parsed == [data]


def test_it_is_the_file_without_what_the_caller_does(machine: Machine) -> None:
    bare, content = bare_json(NORMAL), json.loads(NORMAL)
    found = json.loads(bare.content)
    assert found["normalizer"] is None
    assert bare.normalizes
    assert found["added_tokens"] == []  # a marker replaces runs of spaces
    ids = {len(token["content"]): token["id"] for token in content["added_tokens"] if not token["special"]}
    assert bare.run_ids[2:] == [ids[length] for length in range(2, 9)]
    assert bare.marker_id not in content["model"]["vocab"].values()
    assert found["model"]["vocab"].items() >= content["model"]["vocab"].items()
    assert {"<|endoftext|>", "\x85"} <= set(bare.spellings)


@pytest.mark.parametrize("data", [PLAIN, NORMAL], ids=["plain", "NFC and runs of spaces"])
def test_an_encoder_of_a_kept_file_gives_the_ids_of_the_reference(data: bytes, machine: Machine) -> None:
    reference = loaded(data)
    texts = pa.array(["def f(x):\n          y", "naïve  cafe\u0301", "", "a" * 50], pa.large_string())
    expected = reference.encode(texts, _UINT32)
    for _ in range(2):
        found = make_encoder(reference).encode(texts, _UINT32)
        assert found.tokens.tolist() == expected.tokens.tolist()
        assert found.num_tokens.tolist() == expected.num_tokens.tolist()
    assert machine.parsed == [data]


def test_another_file_has_a_record_of_its_own(machine: Machine) -> None:
    plain, normal = bare_json(PLAIN), bare_json(NORMAL)
    assert plain != normal
    assert (bare_json(PLAIN), bare_json(NORMAL)) == (plain, normal)
    assert len(machine.records) == len(machine.parsed) == 2


def test_other_code_makes_it_again_in_the_same_place(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    bare_json(PLAIN)
    monkeypatch.setattr(module, "installed_code", lambda: "another release")
    assert bare_json(PLAIN).code == bare_json(PLAIN).code == "another release"
    assert len(machine.parsed) == 2
    assert len(machine.records) == 1


def test_a_file_with_an_unknown_part_is_refused_each_time(machine: Machine) -> None:
    data = train(normalizers.Lowercase())
    for _ in range(2):
        with pytest.raises(Unproven, match="its normalizer is Lowercase"):
            bare_json(data)
    assert machine.records == []


def test_the_size_of_a_vocabulary_is_kept(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def size(code: str) -> int:
        monkeypatch.setattr(huggingface_json, "installed_code", lambda package: code)
        return loaded(NORMAL).vocab_size

    true = size("one release")
    assert true == max(token["id"] for token in json.loads(NORMAL)["added_tokens"]) + 1
    (record,) = machine.folder.glob("tokenizers/vocab-size-*.json")
    record.write_bytes(sign_record(huggingface_json._VocabSize(record.stem, "one release", 7)))
    assert size("one release") == 7  # the record is used
    assert size("") == size("another") == true
    assert size("another") == true
