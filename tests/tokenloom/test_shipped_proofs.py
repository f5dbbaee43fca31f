"""The proofs that the package ships are well-formed, for the listed libraries, and proven again in the full run."""

from __future__ import annotations

import json
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.builders.make_proofs import main
from tests.counts import full_only
from tokenloom.storage.formats.canonical import read_signed_record
from tokenloom.tokenizers.fast import proofs
from tokenloom.tokenizers.fast.probe_texts import NUM_SLICES
from tokenloom.tokenizers.fast.proofs import Proof
from tokenloom.tokenizers.fast.routing import Router
from tokenloom.tokenizers.fast.unicode_14 import left_to_reference

_ROOT = Path(__file__).parent.parent.parent
_PATHS = sorted(proofs._FOLDER.iterdir())


def test_each_proof_is_named_by_its_key_and_holds_for_the_listed_versions() -> None:
    listed = set((_ROOT / "constraints.txt").read_text().replace("==", " ").splitlines())
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {each.name: each.specifier for each in map(Requirement, [*extras["build"], *extras["fast"]])}
    left = Router(left_to_reference(), [])._is_odd
    for path in _PATHS:
        proof = read_signed_record(path.read_bytes(), str(path), Proof)
        assert re.fullmatch("[0-9a-f]{64}", proof.key)
        assert path.stem.endswith(f"-{proof.key[:16]}")
        assert {proof.library, proof.reference} <= listed
        assert all(number in needed[name] for name, number in map(str.split, (proof.library, proof.reference)))
        assert len(proof.slices) == NUM_SLICES
        assert all(re.fullmatch("[0-9a-f]{16}", each) for each in proof.slices)
        assert all(0x7F < first <= last and not left[first : last + 1].any() for first, last in proof.odd)
        assert all(before[1] + 1 < after[0] for before, after in pairwise(proof.odd))
    assert len({path.stem.rpartition("-")[2] for path in _PATHS}) == len(_PATHS)


@full_only
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("tiktoken_cache")
def test_three_are_proven_again(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "")  # restored after the test
    made = tmp_path / "proofs"
    made.mkdir()
    gpt_neox = {"kind": "huggingface", "path": str(data_dir / "tokenizers" / "gpt-neox-20b" / "tokenizer.json")}
    named = {name: {"kind": "tiktoken", "name": name} for name in ("gpt2", "o200k_base")}
    (tmp_path / "definitions").write_text(json.dumps(named | {"gpt-neox": gpt_neox}))
    assert main(tmp_path / "definitions", made) == 0
    shipped = {path.name: path.read_bytes() for path in _PATHS}
    again = {path.name: path.read_bytes() for path in made.iterdir()}
    assert len(again) == 3
    assert again.items() <= shipped.items()
