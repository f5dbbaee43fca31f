"""The outcome of a build in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, make_spec, write_jsonl
from tokenloom import TokenDataset
from tokenloom.cli.main import main
from tokenloom.flows import build_steps
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.outcome import (
    CONTINUES,
    crash_message,
    joined_problems,
    outcome,
    outcome_line,
    reading_lines,
)
from tokenloom.tasks.publish import publish_version


def _spec(folder: Path, num_files: int) -> BuildSpec:
    for i in range(num_files):
        write_jsonl(folder / "input" / f"{i}.jsonl", [f"document {j} of file {i}" for j in range(50)])
    return make_spec(folder / "store", [{"kind": "jsonl", "path": str(folder / "input" / "*.jsonl")}])


def test_a_published_version_is_named_counted_and_timed(tmp_path: Path) -> None:
    value = build(_spec(tmp_path, 2)).to_json()
    assert value["seconds"] > 0
    assert {name: value[name] for name in ("documents", "shards", "partitions", "partitions_reused")} == {
        "documents": 100,
        "shards": 3,
        "partitions": 2,
        "partitions_reused": 0,
    }
    assert value["tokens"] == sum(split["tokens"] for split in value["splits"].values()) > 1000
    assert outcome_line(value | {"seconds": 12.34}) == (
        f"published {value['reference']}: {value['tokens']:,} tokens in 100 documents, 3 shards, in 12.3 s; "
        "0 of 2 partitions reused; tokenizer byte (byte), 256 ids"
    )


def test_the_outcome_counts_reused_partitions(tmp_path: Path) -> None:
    build(_spec(tmp_path, 2))
    assert "; 2 of 3 partitions reused; " in outcome_line(build(_spec(tmp_path, 3)).to_json())


def test_copies_of_a_file_are_encoded_once_and_count_as_reused(tmp_path: Path) -> None:
    spec = _spec(tmp_path, 1)
    (tmp_path / "input" / "copy.jsonl").write_bytes((tmp_path / "input" / "0.jsonl").read_bytes())
    assert "; 1 of 2 partitions reused; " in outcome_line(build(spec).to_json())


def test_the_outcome_of_an_up_to_date_build_describes_the_existing_version(tmp_path: Path) -> None:
    first = build(_spec(tmp_path, 2)).to_json()
    again = build(_spec(tmp_path, 2)).to_json()
    assert (again["partitions"], again["partitions_reused"], again["partitions_encoded"]) == (None, None, 0)
    assert outcome_line(again | {"seconds": 0.31}) == (
        f"up to date, nothing new to publish: {first['reference']} has {first['tokens']:,} tokens in 100 documents, "
        "3 shards; checked in 0.3 s; tokenizer byte (byte), 256 ids"
    )


def test_a_build_that_another_one_overtook_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def publish_twice(*arguments: Any) -> bool:
        assert publish_version(*arguments)
        return publish_version(*arguments)

    spec = _spec(tmp_path, 2)
    (tmp_path / "spec.yaml").write_text(spec.model_dump_json())
    monkeypatch.setattr(build_steps, "publish_version", publish_twice)
    assert main(["build", str(tmp_path / "spec.yaml"), "--direct", "--workers", "0"]) == 0
    version, facts, *rest = capsys.readouterr().out.splitlines()
    assert version.startswith(f"another build published the same version first: {spec.store}/{spec.dataset}@")
    assert "tokens in 100 documents, 3 shards, in " in facts
    assert "0 of 2 partitions reused" in facts
    assert not [line for line in rest if "latest" in line]


def test_the_two_lines_of_python_open_the_version(tmp_path: Path) -> None:
    store = tmp_path / 'a "quoted" \\ folder é'
    spec = _spec(tmp_path, 2).model_copy(update={"store": str(store)})
    value = build(spec).to_json()
    lines = reading_lines(value["reference"])
    assert outcome(value) == f"{outcome_line(value)}\n{lines}"
    assert lines.count("\n") == 1
    namespace: dict[str, TokenDataset] = {}
    exec(lines.replace("seq_len=2048", "seq_len=16"), namespace)  # the input is smaller than a sample of 2,048
    assert len(namespace["data"]) > 10


def test_the_message_of_a_crash_says_once_that_a_retry_continues() -> None:
    once = crash_message("Process exited with status code: -9.")
    assert once == f"Process exited with status code: -9; {CONTINUES}"
    assert crash_message(once) == once
    assert crash_message("") == CONTINUES


def test_a_list_of_problems_becomes_one_line() -> None:
    assert joined_problems("invalid parameters:\n - spec.splits: too few\n - spec.seed: not an integer\n") == (
        "invalid parameters: spec.splits: too few; spec.seed: not an integer"
    )
