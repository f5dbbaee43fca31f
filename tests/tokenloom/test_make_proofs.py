"""The script that makes the shipped proofs writes those that are missing and names what it can't prove."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import normalizers

from tests.builders.make_proofs import main
from tests.tokenloom.test_fast_encoders import loaded, train
from tokenloom.tokenizers.fast import probe
from tokenloom.tokenizers.fast.parts import parts_of


@pytest.mark.slow
def test_proofs_are_made_once_and_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "")  # restored after the test
    monkeypatch.setattr(probe, "NUM_SLICES", 2)
    (tmp_path / "one.json").write_bytes(train())
    (tmp_path / "other.json").write_bytes(train(normalizers.NFKC()))
    definitions = {name: {"kind": "huggingface", "path": f"{name}.json"} for name in ("one", "other")}
    (tmp_path / "definitions").write_text(json.dumps(definitions))
    path = tmp_path / "proofs.json"
    assert main(tmp_path / "definitions", path) == 1
    assert capsys.readouterr().out == "one: proven\nother: its normalizer is NFKC\n"
    assert [*json.loads(path.read_text())] == ["one"]
    assert json.loads(path.read_text())["one"]["key"] == parts_of(loaded(train())).key
    path.touch()
    written = path.stat()
    main(tmp_path / "definitions", path)
    assert path.stat() == written
