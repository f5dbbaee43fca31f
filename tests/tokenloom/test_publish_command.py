"""`tokenloom publish`: what it lists, publishes and refuses, in words and as JSON; and the checks of plan and build."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.builders.commands import run_json
from tests.builders.datasets import write_jsonl
from tokenloom.cli.main import main
from tokenloom.errors import TokenloomError
from tokenloom.server import prefect_session


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    """A spec whose 50 documents are too few."""
    path = write_jsonl(tmp_path / "a.jsonl", [f"document {i}" for i in range(50)])
    value = {
        "dataset": "data",
        "store": str(tmp_path / "store"),
        "sources": [{"kind": "jsonl", "path": str(path)}],
        "tokenizer": {"kind": "byte"},
        "checks": {"min_documents": 1000},
        "runner": {"kind": "process", "workers": 0},
    }
    spec = tmp_path / "data.yaml"
    spec.write_text(yaml.safe_dump(value))
    return spec


def run(capsys: pytest.CaptureFixture[str], *command: object) -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr."""
    capsys.readouterr()
    code = main([str(part) for part in command])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_failed_check_ends_with_code_3_and_a_command_that_publishes(
    spec_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = spec_file.parent / "store" / "data"
    build = ("build", spec_file, "--direct", "--workers", 0)
    code, out, err = run(capsys, *build)
    assert (code, out) == (3, "")
    assert "1 of 1 check failed, so nothing was published: min_documents: expected >= 1,000, found 50. " in err
    value = run_json(capsys, *build, code=3)
    gate = {"name": "min_documents", "expected": ">= 1,000", "found": "50", "passed": False, "compared": True}
    version = value["error"]["version"]
    assert (value["error"]["type"], value["error"]["gates"]) == ("GateFailed", [gate])
    assert f'`tokenloom publish {dataset}@{version} --force --reason "..."`' in err

    (waiting,) = run_json(capsys, "publish", dataset)["candidates"]
    assert (waiting["version"], waiting["documents"], waiting["gates"]) == (version, 50, [gate])
    assert run(capsys, "publish", f"{dataset}@{version}")[0] == 3
    value = run_json(capsys, "publish", f"{dataset}@{version}", "--force", "--reason", "a small corpus")
    assert (value["published"], value["forced"], value["tag_moved"]) == (True, True, True)
    assert (value["reference"], value["reason"], value["gates"]) == (f"{dataset}@{version}", "a small corpus", [gate])
    page = Path(value["report"]).read_text()
    assert "1 check failed (min_documents): a small corpus." in page
    assert "published by force: a small corpus" in (dataset.parent / "index.html").read_text()

    Path(value["report"]).unlink()  # as if the publication had been killed before its report
    code, out, _ = run(capsys, "publish", f"{dataset}@{version}")
    assert (code, out) == (0, f"already published: {dataset}@{version}\nreport {value['report']}\n")
    assert Path(value["report"]).read_text() == page
    assert run(capsys, "publish", dataset)[1] == f"{dataset}: no version waits for publication\n"
    assert run_json(capsys, "publish", dataset) == {"dataset": "data", "candidates": []}


def test_a_publication_needs_no_prefect_and_outlives_a_server_that_does_not_answer(
    spec_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        if os.environ["PREFECT_API_URL"]:
            raise TokenloomError("the server does not answer")

    monkeypatch.setattr(prefect_session, "known_url", fail)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delenv("PREFECT_PROFILES_PATH", raising=False)
    for name in ("PREFECT_HOME", "TOKENLOOM_UP_HOME"):
        monkeypatch.setenv(name, str(spec_file.parent / "home"))
    for dataset, url in (("without", ""), ("with", "http://127.0.0.1:9/api")):
        monkeypatch.setenv("PREFECT_API_URL", url)
        settings = ("--set", f"dataset={dataset}", "--direct", "--workers", 0)
        version = run_json(capsys, "build", spec_file, *settings, code=3)["error"]["version"]
        reference = f"{spec_file.parent}/store/{dataset}@{version}"
        code, _, err = run(capsys, "publish", reference, "--force", "--reason", "a small corpus")
        assert (code, "Prefect got no event: the server does not answer" in err) == (0, bool(url))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["@{version}", "--force"], "give both"),
        (["@{version}", "--reason", "why"], "give both"),
        (["@{version}", "--force", "--reason", " "], "give both"),
        (["@{version}", "--force", "--reason", "build"], "marks the moves of builds"),
        (["", "--force", "--reason", "why"], "name the version"),
        (["@latest"], "name a version of 16 hexadecimal digits"),
        (["@{version:.8}"], "name a version of 16 hexadecimal digits"),
    ],
)
def test_options_that_do_not_fit_together_are_usage_errors(
    command: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference, *options = command
    (tmp_path / "data").mkdir()
    code, _, err = run(capsys, "publish", f"{tmp_path}/data{reference}".format(version="0123456789abcdef"), *options)
    assert code == 2
    assert message in err


def test_plan_and_build_show_the_checks_that_are_set(spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--set", "checks.min_documents=50", "--set", "checks.max_token_drift=0.5")
    assert "checks before it is published: min_documents 1,000\n" in run(capsys, "plan", spec_file)[1]
    assert run_json(capsys, "plan", spec_file, *settings)["checks"] == {"min_documents": 50, "max_token_drift": 0.5}
    assert run_json(capsys, "plan", spec_file, "--limit", 5)["checks"] == {}
    _, out, _ = run(capsys, "build", spec_file, "--direct", "--workers", 0, *settings)
    assert "; 2 checks passed; " in out
    assert "max_token_drift: not compared: latest names no version\n" in out
