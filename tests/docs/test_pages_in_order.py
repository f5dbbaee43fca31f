"""README.md and the pages on training can be followed from top to bottom, on real text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.counts import full_only
from tests.docs.walk import TRAINING_PAGES, follow

_ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the parquet files of the pages, which is the current one."""
    (tmp_path / "data").symlink_to(data_dir / "ag_news")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TOKENLOOM_UP_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("tiktoken_cache", "folder")
def test_the_readme_can_be_followed() -> None:
    pytest.importorskip("torch")
    follow("README.md", {}, "Build and train")


@full_only
@pytest.mark.usefixtures("tiktoken_cache")
def test_the_pages_on_training_run_in_one_process(folder: Path) -> None:
    """tests/docs/test_training_page.py runs them with small data."""
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    command = [sys.executable, "-m", "tests.docs.walk", str(folder), *TRAINING_PAGES]
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
