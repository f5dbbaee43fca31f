"""The docstrings of the commands are right about exit codes: they are `--help` and the reference of commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.datasets import build, small_spec
from tokenloom.cli.commands import COMMANDS
from tokenloom.cli.main import main
from tokenloom.cli.parser import help_of, make_parser
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.mixture import Mixture

_ELSEWHERE = {"up", "deploy", "demo"}  # tests of their own run them


def _commands() -> list[str]:
    (choices,) = (action.choices for action in make_parser()._actions if action.dest == "command")
    return list(choices or ())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spec and two versions of its dataset."""
    folder = tmp_path_factory.mktemp("codes")
    spec = small_spec(folder)
    (folder / "spec.yaml").write_text(spec.model_dump_json(exclude={"credentials", "runner"}))
    build(spec)
    build(spec.model_copy(update={"seed": 1}))
    assert main(["tag", f"{spec.store}/data", "mixed"]) == 0
    mixture = Mixture({"data": (TokenDataset(f"{spec.store}/data", seq_len=8), 1)})
    (folder / "state.json").write_text(json.dumps(TokenLoader(mixture, 1).state_dict()))
    return folder


def _arguments(store: str, spec: str, init: str) -> dict[str, list[str]]:
    """Return arguments of each command that succeeds if the store has the dataset and the spec is there."""
    reference = f"{store}/data"
    where = ["--path", "b.jsonl", "--row", "0"]
    return {
        "init": [init],
        "plan": [spec, "--set", f"store={store}"],
        "build": [spec, "--set", f"store={store}", "--direct", "--workers", "0"],
        "tokenizer": [spec],
        "ls": [reference],
        "inspect": [reference],
        "peek": [reference],
        "report": [reference],
        "trace": [reference, "--sample", "0", "--seq-len", "8"],
        "where": [reference, *where],
        "mixture": [spec.replace("spec.yaml", "state.json"), "--store", store],
        "diff": [reference, reference],
        "rollback": [reference, "--reason", "a test"],
        "tag": [reference, "mine"],
        "log": [reference],
        "du": [reference],
        "gc": [reference],
        "verify": [reference, "--workers", "0"],
        "export": [reference, "megatron", f"{init}.export", "--workers", "0"],
    }


def test_the_table_has_every_command() -> None:
    assert sorted(COMMANDS) == sorted(_commands())
    assert set(_arguments("", "", "")) | _ELSEWHERE == set(_commands())


@pytest.mark.parametrize("command", _commands())
def test_each_command_ends_with_0_1_or_2_as_the_table_says(
    command: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    assert main([command, "--no-such-option"]) == 2
    if command in _ELSEWHERE:
        return
    arguments = _arguments(str(folder / "store"), str(folder / "spec.yaml"), str(tmp_path / "new.yaml"))[command]
    assert main([command, *arguments]) == 0
    (tmp_path / "file").write_text("{}")  # no store can be in it, and it is no tokenizer
    spec = json.loads((folder / "spec.yaml").read_text())
    if command in ("plan", "tokenizer"):  # a plan does not write
        spec["tokenizer"] = {"kind": "huggingface", "path": str(tmp_path / "file"), "eot": "x"}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    (tmp_path / "state.json").write_text((folder / "state.json").read_text())
    failing = _arguments(str(tmp_path / "file"), str(tmp_path / "spec.yaml"), str(tmp_path / "none" / "new.yaml"))
    assert main([command, *failing[command]]) == 1


_NO: dict[str, Callable[[Path], list[str]]] = {
    "build": lambda folder: [
        *("build", f"{folder}/spec.yaml", "--direct", "--workers", "0", "--set", "checks.min_documents=1000")
    ],
    "where": lambda folder: ["where", f"{folder}/store/data", "--path", "b.jsonl", "--row", "999"],
    "verify": lambda folder: ["verify", f"{folder}/store/data", "--workers", "0"],
}


def test_exactly_the_commands_of_the_table_answer_no_with_3(tmp_path: Path) -> None:
    assert {name for name in COMMANDS if help_of(name).exit_code_3} == {*_NO, "demo"}
    spec = small_spec(tmp_path)
    path = tmp_path / "spec.yaml"
    path.write_text(spec.model_dump_json(exclude={"credentials", "runner"}))
    assert main(_NO["build"](tmp_path)) == 3  # a new version
    version = Path(build(spec).reference.replace("@", "/versions/"))
    assert main(_NO["build"](tmp_path)) == 3  # the same, which exists
    assert main(_NO["where"](tmp_path)) == 3
    next(version.glob("train/*.tok")).write_bytes(b"damaged")
    assert main(_NO["verify"](tmp_path)) == 3
