"""A newcomer's walk: README.md's sections Build and Train, then the pages on training, from top to bottom.

    python -m tests.docs.walk FOLDER [--readme-only]

Commands run in FOLDER as a shell would run them; all Python blocks of the pages run in this one process, one after the
other. FOLDER/data holds the Parquet files of the pages. Raises AssertionError where a page shows other output.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_GUIDES = "training", "resuming", "packing", "targets", "mixtures", "frameworks"
#: The pages on training, in the order in which their code runs.
TRAINING_PAGES = [f"docs/guides/{name}.md" for name in _GUIDES]
_TIME = re.compile(r"\b[\d.]+ s\b|\b\d+ min \d+ s\b")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: str, *sections: str) -> Iterator[tuple[str, str]]:
    """Yield (language, text) of the code blocks in the sections of a page; without sections in all of it."""
    text = (_ROOT / page).read_text(encoding="utf-8")
    parts = [text.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0] for section in sections] or [text]
    for part in parts:
        yield from (match.groups() for match in _BLOCK.finditer(part))  # type: ignore[misc]


def run_commands(session: str) -> None:
    """Run the commands of a console block; every line that the page shows must be printed; times may differ."""
    for part in session.split("$ ")[1:]:
        command, *shown = part.splitlines()
        print(f"$ {command}", flush=True)
        arguments = shlex.split(command, comments=True)
        assert arguments[0] == "tokenloom", command
        arguments = [sys.executable, "-m", "tokenloom", *arguments[1:]]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        printed = done.stdout.replace(os.getcwd(), "/home/you").splitlines()
        without_times = [_TIME.sub("TIME", line) for line in printed]
        missing = [line for line in shown if _TIME.sub("TIME", line) not in without_times]
        assert not missing, f"{command}: the page shows {missing}, the command printed {printed}"


def run_python(code: str, page: str, names: dict[str, Any]) -> str:
    """Run a Python block with the names that earlier blocks defined; return what it printed."""
    print("\n".join(f">>> {line}" for line in code.splitlines()), flush=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, page, "exec"), names)
    print(printed.getvalue(), flush=True)
    return printed.getvalue()


def walk(folder: Path, *, readme_only: bool) -> None:
    """Follow the pages in `folder`."""
    os.chdir(folder)
    names: dict[str, Any] = {}
    printed = ""
    for language, text in blocks("README.md", "Build", "Train"):
        if language == "yaml":
            Path("news.yaml").write_text(text, encoding="utf-8")
        elif language == "console":
            run_commands(text)
        elif language == "python":
            printed = run_python(text, "README.md", names)
        elif language == "text":
            assert printed == text, f"README.md shows {text!r}, its code printed {printed!r}"
    for page in () if readme_only else TRAINING_PAGES:
        for language, text in blocks(page):
            if language == "console":
                run_commands(text)
            elif language == "python":
                run_python(text, page, names)


if __name__ == "__main__":
    walk(Path(sys.argv[1]), readme_only="--readme-only" in sys.argv[2:])
