"""The code of each guide runs from that page alone, in an empty folder, and prints what the page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.walk import blocks

_ROOT = Path(__file__).parents[2]
_OTHERS = {"extending"}  # its blocks are files of the package: tests/docs/test_extending_page.py
_PATHS = sorted([*_ROOT.glob("docs/guides/*.md"), _ROOT / "docs/index.md", _ROOT / "docs/start/resuming.md"])
_ALL = [path.relative_to(_ROOT).as_posix() for path in _PATHS if path.stem not in _OTHERS]
_PAGES = [page for page in _ALL if {"python", "console"}.intersection(language for language, _ in blocks(page))]
_WALK = """
import sys
from tests.docs.sessions import run_session
from tests.docs.walk import follow

follow(sys.argv[1], {}, run=run_session)
"""


@pytest.mark.slow
@pytest.mark.parametrize("page", _PAGES, ids=lambda page: Path(page).stem)
def test_the_code_of_a_guide_runs_from_that_page_alone(page: str, tmp_path: Path, tiktoken_cache: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "you").mkdir()
    changes = {"PYTHONPATH": str(_ROOT), "TOKENLOOM_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    changes |= {"TOKENLOOM_UP_HOME": str(tmp_path), "HOME": str(tmp_path), "LOGNAME": "ada", "PYTHONHASHSEED": "0"}
    changes |= {"TIKTOKEN_CACHE_DIR": str(tiktoken_cache)}
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"} | changes
    command = [sys.executable, "-c", _WALK, page]
    done = subprocess.run(
        command, cwd=tmp_path / "you", env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
