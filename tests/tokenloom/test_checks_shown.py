"""The `checks` of a spec as `plan` and `build` show them, in words and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.builders.commands import run_json
from tests.builders.datasets import write_jsonl
from tokenloom.cli.main import main


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


def test_a_failed_check_ends_with_code_3_and_leaves_nothing_but_work(
    spec_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = ("build", spec_file, "--direct", "--workers", 0)
    assert main([*map(str, build)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "1 of 1 check failed, so nothing was published: min_documents: expected >= 1,000, found 50. " in err
    assert f"Correct the data, or the limit in `checks` of the spec ({spec_file}:" in err
    assert "), and build again: finished work is kept" in err
    error = run_json(capsys, *build, code=3)["error"]
    gate = {"name": "min_documents", "expected": ">= 1,000", "found": "50", "passed": False, "compared": True}
    assert (error["type"], error["gates"]) == ("GateFailed", [gate])
    dataset = spec_file.parent / "store" / "data"
    assert not [*dataset.rglob("manifest.json"), *dataset.glob("tags/*")]


def test_plan_and_build_show_the_checks_that_are_set(spec_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--set", "checks.min_documents=50", "--set", "checks.max_token_drift=0.5")
    assert main(["plan", str(spec_file)]) == 0
    assert "checks before it is published: min_documents 1,000\n" in capsys.readouterr().out
    assert run_json(capsys, "plan", spec_file, *settings)["checks"] == {"min_documents": 50, "max_token_drift": 0.5}
    assert run_json(capsys, "plan", spec_file, "--limit", 5)["checks"] == {}
    assert main(["build", str(spec_file), "--direct", "--workers", "0", *settings]) == 0
    out = capsys.readouterr().out
    assert "; 2 checks passed; " in out
    assert "max_token_drift: not compared: latest names no version\n" in out
