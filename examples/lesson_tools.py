"""What the lessons share: their size and folder, commands as one types them, charts and tables.

    from tokenloom.examples import lesson_tools as lesson

scripts/lessons.py turns what a lesson prints into its page: lines that begin with "| " or "![" are Markdown there, all
others are shown as text.
"""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")

#: Colours that differ in brightness too, for the lines of a chart.
BLUE, ORANGE, GREEN, GREY = "#0969da", "#bc4c00", "#1a7f37", "#59636e"

_STYLE: Any = {  # matplotlib declares the type of its keys
    "figure.facecolor": "#ffffff",  # a light box: readable on a light page and on a dark one
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": "medium",
    "grid.color": "#d1d9e0",
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tokenloom",  # the same ids in every run
}


def sized(full: T, small: T) -> T:
    """Return `full`, or `small` if TOKENLOOM_LESSON is "small", as in tests."""
    return small if os.environ.get("TOKENLOOM_LESSON") == "small" else full


def begin(name: str) -> None:
    """Make the folder lesson-NAME in the current folder and work in it, also if the cell runs again.

    Raises SystemExit if torch or matplotlib, which tokenloom does not bring, is not installed.
    """
    if missing := [package for package in ("torch", "matplotlib") if find_spec(package) is None]:
        raise SystemExit(f"the lessons need torch and matplotlib: pip install {' '.join(missing)}")
    if Path.cwd().name != f"lesson-{name}":
        folder = Path(f"lesson-{name}")
        folder.mkdir(exist_ok=True)
        os.chdir(folder)


@dataclass(frozen=True)
class Finished:
    """A command that has ended: what it printed, and what it used together with its child processes."""

    output: str
    wall_seconds: float
    cpu_seconds: float
    num_processes: int
    peak_bytes: int  # of the largest process; 0 if the system has no /proc


def command(line: str, show: int | None = None) -> Finished:
    """Run a command that begins with `tokenloom` or `python`, and print it with what it prints.

    Args:
        line: the command, as in a terminal.
        show: how many lines of its output to print; None for all.

    Raises RuntimeError with what it wrote to stderr, if it fails.
    """
    program, *arguments = shlex.split(line)
    programs = {"tokenloom": [sys.executable, "-m", "tokenloom"], "python": [sys.executable]}
    finished = run_watched([*programs[program], *arguments])
    lines = finished.output.rstrip().splitlines()
    print(f"$ {line}", *lines[:show], *(["..."] if show is not None and show < len(lines) else []), sep="\n")
    return finished


def chart(x_label: str, y_label: str, title: str = "", columns: int = 1) -> tuple[Figure, Any]:
    """Return a figure and its axes, an array of them if there are several columns."""
    import matplotlib.pyplot as plt

    plt.rcParams.update(_STYLE)
    figure, axes = plt.subplots(1, columns, figsize=(7.5, 3.6), squeeze=False)
    for each in axes[0]:
        each.set_xlabel(x_label)
        each.set_ylabel(y_label)
    axes[0][0].set_title(title, loc="left")
    return figure, axes[0] if columns > 1 else axes[0][0]


def save_chart(figure: Figure, name: str, alt: str) -> None:
    """Write a chart as the SVG file `name`, and print the Markdown that shows it; `alt` says what it shows."""
    figure.savefig(name, metadata={"Date": None, "Creator": None})
    print(f"![{alt}]({name})")


def show_table(*rows: tuple[object, ...], head: tuple[str, ...] = ("what", "measured")) -> None:
    """Print a Markdown table; all columns but the first are aligned to the right."""
    print(f"| {' | '.join(head)} |\n|---|{'---:|' * (len(head) - 1)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")


def run_watched(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Finished:
    """Run a program and watch it and its child processes; raises RuntimeError with its stderr if it fails."""
    peaks: dict[int, int] = {}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(arguments, env=environment, stdout=output, stderr=errors, text=True)
        for look in itertools.count():
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if ended:
                break
            if look % 5 == 0:  # it takes a millisecond, of the processors that the program needs
                peaks.update(_peaks_of_tree(process.pid))
            time.sleep(0.02)
        wall_seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"{shlex.join(arguments)}: exit code {process.returncode}\n{errors.read()}")
        cpu_seconds = usage.ru_utime + usage.ru_stime
        return Finished(output.read(), wall_seconds, cpu_seconds, len(peaks), max(peaks.values(), default=0))


def _peaks_of_tree(root: int) -> dict[int, int]:
    """Return {process id: its largest resident memory so far} of a process and its descendants.

    rusage would give too much: a command inherits the maximum of the process that starts it.
    """
    peaks = {}
    processes = [root]
    for process in processes:  # it grows
        with suppress(OSError):  # a process or one of its threads has just ended, or there is no /proc
            for path in Path(f"/proc/{process}/task").glob("*/children"):  # each thread has its own
                processes += map(int, path.read_text().split())
            for line in Path(f"/proc/{process}/status").read_text().splitlines():
                if line.startswith("VmHWM"):
                    peaks[process] = int(line.split()[1]) * 1024
    return peaks
