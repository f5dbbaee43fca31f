"""examples/train_ddp.py under torchrun: samples depend neither on the number of processes nor on interruptions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


def _run(reference: str, folder: Path, num_processes: int, steps: int) -> dict[int, float]:
    """Train up to a step, with torchrun or in one process with torchrun's variables; return {step: loss}."""
    command = [sys.executable]
    if num_processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    command += [str(_ROOT / "examples" / "train_ddp.py"), reference, "--checkpoints", str(folder), "--lr", "3e-3"]
    command += [
        "--steps",
        str(steps),
        "--seq-len",
        "64",
        "--batch-size",
        "8",
        "--save-every",
        "4",
        "--log-every",
        "1",
    ]
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    environment = {**os.environ, **variables, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"step +(\d+) +loss ([\d.]+) +[\d,]+ tokens/s +waiting [\d.]+%", done.stdout)
    return {int(step): float(loss) for step, loss in found}


def test_two_processes_then_one_train_like_one_uninterrupted_process(corpus: str, tmp_path: Path) -> None:
    first = _run(corpus, tmp_path / "stopped", num_processes=2, steps=9)
    assert sorted(path.name for path in (tmp_path / "stopped").iterdir()) == [f"step-{n:08d}.pt" for n in (4, 8, 9)]
    then = _run(corpus, tmp_path / "stopped", num_processes=1, steps=20)
    whole = _run(corpus, tmp_path / "whole", num_processes=1, steps=20)
    assert list(first) == list(range(1, 10))
    assert list(then) == list(range(10, 21))
    assert first | then == pytest.approx(whole, abs=2e-3)
    assert min(whole.values()) < whole[1] - 1  # a batch of unusual text can have any loss
