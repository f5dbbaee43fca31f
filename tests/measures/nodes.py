"""Syntax nodes of the program by room: expressions and statements, without imports and examples.

Formatting changes no node, so the count says how much a reader takes in, however lines are broken.

From the project's root: python -m tests.measures.nodes
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

__all__ = ["count_nodes", "nodes_by_room", "program_files"]

_ROOMS = ("flows", "tasks", "storage", "tokenloom")


def count_nodes(text: str) -> int:
    """Return the number of syntax nodes of a module: expressions and statements, without imports.

    A docstring counts as one node.
    """
    count = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt):
            count += not isinstance(node, ast.Import | ast.ImportFrom) and not _is_docstring(node)
        elif isinstance(node, ast.expr):
            count += 1
    return count


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def program_files(root: Path) -> Iterator[Path]:
    """Yield the program's modules below the project's root; a module below a folder link is yielded once."""
    for room in _ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            if not any((root / parent).is_symlink() for parent in path.relative_to(root).parents):
                yield path


def nodes_by_room(root: Path) -> Counter[str]:
    """Return {room: syntax nodes}; the rooms of tokenloom/ are its folders."""
    nodes: Counter[str] = Counter()
    for path in program_files(root):
        parts = path.relative_to(root).parts
        room = "/".join(parts[:2]) if parts[0] == "tokenloom" and len(parts) > 2 else parts[0]
        nodes[room] += count_nodes(path.read_text())
    return nodes


if __name__ == "__main__":
    rooms = nodes_by_room(Path(__file__).parents[2])
    for name, count in [*rooms.most_common(), ("the whole", rooms.total())]:
        print(f"{count:9,}  {name}")
