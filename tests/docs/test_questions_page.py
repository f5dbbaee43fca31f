"""docs/questions.md is correct: its commands and code run on the dataset of README.md, and its figures are measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.sessions import run_session, write_specs
from tests.docs.walk import blocks, follow
from tokenloom.cli.main import main

_ROOT = Path(__file__).parents[2]
_PAGE = "docs/questions.md"
_SUFFIXES = (".tok", ".docs", ".spill")


def test_the_page_runs_from_top_to_bottom(
    tiktoken_cache: Path,
    data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").symlink_to(data_dir / "ag_news")
    write_specs(blocks("README.md"))
    assert main(["build", "news.yaml", "--direct", "--workers", "0"]) == 0
    _check_size(Path("store/news"))
    follow(_PAGE, {}, run=run_session)
    assert not Path("store/news/work").exists()
    _check_that_it_comes_back_without_the_line(capsys)


def _check_that_it_comes_back_without_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Check what the page says of a build without `exclude`: the removed document is in its version."""
    build = ["build", "news.yaml", "--direct", "--workers", "0", "--set", "documents={}"]
    assert main(build) == 0
    assert main(["where", "store/news", "--content", Path("removed.txt").read_text().strip()]) == 0
    assert "@6f6e75a47b3e9a29: found" in capsys.readouterr().out


def _check_size(dataset: Path) -> None:
    """Check that a version has 2 bytes a token and about 60 a document, and the spills as much again."""
    lengths = {suffix: sum(path.stat().st_size for path in dataset.rglob(f"*{suffix}")) for suffix in _SUFFIXES}
    assert lengths[".tok"] + lengths[".docs"] == pytest.approx(2 * 900_355 + 60 * 20_918, rel=0.05)
    assert lengths[".spill"] == pytest.approx(lengths[".tok"] + lengths[".docs"], rel=0.05)
