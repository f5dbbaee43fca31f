"""What the shards of conversations say is learned is what was rendered, however the build ran or was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.builders.datasets import build
from tests.builders.learned_texts import MadeConversations, digest, learned_in_shards
from tests.counts import SUMMARY, count, full_only
from tests.drivers.kill_driver import find_incomplete
from tokenloom.spec.build_spec import BuildSpec

_ROOT = Path(__file__).parents[2]
_KILLED_AT = ("tokenize", "tokenize", "assign", "shuffle", "shuffle", "validate", "publish")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeConversations:
    """Conversations, the same in every build."""
    return MadeConversations(tmp_path_factory.mktemp("made"), count(300, 15_000))


def _elsewhere(made: MadeConversations, folder: Path) -> BuildSpec:
    return made.spec.model_copy(update={"store": str(folder / "store")})


def _compare(made: MadeConversations, spec: BuildSpec, version: str, how: str) -> None:
    """Compare what the shards say with what was rendered."""
    found = learned_in_shards(spec, version, made.tokens)
    assert len(found) == len(made.lines)
    assert sum(len(learned) for _, learned in found) > 0
    assert digest(found) == digest(made.learned(spec, version))
    SUMMARY.append(f"learned text of {len(found)} conversations, {how}: SHA-256 {digest(found)}")


@pytest.mark.timeout(1800)  # full counts, on a busy machine
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=full_only), pytest.param(2, marks=full_only)])
def test_shards_say_what_was_rendered(made: MadeConversations, num_workers: int, tmp_path: Path) -> None:
    spec = _elsewhere(made, tmp_path)
    _compare(made, spec, build(spec, num_workers).version, f"{num_workers} worker processes")


def _start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.drivers.kill_driver", "run", str(folder)]
    return subprocess.Popen(command, cwd=_ROOT, start_new_session=True)


@pytest.mark.timeout(1800)
@full_only  # in the reduced run, test_kills.py kills builds of conversations and compares their bytes
def test_shards_say_what_was_rendered_after_kills(made: MadeConversations, tmp_path: Path) -> None:
    spec = _elsewhere(made, tmp_path)
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    steps = tmp_path / "steps"
    num_killed = 0
    for step in _KILLED_AT:
        steps.unlink(missing_ok=True)
        process = _start(tmp_path)
        while process.poll() is None and not (steps.exists() and f" {step}\n" in steps.read_text()):
            time.sleep(0.002)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        num_killed += process.wait() == -signal.SIGKILL
        assert find_incomplete(Path(spec.store) / spec.dataset) is None
    process = _start(tmp_path)
    assert process.wait(timeout=300) == 0
    assert num_killed > 0
    _compare(made, spec, (tmp_path / "version").read_text(), f"{num_killed} kills")
