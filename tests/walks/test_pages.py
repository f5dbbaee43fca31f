"""README.md and docs/training.md can be followed from top to bottom, on real text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.usefixtures("tiktoken_cache")
def test_readme_and_the_training_page_run_from_top_to_bottom_in_one_process(tmp_path: Path, data_dir: Path) -> None:
    (tmp_path / "data").symlink_to(data_dir / "ag_news")
    environment = os.environ | {"PYTHONPATH": str(_ROOT), "HOME": str(tmp_path), "TOKENLOOM_UP_HOME": str(tmp_path)}
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "tests.walks.pages", str(tmp_path)]
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
