"""The command line as users see it: processes, exit codes, stdout and stderr."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import write_jsonl
from tests.counts import count, full_only
from tests.servers.prefect_servers import use_migrated
from tokenloom import __version__
from tokenloom.cli.main import main

_ROOT = Path(__file__).parent.parent.parent
_COMMAND = [sys.executable, "-m", "tokenloom"]
_SPEC = """\
dataset: news
store: ./store
sources:
  - {kind: jsonl, path: "input/*.jsonl", text: text, name: lines}
tokenizer: {kind: byte}
splits: {train: 0.8, validation: 0.1, test: 0.1}
runner: {kind: process, workers: 0}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a spec and a small input."""
    write_jsonl(tmp_path / "input" / "a.jsonl", [f"line number {i}" for i in range(200)])
    (tmp_path / "spec.yaml").write_text(_SPEC)
    return tmp_path


def _environment(**extra: str) -> dict[str, str]:
    path = os.pathsep.join([*extra.pop("FIRST", "").split(), str(_ROOT)])
    names = ("PREFECT_API_URL", "PREFECT_PROFILE")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return kept | {"PYTHONPATH": path, "DO_NOT_TRACK": "1", "TOKENLOOM_UP_HOME": "/none"} | extra


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as ended:  # of argparse
            code = ended.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def _execute(folder: Path, command: list[str], **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a program, with these variables in its environment."""
    return subprocess.run(
        command, cwd=folder, env=_environment(**extra), capture_output=True, text=True, timeout=400, check=False
    )


