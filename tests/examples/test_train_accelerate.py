"""examples/train_accelerate.py with the real Accelerate: a restored run continues, on one process or two."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.counts import FULL
from tokenloom import TokenDataset, TokenLoader
from tokenloom.examples.data_options import DataOptions

SHORT = DataOptions(seq_len=128, evaluation_batches=2)
_ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning:accelerate")]


@pytest.fixture(autouse=True)
def _fresh_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from accelerate.state import AcceleratorState, GradientState

    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def test_a_restored_run_continues_with_the_next_batch(example: ModuleType, corpus: str, tmp_path: Path) -> None:
    whole = example.train(corpus, tmp_path / "whole", steps=12, options=SHORT)
    first = example.train(corpus, tmp_path / "stopped", steps=5, options=SHORT)
    then = example.train(corpus, tmp_path / "stopped", steps=12, resume=True, options=SHORT)
    assert (len(first), len(then)) == (5, 7)
    assert first + then == pytest.approx(whole, abs=1e-6)
    assert whole[-1] < whole[0] - 0.5


def test_prepare_returns_the_loader_unchanged(example: ModuleType, corpus: str) -> None:
    from accelerate import Accelerator

    loader = TokenLoader(TokenDataset(corpus, seq_len=128), 8)
    assert Accelerator().prepare(loader) is loader


@pytest.mark.skipif(not FULL, reason="takes half a minute: set TOKENLOOM_FULL=1")
def test_two_processes_each_take_their_half_and_continue(example: ModuleType, corpus: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(_ROOT / "examples" / "train_accelerate.py"), corpus, "--checkpoint", str(tmp_path / "two")]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    printed = ""
    for options in (["--steps", "3"], ["--steps", "5", "--resume"]):
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    assert re.findall(r"step +(\d+)", printed) == ["3", "5"]
    (path,) = (tmp_path / "two").glob("custom_checkpoint_*.pkl")
    assert torch.load(path, weights_only=True)["samples"] == 5 * 2 * 8
