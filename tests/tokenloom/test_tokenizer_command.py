"""`tokenloom tokenizer`: a tokenizer, what encodes with it, its speed, and the ids of a text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.builders import proofs
from tests.tokenloom.test_fast_encoders import train
from tokenloom.cli.main import main
from tokenloom.tokenizers import ReferenceTokenizer, load_tokenizer
from tokenloom.tokenizers.fast import Unproven


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec with a tokenizer.json, and a cache without verdicts."""
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tokenizer.json").write_bytes(train())
    path = tmp_path / "spec.yaml"
    source = "{kind: text, path: a.txt}"
    tokenizer = "{kind: huggingface, path: tokenizer.json, name: small, backend: auto}"
    path.write_text(f"dataset: d\nstore: st\nsources: [{source}]\ntokenizer: {tokenizer}\n")
    return path


def loaded(spec: Path) -> ReferenceTokenizer:
    return load_tokenizer({"kind": "huggingface", "path": str(spec.parent / "tokenizer.json")})


def test_it_shows_the_encoder_and_the_ids_of_a_text(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proofs.trust(loaded(spec))
    assert main(["tokenizer", str(spec), "--text", "lorem ipsum"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"tokenizer  small \(huggingface\), \d+ ids, end of text 0 '<\|endoftext\|>'", shown[0])
    assert shown[1].startswith("encoder    gigatoken ")
    assert re.match(
        r"speed      gigatoken 0\.10\.0: [\d.]+ MB/s; tokenizers 0\.23\.3: [\d.]+ MB/s \(on one core", shown[2]
    )
    reference = loaded(spec)
    assert main(["tokenizer", str(spec), "--text", "lorem ipsum", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert shown[3] == "ids        " + " ".join(map(str, result["ids"]))
    assert (result["fingerprint"], result["reason"]) == (reference.fingerprint, None)
    assert result["encoder_speed"] > 0


def test_each_command_names_a_tokenizer_without_a_name_by_its_file(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = spec.read_text().replace("name: small", "backend: reference").replace(", backend: auto", "")
    spec.write_text(text + "splits: {train: 1}\n")
    (spec.parent / "a.txt").write_text("lorem ipsum")
    build = ["build", str(spec), "--direct", "--workers", "0"]
    for command in (["tokenizer", str(spec)], ["plan", str(spec)], build, build, ["inspect", f"{spec.parent}/st/d"]):
        assert main(command) == 0
        shown = capsys.readouterr().out
        assert re.search(rf"tokenizer +{spec.parent.name}/tokenizer\.json \(huggingface\), \d+ ids", shown), shown


def test_it_says_why_the_reference_encodes(
    spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = Mock(side_effect=Unproven("it encodes 'x' differently"))
    monkeypatch.setattr("tokenloom.flows.direct.prove_directly", refuse)
    assert main(["tokenizer", str(spec)]) == 0
    shown = capsys.readouterr().out
    assert "tokenizers 0.23.3: gigatoken 0.10.0 does not give its ids: it encodes 'x' differently\n" in shown
    assert re.search(r"speed +tokenizers 0.23.3: [\d.]+ MB/s ", shown)
    assert main(["tokenizer", str(spec), "--set", "tokenizer.backend=reference"]) == 0
    assert ": the spec asks for the reference library" in capsys.readouterr().out


@pytest.mark.slow
def test_it_proves_an_encoder_that_nobody_has_compared(
    spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.tokenizers.fast.probe.NUM_SLICES", 11)
    assert main(["tokenizer", str(spec)]) == 0
    shown = capsys.readouterr().out
    assert "proving gigatoken 0.10.0 (once per vocabulary and machine); this takes about a minute" in shown
    assert re.search(r"gigatoken 0.10.0: gives the same ids as tokenizers \S+", shown)
    assert main(["tokenizer", str(spec)]) == 0
    assert "this takes about a minute" not in capsys.readouterr().out
