"""The code of each guide runs from that page alone, in an empty folder, and prints what the page shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.walk import blocks

_ROOT = Path(__file__).parents[2]
_OTHERS = {"extending"}  # its blocks are files of the package: tests/docs/test_extending_page.py
_PATHS = sorted([*_ROOT.glob("docs/guides/*.md"), _ROOT / "docs/index.md", _ROOT / "docs/start/resuming.md"])
_ALL = [path.relative_to(_ROOT).as_posix() for path in _PATHS if path.stem not in _OTHERS]
_PAGES = [page for page in _ALL if {"python", "console"}.intersection(language for language, _ in blocks(page))]
_WITH_GPT2 = {"docs/guides/tokenizers.md"}  # which shows what is printed of this vocabulary
#: Imports once what the pages import, and runs each in a fork of itself: lines of (page, folder, log) to exit codes.
_SERVE = """
import json, os, sys, traceback
import jinja2, pandas, pyarrow.parquet, tiktoken, torch._dynamo, tokenloom.cli.main, tokenloom.flows.direct
from tests.docs.sessions import run_session
from tests.docs.walk import follow

if "TIKTOKEN_CACHE_DIR" in os.environ:
    tiktoken.get_encoding("gpt2")

def run(page, folder, log):
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 1)
    os.dup2(1, 2)
    os.environ.update(HOME=folder, TOKENLOOM_UP_HOME=folder, TOKENLOOM_CACHE=folder + "/cache")
    os.mkdir("you")
    os.chdir("you")
    follow(page, {}, run=run_session)

for line in sys.stdin:
    page, folder, log = json.loads(line)
    if (child := os.fork()) == 0:
        os.chdir(folder)
        try:
            run(page, folder, log)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """A process that runs pages."""
    pytest.importorskip("torch")
    changes = {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1", "LOGNAME": "ada", "PYTHONHASHSEED": "0"}
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"} | changes
    command = [sys.executable, "-c", _SERVE]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", _PAGES, ids=lambda page: Path(page).stem)
def test_the_code_of_a_guide_runs_from_that_page_alone(
    page: str, tmp_path: Path, server: subprocess.Popen[str], request: pytest.FixtureRequest
) -> None:
    if page in _WITH_GPT2:
        request.getfixturevalue("tiktoken_cache")
    assert server.stdin is not None and server.stdout is not None
    log = tmp_path / "log"
    server.stdin.write(json.dumps([page, str(tmp_path), str(log)]) + "\n")
    assert server.stdout.readline() == "0\n", log.read_text()[-6000:]
