"""README.md and the pages on training can be followed from top to bottom, on real text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.counts import full_only

_ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.usefixtures("tiktoken_cache")
@pytest.mark.parametrize("pages", ["README", pytest.param("README and training", marks=full_only)])
def test_pages_run_from_top_to_bottom_in_one_process(pages: str, tmp_path: Path, data_dir: Path) -> None:
    """The pages on training alone, with small data, are tested in tests/docs/test_training_page.py."""
    (tmp_path / "data").symlink_to(data_dir / "ag_news")
    environment = os.environ | {"PYTHONPATH": str(_ROOT), "HOME": str(tmp_path), "TOKENLOOM_UP_HOME": str(tmp_path)}
    environment.pop("PREFECT_API_URL", None)
    command = [
        sys.executable,
        "-m",
        "tests.docs.walk",
        str(tmp_path),
        *(["--readme-only"] if pages == "README" else []),
    ]
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
