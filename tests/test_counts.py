"""A run of tests counts those that skip for lack of data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_VARIABLES = ("TOKENLOOM_TEST_DATA", "TIKTOKEN_CACHE_DIR", "TOKENLOOM_CHAT_TEMPLATES")


def _run(most: int, *processes: str) -> tuple[int, str]:
    """Run four tests that need real data without any; return the exit code and the output."""
    environment = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    test = "tests/chat/test_layouts.py::test_every_row_of_real_data_becomes_a_conversation"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *processes]
    command += [f"--max-data-skips={most}", test]
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "in processes"])
def test_a_run_in_which_too_many_tests_skip_for_lack_of_data_fails(processes: tuple[str, ...]) -> None:
    code, output = _run(3, *processes)
    assert code == 1, output
    assert "skipped for lack of data: 4 tests, of at most 3" in output
    code, output = _run(4, *processes)
    assert code == 0, output
    assert "needs data: TOKENLOOM_TEST_DATA names no folder" in output
