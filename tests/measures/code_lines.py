"""Code lines of the program by room: without blank lines, docstrings, comments, imports and examples.

From the project's root: python -m tests.measures.code_lines
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

__all__ = ["code_lines", "lines_by_room", "program_files"]

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_ROOMS = ("flows", "tasks", "storage", "tokenloom")


def code_lines(text: str) -> int:
    """Return the number of lines of a module that have code."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            left_out |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in left_out for number, line in lines)


def program_files(root: Path) -> Iterator[Path]:
    """Yield the program's modules below the project's root, each once: folders that are links lie elsewhere."""
    for room in _ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            if not any((root / parent).is_symlink() for parent in path.relative_to(root).parents):
                yield path


def lines_by_room(root: Path) -> Counter[str]:
    """Return {room: code lines}; the rooms of tokenloom/ are its folders."""
    found: Counter[str] = Counter()
    for path in program_files(root):
        parts = path.relative_to(root).parts
        room = "/".join(parts[:2]) if parts[0] == "tokenloom" and len(parts) > 2 else parts[0]
        found[room] += code_lines(path.read_text())
    return found


if __name__ == "__main__":
    rooms = lines_by_room(Path(__file__).parents[2])
    for name, count in [*rooms.most_common(), ("the whole", rooms.total())]:
        print(f"{count:7,}  {name}")
