"""Progress as people see it: a real process on a terminal, and in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builders.datasets import write_jsonl
from tokenloom.cli.display import showing_progress
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.progress import Message, Reused, StepStarted

_ROOT = Path(__file__).parent.parent.parent
_STEPS = ["plan", "read file structure", "tokenize", "divide into shards", "shuffle", "check", "validate", "publish"]
_SPEC = """\
dataset: news
store: ./store
sources:
  - {kind: jsonl, path: input/a.jsonl, text: text, name: lines}
tokenizer: {kind: byte}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "input" / "a.jsonl", [f"line number {i}" for i in range(200)])
    (tmp_path / "spec.yaml").write_text(_SPEC)
    return tmp_path


def _on_terminal(folder: Path, *arguments: str, **extra: str) -> tuple[int, str]:
    """Run a command whose stdout and stderr are a terminal; return its exit code and everything it wrote there."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    environment = kept | {"PYTHONPATH": str(_ROOT), "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"} | extra
    command = [sys.executable, "-m", "tokenloom", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while True:
        try:
            written += (data := os.read(ours, 65536))
        except OSError:  # on Linux, the end of a terminal whose processes have closed it
            break
        if not data:
            break
    os.close(ours)
    return process.wait(), written.decode()


def _screen(written: str) -> list[str]:
    """Return the lines that a terminal shows at the end, after it drew and removed rich's bars."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif found := re.fullmatch(r"\x1b\[(\d*)A", part):
            row = max(0, row - int(found[1] or 1))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part.startswith("\x1b["):
            continue  # colours, and whether a cursor is shown
        else:
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines if line.strip()]


def _finished(lines: Sequence[str], mark: str = "✓") -> list[str]:
    return [line[2:22].strip() for line in lines if re.match(rf"{mark} .{{20}} +\d+:\d\d", line)]


def test_a_terminal_shows_each_finished_step_with_its_time_and_no_bar_is_left(project: Path) -> None:
    code, written = _on_terminal(project, "build", "spec.yaml", "--direct", "--workers", "1")
    assert code == 0, written
    screen = _screen(written)
    assert _finished(screen) == _STEPS
    assert "\x1b[32m✓" in written, "in colour"
    assert "━" in written, "a bar was shown during the run"
    assert not [line for line in screen if "━" in line], "no bar is left"
    assert screen[len(_STEPS)].startswith("published ")
    again = _screen(_on_terminal(project, "build", "spec.yaml", "--direct")[1])
    assert _finished(again) == ["plan"] and again[1].startswith("up to date")


def test_the_step_that_failed_is_marked(project: Path) -> None:
    (project / "input" / "a.jsonl").write_text('{"text": 3}\n')
    code, written = _on_terminal(project, "build", "spec.yaml", "--direct", "--workers", "0")
    assert code == 1
    screen = _screen(written)
    assert _finished(screen, "✗") == ["tokenize"]
    assert "tokenloom: " in "".join(screen[-2:]) and "a.jsonl" in "".join(screen[-2:])


def test_stdout_in_a_file_is_not_redirected_while_bars_are_on_a_terminal(tmp_path: Path) -> None:
    program = "from tokenloom.cli.display import showing_progress\nwith showing_progress(): print('a line')"
    ours, theirs = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(_ROOT), "TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True, check=True
    )
    os.close(theirs)
    os.close(ours)
    assert done.stdout == "a line\n"


def _on_fake_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def test_a_bar_shows_how_much_of_a_step_is_done_and_a_message_appears_above_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _on_fake_terminal(monkeypatch)
    with showing_progress():
        progress.report(StepStarted("tokenize", 2700, "partitions", 27))
        progress.report(Reused(12, 1350))
        time.sleep(0.3)  # rich draws ten times a second
        progress.report(Message("s3://b/a: [retried] in 1 s"))
    written = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert re.search(r"  tokenize +[━╸╺]+ +50% 12 of 27 partitions reused, 0:00 elapsed", written)
    assert "s3://b/a: [retried] in 1 s" in written


def test_a_line_after_a_long_step_names_that_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with showing_progress():
        progress.report(StepStarted("cut", 0))
        now[0] += 23
        progress.report(StepStarted("tokenize", 0))
    assert capsys.readouterr().err == "read file structure, 0:23 elapsed\n"


def test_a_message_can_not_act_on_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\x1b]0;owned\x07 a.jsonl\nforged \u202e"
    for _ in range(2):
        with showing_progress():
            progress.report(Message(text))
        _on_fake_terminal(monkeypatch)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert shown.count("owned") == 2
    assert re.sub("[\n\r]", "", shown).isprintable()
    assert not [line for line in shown.splitlines() if line.startswith("forged")]
