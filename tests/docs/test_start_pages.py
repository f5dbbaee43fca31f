"""README.md and the pages in docs/start can be followed from top to bottom, and show what is printed."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.datasets import make_spec
from tests.docs.sessions import run_session
from tests.docs.walk import follow

_ROOT = Path(__file__).parents[2]
_SHOWN_BY = (3, 11, 7)  # whose texts of help the pages build from


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread: more are slower where other tests run beside this one."""
    torch = pytest.importorskip("torch")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.slow
@pytest.mark.usefixtures("tiktoken_cache", "one_thread")
def test_the_pages_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    names: dict[str, Any] = {}
    for page in ("first-dataset", "first-training"):
        compares = sys.version_info[:3] == _SHOWN_BY
        run = partial(run_session, compares=compares)
        follow(f"docs/start/{page}.md", names, run=run, compares=compares)


@pytest.mark.slow
@pytest.mark.usefixtures("tiktoken_cache", "one_thread")
def test_the_readme_can_be_followed(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").symlink_to(data_dir / "ag_news")
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "TOKENLOOM_UP_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    follow("README.md", {}, "Build and train")


def test_the_sources_of_the_table_are_valid() -> None:
    page = (_ROOT / "docs/start/first-dataset.md").read_text(encoding="utf-8")
    sources = [yaml.safe_load(source.replace("\\|", "|")) for source in re.findall(r"`({kind: [^`]+})`", page)]
    spec = make_spec("store", sources, tokenizer="gpt2")
    assert [source.kind for source in spec.sources] == [source["kind"] for source in sources]
    assert len(sources) == 7


def test_the_page_on_installing_has_every_extra_and_every_python() -> None:
    page = (_ROOT / "docs/start/install.md").read_text(encoding="utf-8")
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = page.partition("## What goes where\n")[2].partition("\n**torch**")[0]
    assert set(re.findall(r"`[\w]*\[([\w]+)\]`", table)) == set(project["optional-dependencies"])
    assert f"tokenloom-{project['version']}-py3-none-any.whl" in page
    assert project["requires-python"] == ">=3.11" and "3.11, 3.12 or 3.13" in page
