"""The site, built once and served, and a browser on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.site.html import Document

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package")
def build(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the site and what its builder complained of."""
    pytest.importorskip("zensical", reason="the site is built by: pip install -e '.[docs]', on Python 3.11.5 or newer")
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "scripts/site.py", "--folder", str(folder)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    return folder / "site", done.stderr


@pytest.fixture(scope="package")
def documents(build: tuple[Path, str]) -> dict[str, Document]:
    """The pages of the site, parsed, by their paths."""
    site, _ = build
    return {path.relative_to(site).as_posix(): Document(path) for path in sorted(site.rglob("*.html"))}
