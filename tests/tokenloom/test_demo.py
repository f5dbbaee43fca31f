"""The demo: it reports what it leaves out, shows its progress, and trains a model of plain layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tokenloom.cli.commands.start import demo
from tokenloom.cli.output import Output
from tokenloom.examples.train_small import loss_of, make_model


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of 60 long files, 9 short ones, a copy, one not in UTF-8, and a test that is never read."""
    folder = tmp_path / "library"
    (folder / "test").mkdir(parents=True)
    for i in range(60):
        (folder / f"long_{i:02}.py").write_text(f"# file {i}\n" * 700)
    for i in range(9):
        (folder / f"short_{i}.py").write_text(f"x = {i}\n")
    (folder / "copy.py").write_text("# file 7\n" * 700)
    (folder / "latin_1.py").write_bytes(b"# caf\xe9\n" * 1000)
    (folder / "test" / "test_a.py").write_text("# a test\n" * 700)
    monkeypatch.setattr("tokenloom.cli.commands.start.sysconfig.get_path", lambda name: str(folder))
    return folder


def _run(folder: Path) -> dict[str, Any]:
    return demo(folder=str(folder), updates=10, workers=0, direct=True, out=Output()).value


@pytest.mark.usefixtures("library")
def test_the_demo_reports_how_many_files_it_leaves_out_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = _run(tmp_path / "demo")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1. 70 Python files of the standard library -> ")
    assert lines[0].endswith("; 1 file left out: not UTF-8")
    assert "10 of 70 rows left out: 9 filtered, 1 duplicate" in lines
    assert result["rows"]["kept"] == 60


def test_the_model_computes_equal_tokens_once_and_its_loss_and_gradients_are_those_of_its_layers() -> None:
    model = make_model(257, seed=0)
    ids = torch.randint(0, 257, (8, 512), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    logits = batch["input_ids"]
    for layer in model.children():
        logits = layer(logits)
    plain = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    plain.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss_of(model, batch), plain)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
