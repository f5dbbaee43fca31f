"""Lessons run, their pages show the code that runs, and charts and output become the parts of a page."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from scripts import lessons
from tokenloom.cli.main import main
from tokenloom.examples import lesson_tools
from tokenloom.examples.lesson_tools import run_watched

pytest.importorskip("matplotlib", reason="lessons draw charts: pip install matplotlib")
_OUTPUT = re.compile(r"(\s*(```text\n.*?\n```|\|[^\n]*|!\[[^\n]*\]\([\w-]+\.svg\)))*\s*", re.DOTALL)
_LESSON = '''\
"""A lesson."""

# %% [markdown]
# # Title
#
# See [packing](../../docs/guides/packing.md).

# %%
from tokenloom.examples.lesson_tools import begin, chart, command, save_chart, show_table, sized

begin("tiny")
figure, axes = chart("x", "y")
axes.plot([1, 2], label="a line")
save_chart(figure, "tiny-1.svg", "A line")

# %%
print("text")
version = command("python -c 'import os; print(os.getcwd())'")
show_table(("processes", version.num_processes), ("size", sized("full", "small")))
'''
_PAGE = """\
<!-- Written by scripts/lessons.py from NAME: change that, and run it again. -->

# Title

See [packing](../guides/packing.md).

```python
from tokenloom.examples.lesson_tools import begin, chart, command, save_chart, show_table, sized

begin("tiny")
figure, axes = chart("x", "y")
axes.plot([1, 2], label="a line")
save_chart(figure, "tiny-1.svg", "A line")
```

![A line](tiny-1.svg)

```python
print("text")
version = command("python -c 'import os; print(os.getcwd())'")
show_table(("processes", version.num_processes), ("size", sized("full", "small")))
```

```text
text
$ python -c 'import os; print(os.getcwd())'
/home/you/lesson-tiny
```

| what | measured |
|---|---:|
| processes | 1 |
| size | small |
"""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENLOOM_LESSON", "small")
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / ".cache"))
    monkeypatch.setenv("MPLBACKEND", "agg")


def _run_in_this_process(arguments: list[str]) -> lesson_tools.Finished:
    """Run a command of tokenloom in this process, which takes a tenth of the time; start other programs."""
    if arguments[1:3] != ["-m", "tokenloom"]:
        return run_watched(arguments)
    without_workers = ["--workers", "0"] if arguments[3] == "build" else []  # the last option counts
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*arguments[3:], *without_workers]) == 0
    return lesson_tools.Finished(printed.getvalue(), 1.0, 1.0, 1, 1)


def test_a_lesson_becomes_a_page_with_its_code_output_and_charts(tmp_path: Path) -> None:
    path = tmp_path / "tiny.py"
    path.write_text(_LESSON)
    assert lessons.run_lesson(path, tmp_path) == _PAGE.replace("NAME", "examples/lessons/" + path.name)
    svg = (tmp_path / "lesson-tiny" / "tiny-1.svg").read_text()
    assert ">a line<" not in svg  # no legend was asked for
    assert ">x</text>" in svg  # text is text
    assert "<dc:date>" not in svg
    lessons.run_lesson(path, tmp_path)
    assert (tmp_path / "lesson-tiny" / "tiny-1.svg").read_text() == svg


@pytest.mark.parametrize("name", lessons.names())
def test_a_lesson_runs_reduced(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lesson_tools, "run_watched", _run_in_this_process)
    _check_table_at_end(lessons.run_lesson(lessons.LESSONS / f"{name}.py", tmp_path))


@pytest.mark.parametrize("name", lessons.names())
def test_the_page_of_a_lesson_shows_its_script(name: str) -> None:
    page = (lessons.PAGES / f"{name}.md").read_text(encoding="utf-8")
    text, _, ran = page.rpartition("\nMeasured on ")
    assert re.match(r"\d{4}-\d\d-\d\d in \d+ s, \d+ s of processor time, on: .*\n$", ran)
    _check_table_at_end(text)
    rest = text.partition("-->\n")[2]
    for cell in lessons.cells((lessons.LESSONS / f"{name}.py").read_text(encoding="utf-8")):
        output, found, rest = rest.partition(f"\n{cell.markdown()}\n")
        assert found, f"run `python scripts/lessons.py {name}`: the page lacks\n{cell.markdown()}"
        assert _OUTPUT.fullmatch(output), f"run `python scripts/lessons.py {name}`: the script lacks\n{output}"
    for chart in re.findall(r"!\[.+\]\((.*)\)", text):
        assert (lessons.PAGES / chart).exists()


def test_the_index_links_every_lesson() -> None:
    index = (lessons.PAGES / "index.md").read_text(encoding="utf-8")
    assert [name for name in lessons.names() if f"]({name}.md)" not in index] == []


def _check_table_at_end(page: str) -> None:
    """The last part of a page is a table with at least three figures."""
    table = page.rstrip().rpartition("\n\n")[2].splitlines()
    assert len(table) >= 5
    assert all(line.startswith("|") for line in table)
