"""docs/extending.md is correct: the kinds that it adds pass the conformance tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tokenloom.spec import sources as spec_sources
from tokenloom.spec.base import SpecModel

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SOURCE_TEST = """
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from tests.tasks.source_conformance import Row, SourceConformance
"""
TOKENIZER_TEST = """
from pathlib import Path
from typing import Any

import pytest

from tests.tokenloom.tokenizer_conformance import TokenizerConformance
"""
REGISTER = """
import sys
sys.path.insert(0, {folder!r})
from tokenloom import tokenizers
from tokenloom.tasks import sources
sources._MODULES["sqlite"] = "sqlite_rows"
tokenizers._MODULES["character"] = "character"
"""


def block(beginning: str) -> str:
    """Return the code block of the page with this beginning."""
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return next(code for code in blocks if code.startswith(beginning))


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder with the two files of the page."""
    (tmp_path / "sqlite_rows.py").write_text(block('"""SQLite'))
    (tmp_path / "character.py").write_text(block('"""Unicode'))
    return tmp_path


@pytest.mark.slow
def test_the_kinds_of_the_page_pass_the_tests_of_every_kind(modules: Path) -> None:
    register = REGISTER.format(folder=str(modules))
    (modules / "test_source.py").write_text(register + SOURCE_TEST + block("class TestSqlite"))
    (modules / "test_tokenizer.py").write_text(register + TOKENIZER_TEST + block("class TestCharacter"))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            str(ROOT / "pyproject.toml"),
            str(modules),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) > 30


def test_the_model_of_the_page_takes_its_options() -> None:
    namespace: dict[str, Any] = dict(vars(spec_sources))
    exec(block("class SqliteSource"), namespace)
    model: type[SpecModel] = namespace["SqliteSource"]
    given = model.model_validate({"kind": "sqlite", "path": "a.db"})
    assert given.model_dump()["table"] == "documents"
    assert given.identity() == {"kind": "sqlite", "table": "documents", "text": "text"}
