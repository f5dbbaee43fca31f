"""Run the lessons of examples/lessons in full, and write their pages with code, output and charts.

    python scripts/lessons.py [NAME ...]

Each lesson runs in a process and a temporary folder of its own. Its page NAME.md and its charts in docs/lessons are
replaced when it has run to its end. The last line of a page says where and when it ran.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LESSONS, PAGES = ROOT / "examples" / "lessons", ROOT / "docs" / "lessons"
_VERSIONS = ("tokenloom", "numpy", "pyarrow", "torch")


@dataclass(frozen=True)
class Cell:
    """A cell of a lesson: prose, or code that begins at a line (from 0) of the script."""

    is_prose: bool
    text: str
    first_line: int

    def markdown(self) -> str:
        """Return what the page shows of it."""
        if self.is_prose:
            return self.text.replace("](../../docs/", "](../")
        return f"```python\n{self.text}\n```"


def names() -> list[str]:
    """Return the names of the lessons."""
    return sorted(path.stem for path in LESSONS.glob("*.py") if path.stem != "__init__")


def cells(script: str) -> Iterator[Cell]:
    """Yield the cells of a script in the percent format; what precedes the first is its docstring."""
    parts = re.split(r"^# %%(.*)\n", script, flags=re.MULTILINE)
    first_line = parts[0].count("\n")
    for kind, text in zip(parts[1::2], parts[2::2], strict=True):
        is_prose = "[markdown]" in kind
        shown = re.sub(r"^# ?", "", text, flags=re.MULTILINE) if is_prose else text
        yield Cell(is_prose, shown.strip(), first_line + 1)
        first_line += 1 + text.count("\n")


def run_lesson(path: Path, folder: Path) -> str:
    """Run the lesson `path` in `folder`; return its page. Charts are in `folder`/lesson-NAME."""
    scope: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    page = [f"<!-- Written by scripts/lessons.py from examples/lessons/{path.name}: change that, and run it again. -->"]
    with contextlib.chdir(folder):
        for cell in cells(path.read_text(encoding="utf-8")):
            page.append(cell.markdown())
            if not cell.is_prose:
                code = compile("\n" * cell.first_line + cell.text, str(path), "exec", dont_inherit=True)
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    exec(code, scope)
                page += _shown(printed.getvalue().replace(str(folder.resolve()), "/home/you"))
    return "\n\n".join(page) + "\n"


def _shown(printed: str) -> Iterator[str]:
    """Yield the parts of an output: tables and charts as they are, other lines as a block of text."""
    lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
    for markdown, part in groupby(lines, lambda line: line[:1] if line.startswith(("|", "![")) else ""):
        text = "\n".join(part).strip("\n")
        if text:
            yield text if markdown else f"```text\n{text}\n```"


def _machine() -> str:
    """Return the line that says where and when this process ran a lesson."""
    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    machine = f"{models[0] if models else platform.machine()}, {len(os.sched_getaffinity(0))} cores, {gigabytes:.0f} GB"
    libraries = ", ".join(f"{library} {version(library)}" for library in _VERSIONS)
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{machine}; Linux {kernel}, Python {platform.python_version()}, {libraries}"


def write_page(name: str) -> None:
    """Run a lesson in full, and replace its page and charts."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="lesson-") as place:
        os.environ["TOKENLOOM_CACHE"] = f"{place}/.cache/tokenloom"  # as on a machine that has built nothing yet
        page = run_lesson(LESSONS / f"{name}.py", Path(place))
        spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu_seconds = sum(usage.ru_utime + usage.ru_stime for usage in spent)
        seconds = f"{time.perf_counter() - start:.0f} s, {cpu_seconds:.0f} s of processor time"
        for old in PAGES.glob(f"{name}-*.svg"):
            old.unlink()
        for chart in Path(place, f"lesson-{name}").glob("*.svg"):
            shutil.copy(chart, PAGES)
    page += f"\nMeasured on {datetime.now(UTC):%Y-%m-%d} in {seconds}, on: {_machine()}.\n"
    (PAGES / f"{name}.md").write_text(page, encoding="utf-8")
    print(f"{name}: {seconds}")


def main() -> None:
    """Run the lessons that the command line names, or all."""
    parser = argparse.ArgumentParser(description="Run lessons in full and write their pages.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(names())}")
    chosen = parser.parse_args().names or names()
    if unknown := set(chosen) - set(names()):
        parser.error(f"no such lesson: {', '.join(sorted(unknown))}")
    if len(chosen) == 1:
        write_page(chosen[0])
        return
    for name in chosen:
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
