"""Console blocks of a page, run in this process, which is faster, or as a user runs them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenloom.cli.main import main

#: What differs from run to run: times, and names and sizes of versions, which follow from rules that may change.
_VARIES = re.compile(
    r"\b(?:\d+ min )?[\d.]+ s\b|\b[0-9a-f]{16}(?:[0-9a-f]{16})?\b"
    r"|\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?|[\d,.]+ (?:bytes|[kM]B)\b"
)


def commands(session: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a console block, with the lines that the page shows for it."""
    for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, shown = re.sub(r"\\\n\s*", "", part).partition("\n")
        yield command, shown.splitlines()


def constant(line: str) -> str:
    """Return a line with names for what differs from run to run, and one blank for several."""
    return re.sub(r"(?<=\S) +", " ", _VARIES.sub("VALUE", line)).rstrip()


def run_here(command: str) -> tuple[int, str]:
    """Run a command in this process; return its exit code and what it printed. The shell's print to the terminal."""
    words = shlex.split(command, comments=True)
    if words[0] == "python":
        return 0, _run_script(words[1:])
    if words[0] != "tokenloom":
        return subprocess.run(["bash", "-c", command], check=False).returncode, ""
    printed = io.StringIO()
    if words[1] in ("build", "export"):
        words += ["--workers", "0"]  # in this process: to start others takes longer than the work
    with contextlib.redirect_stdout(printed):
        code = main(words[1:])
    return code, printed.getvalue()


def run_program(command: str) -> tuple[int, str]:
    """Run a command of tokenloom in a process of its own; return its exit code and what it printed."""
    print(f"$ {command}", flush=True)
    arguments = ["-m", *shlex.split(command, comments=True)]
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    return done.returncode, done.stdout


def run_session(session: str, *, compares: bool = True, run: Callable[[str], tuple[int, str]] = run_here) -> None:
    """Run the commands of a block in the current folder; every line that the page shows must be printed.

    `$ echo $?` shows the code of the command before, which must be 0 otherwise. "..." replaces lines left out.

    Args:
        session: the block.
        compares: whether the lines of the page must be printed.
        run: runs a command.
    """
    code = 0
    for command, shown in commands(session):
        if command == "echo $?":
            assert [str(code)] == shown, command
            code = 0
            continue
        assert code == 0, f"the command before {command!r} ended with {code}"
        code, printed = run(command)
        lines = [constant(line) for line in printed.replace(os.getcwd(), "/home/you").splitlines()]
        missing = [line for line in shown if line != "..." and constant(line) not in lines]
        assert not (missing and compares), f"{command}: the page shows {missing}, the command printed {lines}"
    assert code == 0, f"the last command ended with {code}"


def _run_script(arguments: list[str]) -> str:
    """Run a script of Python in this process; return what it printed."""
    printed = io.StringIO()
    given, sys.argv = sys.argv, arguments
    try:
        with contextlib.redirect_stdout(printed):
            if arguments[0] == "-m":
                runpy.run_module(arguments[1], run_name="__main__")
            else:
                runpy.run_path(arguments[0], run_name="__main__")
    finally:
        sys.argv = given
    return printed.getvalue()


def write_specs(blocks: Iterator[tuple[str, str]]) -> None:
    """Write each YAML block whose first line is a comment with its file's name to that file in the current folder."""
    for language, text in blocks:
        if language == "yaml" and text.startswith("# "):
            Path(text.split("\n", 1)[0][2:]).write_text(text, encoding="utf-8")