def _spawn(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, with these variables in its environment."""
    return _execute(folder, [*_COMMAND, *arguments], **extra)


def _json(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run a command with --json; stdout must be one JSON object on one line and nothing else."""
    done = _run(folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def _visible(folder: Path) -> list[Path]:
    return [*folder.glob("store/*/versions/*/manifest.json"), *folder.glob("store/*/tags/*/*")]


def test_plan_shows_what_a_build_reads_and_makes_nothing_visible(project: Path) -> None:
    value = _json(project, "plan", "spec.yaml")
    assert (value["files"], value["partitions"], value["cached"]) == (1, 1, 0)
    assert value["bytes"] == (project / "input" / "a.jsonl").stat().st_size
    assert value["published"] is False
    assert not list(project.glob("store/**/*.spill"))
    assert not _visible(project)
    shown = _run(project, "plan", "spec.yaml")
    assert value["version"] in shown.stdout
    assert "not built yet" in shown.stdout
    assert "tokenizer byte (byte), 256 ids, end of text 255" in shown.stdout
    assert value["tokenizer"]["vocab_size"] == 256
    assert (value["encoder"], value["encoder_reason"]) == (None, "less than 2 MB of text is to be encoded")


def test_build_returns_the_promised_keys_and_other_commands_show_what_it_built(project: Path) -> None:
    value = _json(project, "build", "spec.yaml", "--direct", "--workers", "1")
    version = value["version"]
    assert value["published"] is True
    assert value["reference"] == f"{project}/store/news@{version}"
    assert value["tokens"] == sum(split["tokens"] for split in value["splits"].values())
    assert (value["documents"], value["shards"], value["seconds"] > 0) == (200, 3, True)
    assert (value["partitions"], value["partitions_reused"], value["partitions_encoded"]) == (1, 0, 1)
    assert value["tokenizer"] == {"name": "byte", "kind": "byte", "vocab_size": 256}
    assert set(value["splits"]) == {"train", "validation", "test"}
    assert all(set(split) == {"tokens", "documents", "shards"} for split in value["splits"].values())
    assert sum(split["documents"] for split in value["splits"].values()) == 200
    again = _json(project, "build", "spec.yaml", "--direct", "--workers", "1")
    assert (again["published"], again["version"], again["splits"]) == (False, version, value["splits"])
    assert _json(project, "plan", "spec.yaml")["published"] is True

    (entry,) = _json(project, "ls", "store/news")["versions"]
    assert (entry["version"], entry["tags"], entry["documents"]) == (version, ["latest"], 200)
    (dataset,) = _json(project, "ls", "store")["datasets"]
    assert dataset == {"dataset": "news", "versions": 1, "latest": version, "at": dataset["at"]}
    for place, at in (("store", dataset["at"]), ("store/news", entry["at"])):
        shown = _run(project, "ls", place).stdout
        assert version in shown and at[:16].replace("T", " ") in shown
    manifest = _json(project, "inspect", "store/news")
    assert (manifest["version"], manifest["rows"]["read"]) == (version, 200)
    assert [item["path"] for item in manifest["inputs"]] == ["a.jsonl"]
    assert version in _run(project, "inspect", "store/news@latest").stdout
    documents = _json(project, "peek", f"store/news@{version}", "--count", "4", "--chars", "8")["documents"]
    assert [document["text"] for document in documents] == ["line num"] * 4
    shown = _run(project, "peek", "store/news", "--count", "2").stdout
    assert shown.count("--- lines: a.jsonl, row ") == 2 and "line number" in shown


def test_failed_checks_end_with_code_3_and_leave_nothing_visible(project: Path) -> None:
    build = ("build", "spec.yaml", "--direct", "--set")
    failed = _run(project, *build, "checks.min_documents=1000")
    assert (failed.returncode, failed.stdout) == (3, "")
    found = "1 of 1 check failed, so nothing was published: min_documents: expected >= 1,000, found 200. "
    assert found in failed.stderr and "and build again: finished work is kept" in failed.stderr
    error = json.loads(_run(project, *build, "checks.min_documents=1000", "--json").stdout)["error"]
    gate = {"name": "min_documents", "expected": ">= 1,000", "found": "200", "passed": False, "compared": True}
    assert (error["type"], error["gates"]) == ("GateFailed", [gate])
    assert not _visible(project)
    checks = ("checks.min_documents=200", "--set", "checks.max_token_drift=0.5")
    assert _json(project, "plan", "spec.yaml", "--set", *checks)["checks"] == {
        "min_documents": 200,
        "max_token_drift": 0.5,
    }
    assert (
        "checks before it is published: min_documents 200, max"
        in _run(project, "plan", "spec.yaml", "--set", *checks).stdout
    )
    assert _json(project, "plan", "spec.yaml", "--limit", "5", "--set", *checks)["checks"] == {}
    shown = _run(project, *build, *checks).stdout
    assert "; 2 checks passed; " in shown
    assert "max_token_drift: not compared: latest names no version\n" in shown


def test_version_and_help(tmp_path: Path) -> None:
    assert _run(tmp_path, "--version").stdout == f"tokenloom {__version__}\n"
    shown = _run(tmp_path, "--help").stdout
    assert re.search(r"\n    init +write a commented spec that reads given files\n", shown)
    assert _run(tmp_path).returncode == 2
    assert "\n\nList the datasets of a store, or the versions of a dataset.\n" in _run(tmp_path, "ls", "--help").stdout


def _imported(folder: Path, *arguments: str) -> set[str]:
    """Return the names of all modules that a command imports, and of those that it looks for in vain."""
    done = _execute(folder, [sys.executable, "-X", "importtime", *_COMMAND[1:], *arguments])
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.slow
def test_commands_import_no_more_than_they_need(project: Path) -> None:
    helped = _imported(project, "--help")
    assert "argparse" in helped
    assert helped.isdisjoint({"prefect", "torch", "pydantic", "pyarrow", "numpy", "yaml"})
    built = _imported(project, "build", "spec.yaml", "--direct", "--workers", "1")
    assert built.isdisjoint({"prefect", "torch", "pandas.core"})
    read = _imported(project, "peek", "store/news")
    assert "pyarrow" in read
    assert read.isdisjoint({"prefect", "torch", "pydantic", "yaml"})


@pytest.mark.parametrize(
    ("command", "missing"), [("plan spec.yaml", "pydantic"), ("plan spec.yaml", "yaml"), ("up --folder up", "prefect")]
)
def test_missing_extra_is_one_line_that_says_what_to_install(project: Path, command: str, missing: str) -> None:
    (project / "blocked").mkdir()
    (project / "blocked" / "sitecustomize.py").write_text(
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {missing!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
    )
    done = _spawn(project, *command.split(), FIRST=str(project / "blocked"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert missing in done.stderr
    assert "pip install 'tokenloom[build]'" in done.stderr


@pytest.mark.slow
def test_stdout_has_only_json_whatever_a_transform_prints(project: Path) -> None:
    (project / "loud.py").write_text("print('noise')\n\ndef fn(text):\n    print(text)\n    return text\n")
    rules = ["--set", "documents.transform.function=loud:fn", "--set", "documents.transform.version='1'"]
    for workers in ("0", "1"):
        options = ["--direct", "--json", "--workers", workers, "--set", f"dataset=loud{workers}"]
        done = _spawn(project, "build", "spec.yaml", *rules, *options, PYTHONPATH=str(project))
        assert json.loads(done.stdout)["published"], done.stderr


@pytest.mark.slow
def test_a_stdout_that_ended_or_is_full_causes_no_traceback(project: Path) -> None:
    build = ("build", "spec.yaml", "--direct", "--workers", "0")
    for shell, command, code in (
        ('set -o pipefail; "$@" | :', build, 141),
        ('set -o pipefail; "$@" | :', ("inspect", "store/news"), 141),
        ('exec "$@" >/dev/full', ("ls", "store"), 1),
    ):
        done = _execute(project, ["bash", "-c", shell, "bash", *_COMMAND, *command])
        assert (done.returncode, "Error" in done.stderr) == (code, False), done.stderr
        assert code != 141 or "tokenloom:" not in done.stderr
    assert done.stderr == "tokenloom: the output can't be written: No space left on device\n"
    assert len(_json(project, "ls", "store/news")["versions"]) == 1


def _group(pid: int) -> list[int]:
    """Return the running processes of a process group."""
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(") ")[2].split()
            if int(fields[2]) == pid and fields[0] != "Z":
                members.append(int(path.parent.name))
    return members


@contextlib.contextmanager
def _build_in_a_group(folder: Path, *arguments: str, **extra: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*_COMMAND, "build", "spec.yaml", "--workers", "2", *arguments],
        cwd=folder,
        env=_environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "arguments"),
    [
        pytest.param(signal.SIGINT, ("--direct",), id="ctrl-c-direct"),
        pytest.param(signal.SIGTERM, ("--direct",), id="sigterm-direct"),
        pytest.param(signal.SIGINT, ("--prefect",), id="ctrl-c-prefect", marks=full_only),
    ],
)
def test_an_ended_build_leaves_nothing_visible_and_the_same_command_continues(
    migrated: Path, tmp_path: Path, number: signal.Signals, arguments: tuple[str, ...]
) -> None:
    what = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated (SIGTERM)"}[number]
    use_migrated(migrated, tmp_path / "prefect")
    for file in range(4):
        texts = [f"{file}: line {i} " + "of some length " * 400 for i in range(1000)]
        write_jsonl(tmp_path / "input" / f"{file:02}.jsonl", texts)
    (tmp_path / "spec.yaml").write_text(_SPEC)
    home = {"PREFECT_HOME": str(tmp_path / "prefect")}
    with _build_in_a_group(tmp_path, *arguments, **home) as process:
        deadline = time.monotonic() + 90
        while not list(tmp_path.glob("store/news/work/tmp/*")) and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        if number == signal.SIGINT:  # a terminal sends it to the whole group
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + number, errors
        assert output == ""
        assert f"{what}. Only complete versions are visible; run the same command again to continue" in errors
        assert "Traceback" not in errors
        time.sleep(0.2)
        assert _group(process.pid) == []
    assert not _visible(tmp_path)
    done = _spawn(tmp_path, "build", "spec.yaml", "--json", *arguments, **home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["published"] is True


def test_a_build_without_a_known_server_is_direct_and_says_so_in_one_line(project: Path) -> None:
    done = _spawn(project, "build", "spec.yaml", "--json", "--workers", "1", PREFECT_HOME=str(project / "prefect"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["published"] is True
    assert done.stderr.count("no Prefect server is known: building directly; ") == 1
    assert not (project / "prefect").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("names", "has_database"),
    [(["news"], True), *(pytest.param(["news", "books"], has, marks=full_only) for has in (True, False))],
)
def test_builds_by_prefects_own_temporary_server_at_once_publish(
    names: list[str], has_database: bool, project: Path, migrated: Path
) -> None:
    if has_database:  # otherwise all make it
        use_migrated(migrated, project / "prefect")
    up = project / "up"
    home = _environment(PREFECT_HOME=str(project / "prefect"), TOKENLOOM_UP_HOME=str(up))
    command = [*_COMMAND, "build", "spec.yaml", "--prefect", "--json", "--workers", "1", "--set"]
    builds = [
        subprocess.Popen(
            [*command, f"dataset={name}"],
            cwd=project,
            env=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for build in builds:
        output, errors = build.communicate(timeout=240)
        assert build.returncode == 0, errors
        assert json.loads(output)["published"] is True
    assert not up.exists()


@pytest.mark.slow
def test_demo_builds_and_trains(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    num_batches, bound = count(10, 250), count(370, 280) / 100  # the exercise: validation below 2.8 after 250 batches
    updates = 10 * num_batches
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = _spawn(tmp_path, "demo", "--direct", "--updates", str(updates), "--dir", "here", "--json")
    value = json.loads(done.stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 90, "seconds of processors"
    assert value["published"] is True
    assert value["sample"]
    assert (tmp_path / "here" / "demo.yaml").is_file()
    losses = value["losses"]
    assert losses["validation"]["0"] > 5 > bound > losses["validation"][str(updates)]
    assert losses["train"][str(updates)] < 4.5
    assert losses["test"] < bound


def test_a_name_that_an_ascii_locale_cant_read_is_refused_with_a_next_step(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "input" / "é.jsonl", ["a line"])
    (tmp_path / "spec.yaml").write_text(_SPEC)
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = _spawn(tmp_path, "build", "spec.yaml", "--direct", "--workers", "0", **ascii_locale)
    assert done.returncode == 1
    assert done.stderr.endswith("; names of files are ascii in this locale: set PYTHONUTF8=1\n")


# ---- completion


_IN_BASH = """
eval "$1"
COMP_WORDS=(tokenloom "${@:2}"); COMP_CWORD=$(($# - 1))
"$(complete -p tokenloom | sed 's/.*-F \\([^ ]*\\).*/\\1/')" tokenloom "${@: -1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["build", "--work"], "--workers"),
        (["export", "store/news", "mega"], "megatron"),
    ],
)
def test_bash_completes_commands_options_and_choices(words: list[str], completed: str, tmp_path: Path) -> None:
    script = _run(tmp_path, "--print-completion", "bash").stdout
    done = subprocess.run(["bash", "-c", _IN_BASH, "-", script, *words], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip("\n") == completed


@pytest.mark.parametrize(("shell", "head"), [("zsh", "#compdef tokenloom"), ("fish", "complete")])
def test_the_other_shells_have_scripts(shell: str, head: str, tmp_path: Path) -> None:
    script = _run(tmp_path, "--print-completion", shell).stdout
    assert head in script and "workers" in script
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)
