"""CITATION.cff, CONTRIBUTING.md, Dockerfile, compose.yaml and the workflow are valid, and true for this release."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.builders.distributions import copy_tracked
from tests.counts import full_only
from tests.servers import compose

_ROOT = Path(__file__).parents[2]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_WORKFLOW = _ROOT / ".github" / "workflows" / "ci.yml"
_SERVICES = compose.services()


def _example() -> str:
    """Return the change of CONTRIBUTING.md."""
    page = (_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (diff,) = re.findall(r"^```diff\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return str(diff)


def _apply(folder: Path, *options: str) -> None:
    subprocess.run(["git", "apply", *options, "-"], cwd=folder, input=_example(), text=True, check=True)


def test_the_change_of_the_contributors_page_applies() -> None:
    _apply(_ROOT, "--check")


@full_only
def test_the_change_of_the_contributors_page_passes_its_test(tmp_path: Path) -> None:
    copy_tracked(tmp_path)
    _apply(tmp_path)
    tests = ["-q", "-p", "no:cacheprovider", "tests/tasks/test_gates.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *tests], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    page = (_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (passed,) = re.findall(r"^(\d+ passed) in", page, re.MULTILINE)
    assert passed in done.stdout, done.stdout


def test_the_workflow_runs_what_ci_runs_with_pinned_actions() -> None:
    workflow = yaml.safe_load(_WORKFLOW.read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert {".ci/run", ". .venv/bin/activate && ./check --quick"} <= {step.get("run") for step in steps}
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"]) for step in steps if "uses" in step)
    assert "3.11" in str(workflow["jobs"]["all"]) and workflow["jobs"]["quick"]["strategy"]["matrix"]["python"]
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


@full_only
@pytest.mark.parametrize(
    ("file", "schema"),
    [
        (_WORKFLOW, "vendor.github-workflows"),
        (_ROOT / "compose.yaml", "vendor.compose-spec"),
        (_ROOT / "CITATION.cff", "vendor.citation-file-format"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_file_of_another_program_has_its_schema(file: Path, schema: str) -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, "--default-filetype", "yaml"]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_only_this_machine_reaches_the_services_and_only_the_server_the_database() -> None:
    ports = [port for service in _SERVICES.values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
    with_password = {name for name, service in _SERVICES.items() if "POSTGRES_PASSWORD" in str(service)}
    assert with_password == {"database", "server"}
    assert re.search(r"^USER loom$", compose.DOCKERFILE, re.MULTILINE)


def test_the_image_has_the_folders_and_files_of_the_wheel() -> None:
    folders = {folder.partition("/")[0] for folder in _PROJECT["tool"]["setuptools"]["package-dir"].values()}
    files = {"LICENSE", "README.md", "constraints.txt", "prefect.yaml", "pyproject.toml", "setup.py"}
    lines = (_ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line[1:] for line in lines if line.startswith("!")} == folders | files
