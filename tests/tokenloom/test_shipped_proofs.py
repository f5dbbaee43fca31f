"""The vocabularies of the table in docs/guides/tokenizers.md are encoded by the fast encoder."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from packaging.requirements import Requirement

from tests.builders.make_proofs import main
from tests.counts import count, full_only
from tests.tokenloom.test_fast_encoders import ids_of
from tests.tokenloom.tokenizer_conformance import real_texts
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.fast.probe import PIECES, assigned
from tokenloom.tokenizers.fast.proofs import SHIPPED, choose, shipped_proofs
from tokenloom.tokenizers.fast.tokenizer import FastTokenizer, Router, left_to_reference, make_encoder

_ROOT = Path(__file__).parent.parent.parent
_AT_HAND = {  # vocabularies that the tests have, and the names of their proofs
    "gpt2": "gpt2",
    "r50k_base": "gpt2",
    "cl100k_base": "cl100k_base",
    "o200k_base": "o200k_base",
    "gpt-neox-20b/tokenizer.json": "gpt-neox",
    "gpt2/tokenizer.json": "gpt2-json",
    "mistral/tokenizer.model.v1": "mistral-v1-model",
}


def test_the_table_of_fast_vocabularies_is_that_of_the_proofs() -> None:
    page = (_ROOT / "docs/guides/tokenizers.md").read_text()
    assert re.findall(r"^\| `([^`]+)` \| (?:tiktoken|tokenizers|sentencepiece) \|", page, re.M) == [*shipped_proofs()]


@pytest.mark.parametrize("name", sorted(shipped_proofs()))
def test_each_proof_holds_for_the_listed_versions(name: str) -> None:
    listed = set((_ROOT / "constraints.txt").read_text().replace("==", " ").splitlines())
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {each.name: each.specifier for each in map(Requirement, [*extras["build"], *extras["fast"]])}
    left = Router(left_to_reference(), [])._is_odd
    proof = shipped_proofs()[name]
    assert re.fullmatch("[0-9a-f]{64}", proof.key)
    assert {proof.library, proof.reference} <= listed
    assert all(number in needed[name] for name, number in map(str.split, (proof.library, proof.reference)))
    assert all(0x7F < first <= last and not left[first : last + 1].any() for first, last in proof.odd)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(proof.odd))
    assert sum(proof.key == other.key for other in shipped_proofs().values()) == 1


@pytest.mark.usefixtures("tiktoken_cache")
@pytest.mark.parametrize("name", _AT_HAND)
def test_a_vocabulary_of_the_table_is_fast(name: str, data_dir: Path) -> None:
    kind = {".json": "huggingface", ".v1": "sentencepiece"}.get(Path(name).suffix, "tiktoken")
    path = str(data_dir / "tokenizers" / name)
    definition = {"kind": kind, "backend": "auto"} | ({"name": name} if kind == "tiktoken" else {"path": path})
    reference = load_tokenizer(definition)
    proof = choose(reference, definition).proof
    assert proof == shipped_proofs()[_AT_HAND[name]]
    encoder = make_encoder(reference)
    fast = FastTokenizer(reference, encoder, Router([*left_to_reference(), *proof.odd], encoder.spellings))
    texts = ["", "it's 1234 naïve cafés", *("".join(PIECES[i : i + 9]) for i in range(len(PIECES)))]
    texts += [*real_texts(data_dir), *random_strings(count(2000, 200_000))]
    assert ids_of(fast, texts) == ids_of(reference, texts)


def random_strings(num_strings: int) -> Iterator[str]:
    """Yield strings half of the pieces at which libraries differ, half of any characters."""
    draw = Random(10**6).random  # another stream than those of a probe
    pieces = [*PIECES * 99, *map(chr, assigned()[::29])]
    for _ in range(num_strings):
        yield "".join(pieces[int(draw() * len(pieces))] for _ in range(1 + int(draw() * 20)))


@full_only
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("tiktoken_cache")
def test_three_are_proven_again(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "")  # restored after the test
    made = tmp_path / "proofs.json"
    gpt_neox = {"kind": "huggingface", "path": str(data_dir / "tokenizers" / "gpt-neox-20b" / "tokenizer.json")}
    named = {name: {"kind": "tiktoken", "name": name} for name in ("gpt2", "o200k_base")}
    (tmp_path / "definitions").write_text(json.dumps(named | {"gpt-neox": gpt_neox}))
    assert main(tmp_path / "definitions", made) == 0
    shipped, again = (json.loads(path.read_bytes()) for path in (SHIPPED, made))
    assert len(again) == 3
    assert again.items() <= shipped.items()
