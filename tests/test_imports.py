"""The contracts on imports in pyproject.toml, which ./check checks, see each folder; and the reader stays small."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent
_LINT = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
# In each folder an import that points back up, and how it is reported.
_PLANTED = {
    "flows/blocks.py": ("tokenloom.cli.output", "tokenloom.flows.blocks -> tokenloom.cli.output"),
    "tasks/building/plan.py": ("tokenloom.flows.direct", "tokenloom.tasks.building.plan -> tokenloom.flows.direct"),
    "storage/formats/shard.py": (
        "tokenloom.tasks.building.plan",
        "tokenloom.storage.formats.shard -> tokenloom.tasks.building.plan",
    ),
    "tokenloom/reader/dataset.py": ("prefect", "tokenloom.reader.dataset -> prefect"),
}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of all that is imported as tokenloom, with its links."""
    for name in ("tokenloom", "flows", "tasks", "storage", "examples"):
        shutil.copytree(_ROOT / name, tmp_path / name, symlinks=True)
    shutil.copy(_ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_an_import_that_points_back_up_is_refused_in_every_folder(house: Path) -> None:
    for path, (imported, _) in _PLANTED.items():
        with (house / path).open("a") as file:
            file.write(f"\n\ndef lazily() -> None:\n    import {imported}\n")
    done = subprocess.run(_LINT, cwd=house, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    for _, line in _PLANTED.values():
        assert line in done.stdout


# ---- what someone who changes the loader may have to read


def _imports(node: ast.AST) -> Iterator[str]:
    """Yield what a module imports, in functions too, but not for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom) and child.module:
            yield from (child.module, *(f"{child.module}.{alias.name}" for alias in child.names))
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        yield from _imports(child)


def _reached(module: str) -> dict[str, int]:
    """Return the modules of tokenloom that a module needs, itself included, and the lines of each."""
    lines: dict[str, int] = {}
    pending = [module]
    while pending:
        name = pending.pop()
        path = _ROOT.joinpath(*name.split("."))
        file = next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
        if name not in lines and name.partition(".")[0] == "tokenloom" and file:
            source = file.read_text(encoding="utf-8")
            lines[name] = source.count("\n")
            pending += [name.rpartition(".")[0], *_imports(ast.parse(source))]
    return lines


def test_a_loader_reaches_a_limited_number_of_modules_and_lines() -> None:
    """A limit is raised in the commit that says why."""
    reached = _reached("tokenloom.reader.loader")
    assert {"tokenloom.storage.cache.shard_cache", "tokenloom.reader.trace"} <= set(reached)  # lazily
    assert len(reached) <= 61
    assert sum(reached.values()) <= 11_700
