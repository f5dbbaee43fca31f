"""README.md can be followed from top to bottom, on real text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.walk import follow


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
