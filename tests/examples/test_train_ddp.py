"""examples/train_ddp.py under torchrun: samples depend neither on the number of processes nor on interruptions."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_PROGRAM = str(_ROOT / "examples" / "train_ddp.py")


def _options(reference: str, folder: Path, steps: int) -> list[str]:
    options = {"checkpoints": folder, "lr": 3e-3, "steps": steps, "seq-len": 64, "batch-size": 8}
    options |= {"save-every": 4, "log-every": 1}
    return [reference, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def _losses(printed: str) -> dict[int, float]:
    """Return {step: loss}."""
    found = re.findall(r"step +(\d+) +loss ([\d.]+) +[\d,]+ tokens/s +waiting [\d.]+%", printed)
    return {int(step): float(loss) for step, loss in found}


def _on_two_processes(*arguments: Any) -> dict[int, float]:
    """Train by torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", _PROGRAM]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *_options(*arguments)], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return _losses(done.stdout)


@pytest.fixture
def on_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[int, float]]:
    """A function that trains in this process, with torchrun's variables."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: Any) -> dict[int, float]:
        monkeypatch.setattr(sys, "argv", [_PROGRAM, *_options(*arguments)])
        runpy.run_path(_PROGRAM, run_name="__main__")
        return _losses(capsys.readouterr().out)

    return run


def test_two_processes_then_one_train_like_one_uninterrupted_process(
    corpus: str, tmp_path: Path, on_one_process: Callable[..., dict[int, float]]
) -> None:
    first = _on_two_processes(corpus, tmp_path / "stopped", 9)
    assert sorted(path.name for path in (tmp_path / "stopped").iterdir()) == [f"step-{n:08d}.pt" for n in (4, 8, 9)]
    then = on_one_process(corpus, tmp_path / "stopped", 20)
    whole = on_one_process(corpus, tmp_path / "whole", 20)
    assert list(first) == list(range(1, 10))
    assert list(then) == list(range(10, 21))
    assert first | then == pytest.approx(whole, abs=2e-3)
    assert min(whole.values()) < whole[1] - 1  # a batch of unusual text can have any loss
