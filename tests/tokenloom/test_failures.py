"""How the command line reports a failed command: the message, the object of --json, the exit code."""

from __future__ import annotations

import errno
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.builders.datasets import write_jsonl, write_parquet
from tokenloom.cli.commands import look
from tokenloom.cli.main import main
from tokenloom.cli.output import Terminated
from tokenloom.errors import InputError
from tokenloom.storage.stores import Store, open_store

_SPEC = """\
dataset: news
store: ./store
sources:
  - {kind: text, path: good.txt}
  - kind: KIND
    path: PATH
    name: second
tokenizer: {kind: byte}
runner: {kind: process, workers: 0}
"""


def _spec(folder: Path, kind: str, path: str, *lines: str) -> str:
    (folder / "good.txt").write_text("a good text")
    text = _SPEC.replace("KIND", kind).replace("PATH", path)
    (folder / "spec.yaml").write_text(text.replace("    name: second\n", "".join(f"    {x}\n" for x in lines)))
    return str(folder / "spec.yaml")


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    """Return the message of a command that fails; stdout with --json has the same."""
    assert main(list(arguments)) == code
    plain = capsys.readouterr()
    assert plain.out == ""
    assert main([*arguments, "--json"]) == code
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1] == plain.err.splitlines()[-1]
    assert shown.out.count("\n") == 1
    value = json.loads(shown.out)
    assert set(value) == {"error"}
    assert set(value["error"]) == {"type", "message", "exit_code"}
    assert value["error"]["exit_code"] == code
    assert value["error"]["message"] in shown.err
    message: str = value["error"]["message"]
    return message


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "message"),
    [
        (["plan", "none.yaml"], 2, "SpecError", "none.yaml: no such file"),
        (["ls", "nowhere"], 1, "StoreError", "nowhere: no such store"),
        (["build", "x.yaml", "--workers", "many"], 2, "UsageError", "argument --workers: 'many' is not an integer"),
        (["build", "x.yaml", "--workers", "-1"], 2, "UsageError", "is not in [0, 512]"),
        (["build", "x.yaml", "--worker", "2"], 2, "UsageError", "unrecognized arguments: --worker 2"),
        (["build"], 2, "UsageError", "the following arguments are required: SPEC"),
    ],
)
def test_an_error_with_json_is_an_object_on_stdout_and_a_message_on_stderr(
    arguments: list[str], code: int, kind: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in _refused(capsys, *arguments, code=code)
    main([*arguments, "--json"])
    assert json.loads(capsys.readouterr().out)["error"]["type"] == kind


def test_debug_adds_the_traceback_and_changes_neither_exit_code_nor_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "none.yaml", "--json", "--debug"]) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out)["error"]["exit_code"] == 2
    assert "Traceback" in shown.err


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (Terminated(), 143, "terminated (SIGTERM)"),
        (InputError("first line\nsecond\x1b line"), 1, r"first line second\x1b line"),
        (RuntimeError("first\r\n  second"), 1, "RuntimeError: first second"),
        (RuntimeError(""), 1, "RuntimeError without a message"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/file"), 1, "a/file: No space left on device"),
    ],
)
def test_every_message_is_one_line(
    raised: BaseException,
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(store: str) -> None:
        raise raised

    monkeypatch.setattr(look, "open_store", fail)
    assert _refused(capsys, "ls", "store", code=code) == message
    main(["ls", "store"])
    assert capsys.readouterr().err.count("\n") == 1


def test_an_error_of_a_source_names_the_line_of_the_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(tmp_path / "a.jsonl", ["text"], key="body")
    spec = _spec(tmp_path, "jsonl", "a.jsonl", "name: second")
    place = f"{spec}:5: source second: {tmp_path}/a.jsonl, line 1 at byte 0: no key 'text'"
    for command in (["plan"], ["build", "--direct", "--workers", "0"], ["build", "--direct", "--workers", "1"]):
        assert _refused(capsys, command[0], spec, *command[1:]).startswith(place)
    limited = _refused(capsys, "build", spec, "--direct", "--limit", "2", "--workers", "0")
    assert limited.startswith(place)
    missing = _refused(capsys, "plan", spec, "--set", "sources.1.path=none.jsonl")
    assert missing.startswith(f"{spec}:5 with --set sources.1.path=none.jsonl: source second: ")
    written = _refused(capsys, "plan", spec, "--set", f"sources=[{{kind: jsonl, path: {tmp_path}/a.jsonl}}]")
    assert written.startswith(f"--set sources=[{{kind: jsonl, path: {tmp_path}/a.jsonl}}]: source jsonl-0: ")


# Names of columns


def test_column_names_are_quoted_as_a_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["plain", "with space", "a, b", 'q"', "", "dotted.name"]
    shown = r'plain, "with space", "a, b", "q\"", "", dotted.name'
    pq.write_table(pa.table({name: ["x"] for name in names}), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text('plain,with space,"a, b","q""",,dotted.name\n1,2,3,4,5,6\n')
    (tmp_path / "a.jsonl").write_text(json.dumps(dict.fromkeys(names, "x")) + "\n")
    for kind in ("parquet", "csv", "jsonl"):
        message = _refused(capsys, "plan", _spec(tmp_path, kind, f"a.{kind}"))
        assert f"are: {shown}. " in message


# plan refuses what build refuses


@pytest.mark.parametrize("options", [[], ["--limit", "1"]])
def test_plan_refuses_a_missing_column_and_a_tokenizer_that_can_not_be_loaded(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parquet(tmp_path / "a.parquet", ["text"])
    write_jsonl(tmp_path / "a.jsonl", ["text"])
    (tmp_path / "a.csv").write_text("text,n\na,1\n")
    for kind, what in (("parquet", "column"), ("csv", "column"), ("jsonl", "key")):
        spec = _spec(tmp_path, kind, f"a.{kind}", "text: body")
        planned = _refused(capsys, "plan", spec, *options)
        assert planned == _refused(capsys, "build", spec, "--direct", "--workers", "0", *options)
        assert f"no {what} 'body'" in planned
    spec = _spec(tmp_path, "parquet", "a.parquet")
    tokenizer = ["--set", f"tokenizer={{kind: huggingface, path: {tmp_path}/org/model}}"]
    planned = _refused(capsys, "plan", spec, *options, *tokenizer)
    assert planned == _refused(capsys, "build", spec, "--direct", "--workers", "0", *options, *tokenizer)
    assert "give a model on the Hugging Face Hub as name, not path" in planned


# plan refuses a build without documents


@pytest.mark.parametrize(
    ("kind", "data", "lines", "message"),
    [
        ("csv", b"text,n\nhello,1\n", "documents: {min_chars: 10000000}", "1 row read, 1 of them left out"),
        ("jsonl", b'{"text": "hello"}\n', "id: nokey", "no row has the key 'nokey'"),
    ],
)
def test_plan_refuses_inputs_without_documents_as_build_does(
    kind: str, data: bytes, lines: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"a.{kind}").write_bytes(data)
    options = yaml.safe_load(lines)
    runner = {"kind": "process", "workers": 0}
    spec: dict[str, Any] = {"dataset": "news", "store": "./store", "tokenizer": "byte", "runner": runner}
    spec |= {"documents": options.pop("documents", {}), "sources": [{"kind": kind, "path": f"a.{kind}", **options}]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    planned = _refused(capsys, "plan", str(tmp_path / "spec.yaml"))
    assert message in planned
    built = _refused(capsys, "build", str(tmp_path / "spec.yaml"), "--direct", "--workers", "0")
    assert planned == built
    assert _refused(capsys, "plan", str(tmp_path / "spec.yaml")) == built  # of what is encoded now


def test_plan_warns_if_only_the_sample_has_no_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.tasks.preview.NUM_PROBES", 1)
    for name in "ab":
        write_jsonl(tmp_path / f"{name}.jsonl", [f"short {name}"])
    (tmp_path / "spec.yaml").write_text(
        "{dataset: news, store: ./store, tokenizer: byte, documents: {min_chars: 9}, "
        "sources: [{kind: jsonl, path: '*.jsonl'}]}"
    )
    assert main(["plan", str(tmp_path / "spec.yaml")]) == 0
    shown = capsys.readouterr().out
    assert "the sample has no documents" in shown
    assert "already encoded" not in shown


def test_a_warning_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(store: str) -> Store:
        warnings.warn("no\nsamples", stacklevel=1)
        return open_store(store)

    monkeypatch.setattr(look, "open_store", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["ls", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "tokenloom: warning: no samples\n"
