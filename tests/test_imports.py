"""The contracts on imports in pyproject.toml hold, and they see through the links in tokenloom/."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent
_LINT = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
# In each folder an import that points back up, and how it is reported.
_PLANTED = {
    "flows/blocks.py": ("tokenloom.cli.output", "tokenloom.flows.blocks -> tokenloom.cli.output"),
    "tasks/planning/plan.py": ("tokenloom.flows.direct", "tokenloom.tasks.planning.plan -> tokenloom.flows.direct"),
    "storage/formats/shard.py": (
        "tokenloom.tasks.planning.plan",
        "tokenloom.storage.formats.shard -> tokenloom.tasks.planning.plan",
    ),
    "tokenloom/reader/dataset.py": ("prefect", "tokenloom.reader.dataset -> prefect"),
}


def _report(folder: Path) -> str:
    done = subprocess.run(_LINT, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of all that is imported as tokenloom, with its links."""
    for name in ("tokenloom", "flows", "tasks", "storage", "examples"):
        shutil.copytree(_ROOT / name, tmp_path / name, symlinks=True)
    shutil.copy(_ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_is_kept() -> None:
    assert ", 0 broken" in (report := _report(_ROOT)), report


def test_an_import_that_points_back_up_is_refused_in_every_folder(house: Path) -> None:
    for path, (imported, _) in _PLANTED.items():
        with (house / path).open("a") as file:
            file.write(f"\n\ndef lazily() -> None:\n    import {imported}\n")
    report = _report(house)
    for _, line in _PLANTED.values():
        assert line in report


def test_a_circle_of_imports_is_refused(house: Path) -> None:
    with (house / "storage/formats/names.py").open("a") as file:
        file.write("\nimport tokenloom.storage.formats.manifest\n")
    assert "No cycles are allowed in tokenloom.storage.formats" in _report(house)
