"""A newcomer's walk: pages from top to bottom, as somebody who follows them would run their blocks.

    python -m tests.docs.walk FOLDER PAGE...

A block that begins with its name as a comment, `# NAME`, is a file. Other blocks of Python run in one process, with the
names that earlier ones defined. Consoles are commands in FOLDER, and a block of text is what the Python before it
prints. Raises AssertionError where a page shows other output.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.docs.sessions import run_program, run_session

_ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"(?:#!.*\n)?(?:# |{# )([\w-]+\.\w+)(?: #})?\n")


def blocks(page: str, *sections: str) -> Iterator[tuple[str, str]]:
    """Yield (language, text) of the code blocks in the sections of a page; without sections in all of it."""
    text = (_ROOT / page).read_text(encoding="utf-8")
    parts = [text.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0] for section in sections] or [text]
    for part in parts:
        yield from (match.groups() for match in _BLOCK.finditer(part))  # type: ignore[misc]


def files(page: str) -> dict[str, str]:
    """Return the texts of the blocks that are files, by name."""
    return {file[1]: text for _, text in blocks(page) if (file := _FILE.match(text))}


def _has_its_packages(code: str) -> bool:
    """Return whether what a block imports is installed; tests/peers runs those of other trainers."""
    packages = re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)
    return all(importlib.util.find_spec(package) for package in packages)


def run_commands(session: str) -> None:
    """Run the commands of a console block, as a user does: each in a process of its own."""
    run_session(session, run=run_program)


def run_python(code: str, page: str, names: dict[str, Any]) -> str:
    """Run a Python block with the names that earlier blocks defined; return what it printed."""
    print("\n".join(f">>> {line}" for line in code.splitlines()), flush=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, page, "exec"), names)
    print(printed.getvalue(), flush=True)
    return printed.getvalue()


def follow(
    page: str, names: dict[str, Any], *sections: str, run: Callable[[str], None] = run_commands, compares: bool = True
) -> None:
    """Follow a page in the current folder.

    Args:
        page: its path in the repository.
        names: those that earlier blocks defined.
        sections: of the page; none means all of it.
        run: runs a console block and compares what it prints.
        compares: whether what Python prints must be what the page shows.
    """
    printed: str | None = ""
    for language, text in blocks(page, *sections):
        if file := _FILE.match(text):
            Path(file[1]).write_text(text, encoding="utf-8")
        elif language == "console":
            run(text)
        elif language == "python" and not _has_its_packages(text):
            printed = None
        elif language == "python":
            printed = run_python(text, page, names)
        elif language == "text" and not text.startswith("$ ") and printed is not None:
            assert printed == text or not compares, f"{page} shows {text!r}, its code printed {printed!r}"


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    defined: dict[str, Any] = {}
    for each in sys.argv[2:]:
        follow(each, defined, *(("Build and train",) if each == "README.md" else ()))
