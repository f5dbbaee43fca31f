"""The pages on extending are correct: the kinds that they add pass the conformance tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.without_torch import needs_torch
from tokenloom.spec import sources as spec_sources
from tokenloom.spec.base import SpecModel

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "docs/guides/extending.md").read_text(encoding="utf-8")
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
PACKING_TEST = """
import sys
sys.path.insert(0, {folder!r})
from pathlib import Path

from beginnings import Beginnings
from tokenloom.storage.packing import packings

packings.PACKINGS["beginnings"] = Beginnings()

from tests.reader.oracle import FIELDS, Oracle, make_store
from tests.storage import test_packing
from tests.storage.test_packing import *
from tokenloom.reader.dataset import TokenDataset


def test_a_reader_reads_the_samples_of_the_definition(tmp_path: Path) -> None:
    reference = make_store(tmp_path, [300, 200])
    oracle = Oracle(reference, 8, "beginnings", fields=FIELDS[1:])
    data = TokenDataset(reference, seq_len=8, packing="beginnings", fields=FIELDS[1:])
    assert len(data) == len(oracle) > 10
    for index, sample in enumerate(data):
        assert {{name: values.tolist() for name, values in sample.items()}} == oracle.sample(index)


"""
REGISTER = """
import sys
sys.path.insert(0, {folder!r})
import tokenloom.tasks.sources, tokenloom.tokenizers
tokenloom.tasks.sources.__path__.append({folder!r})  # as if the files were there
tokenloom.tokenizers.__path__.append({folder!r})
"""


def block(beginning: str) -> str:
    """Return the code block of the pages with this beginning."""
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", PAGES, re.DOTALL | re.MULTILINE)
    return next(code for code in blocks if code.startswith(beginning))


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder with the files of the pages."""
    for name in ("sqlite_rows", "character", "beginnings"):
        shutil.copy(ROOT / f"tests/docs/extending/{name}.py", tmp_path / f"{name.removesuffix('_rows')}.py")
    return tmp_path


@pytest.mark.slow
@needs_torch
def test_what_the_page_adds_passes_the_tests_of_every_kind(modules: Path) -> None:
    register = REGISTER.format(folder=str(modules))
    (modules / "test_source.py").write_text(register + SOURCE_TEST + block("class TestSqlite"))
    (modules / "test_tokenizer.py").write_text(register + TOKENIZER_TEST + block("class TestCharacter"))
    definition = block("def beginnings") + '\n\ntest_packing.DEFINITIONS["beginnings"] = beginnings\n'
    (modules / "test_packing_of_page.py").write_text(PACKING_TEST.format(folder=str(modules)) + definition)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*command, str(modules), "-k", "TestSqlite or TestCharacter or beginnings or reader or spec"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= 20


def test_the_model_of_the_page_takes_its_options() -> None:
    namespace: dict[str, Any] = dict(vars(spec_sources))
    exec(block("class SqliteSource"), namespace)
    model: type[SpecModel] = namespace["SqliteSource"]
    given = model.model_validate({"kind": "sqlite", "path": "a.db"})
    assert given.model_dump()["table"] == "documents"
    assert given.identity() == {"kind": "sqlite", "table": "documents", "text": "text"}
