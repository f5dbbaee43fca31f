"""The outcome of a build in words."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.builders.damaging import flip_bit
from tests.builders.datasets import build, build_record, local_store, make_spec, write_jsonl, write_parquet
from tokenloom import TokenDataset
from tokenloom.cli.main import main
from tokenloom.flows import build_steps
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.statistics import EncodedCounts
from tokenloom.tasks.building.outcome import (
    outcome,
    outcome_line,
    reading_lines,
)
from tokenloom.tasks.building.publish import publish_version
from tokenloom.tasks.building.version_facts import VersionFacts
from tokenloom.tasks.running import progress


def _spec(folder: Path, num_files: int) -> BuildSpec:
    for i in range(num_files):
        write_jsonl(folder / "input" / f"{i}.jsonl", [f"document {j} of file {i}" for j in range(50)])
    return make_spec(folder / "store", [{"kind": "jsonl", "path": str(folder / "input" / "*.jsonl")}])


def test_a_published_version_is_named_counted_and_timed(tmp_path: Path) -> None:
    value = build(_spec(tmp_path, 2)).to_json()
    assert value["seconds"] > 0
    assert value | {"documents": 100, "shards": 3, "partitions": 2, "partitions_reused": 0} == value
    assert value["tokens"] == sum(split["tokens"] for split in value["splits"].values()) > 1000
    assert outcome_line(value | {"seconds": 12.34}) == (
        f"published {value['reference']}: {value['tokens']:,} tokens in 100 documents, 3 shards, in 12.3 s; "
        "0 of 2 partitions reused; tokenizer byte (byte), 256 ids"
    )


def test_copies_of_a_file_are_encoded_once_and_count_as_identical(tmp_path: Path) -> None:
    spec = _spec(tmp_path, 2)
    (tmp_path / "input" / "copy.jsonl").write_bytes((tmp_path / "input" / "0.jsonl").read_bytes())
    events: list[progress.Event] = []
    with progress.listening(events.append):
        first = build(spec)
    assert "; 0 of 3 partitions reused, 1 identical; " in outcome_line(first.to_json())
    reused = [event for event in events if isinstance(event, progress.Reused)]
    copied_bytes = (tmp_path / "input" / "copy.jsonl").stat().st_size
    assert [(event.num_parts, event.done) for event in reused] == [(0, copied_bytes)]
    more = build(_spec(tmp_path, 3)).to_json()
    assert "; 2 of 4 partitions reused, 1 identical; " in outcome_line(more)
    counts = [more[f"partitions{suffix}"] for suffix in ("", "_reused", "_identical", "_encoded")]
    assert counts == [4, 2, 1, 1]


def _commands_of(spec: BuildSpec, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Return the lines that each command prints about an existing version, twice the same as in its JSON."""
    (folder / "spec.yaml").write_text(spec.model_dump_json())
    lines = {}
    for command, subject in (("build", "spec.yaml"), ("inspect", "store/data")):
        options = ["--direct", "--workers", "0"] if command == "build" else []
        assert main([command, str(folder / subject), *options]) == 0
        lines[command] = capsys.readouterr().out.splitlines()
        assert main([command, str(folder / subject), *options, "--json"]) == 0
        warnings = json.loads(capsys.readouterr().out)["warnings"]
        assert [line for line in lines[command] if "warning: " in line] == [f"warning: {line}" for line in warnings]
    return lines


def test_an_empty_source_and_an_empty_split_are_named_with_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"text {i}" for i in range(10)]
    for name, kept in (("main", texts), ("copies", texts[2:5]), ("short", ["a", "b"])):
        write_jsonl(tmp_path / f"{name}.jsonl", kept)
    sources = [{"kind": "jsonl", "path": str(tmp_path / f"{n}.jsonl"), "name": n} for n in ("main", "copies", "short")]
    splits = {"train": 0.9998, "held": 0.0001, "rare": 0.0001}
    spec = make_spec(tmp_path / "store", sources, splits=splits, documents={"min_chars": 2})
    wanted = [
        "no document in the split held (share 0.0001) and the split rare (share 0.0001) of 10 documents; add "
        "documents, or give larger shares in `splits`",
        "source copies: nothing is kept of 3 documents, which are in other sources too; remove the source if that is "
        "right",
        "source short: nothing is kept: its rows have no text, or its filter or a rule of `documents` leaves them out; "
        "check these, or remove the source",
    ]
    result = build(spec).to_json()
    assert result["warnings"] == wanted
    assert outcome(result).splitlines()[1:4] == [f"warning: {line}" for line in wanted]
    for lines in _commands_of(spec, tmp_path, capsys).values():
        assert {f"warning: {line}" for line in wanted} <= set(lines)


def test_a_plan_names_splits_that_may_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = {"kind": "jsonl", "path": str(write_jsonl(tmp_path / "main.jsonl", [f"text {i}" for i in range(200)]))}
    spec = make_spec(tmp_path / "store", [source], splits={"train": 0.97, "few": 0.01, "some": 0.02})
    (tmp_path / "spec.yaml").write_text(spec.model_dump_json())
    assert main(["plan", str(tmp_path / "spec.yaml"), "--json"]) == 0
    (empty,) = json.loads(capsys.readouterr().out)["warnings"]
    assert empty.startswith("perhaps no document in the split few (share 0.01) of about 200 documents; ")


def test_what_was_checked_of_an_existing_version_is_said_and_what_reads_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = _spec(tmp_path, 1)
    folder = Path(build(spec).reference.replace("@", "/versions/"))
    shard = folder / "train" / "000000.tok"
    flip_bit(shard, -9)
    verify = f"`tokenloom verify {spec.store}/data@{folder.name}`"
    for lines in _commands_of(spec, tmp_path, capsys).values():
        assert f"only the lengths of its files were checked; {verify} reads their bytes" in lines
    os.truncate(shard, shard.stat().st_size - 1)
    assert main(["inspect", f"{spec.store}/data"]) == 0
    line = f"damaged: train/000000.tok is missing or cut short; {verify} lists all damage, and what to do"
    assert line in capsys.readouterr().out.splitlines()


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
    def publish_twice(*arguments: Any) -> VersionFacts | None:
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


def test_what_was_encoded_counts_the_text_of_all_documents(tmp_path: Path) -> None:
    texts = ["über", "twice", "twice"]
    write_parquet(tmp_path / "a.parquet", texts)
    write_jsonl(tmp_path / "b.jsonl", ["twice", "", "0123"])  # the empty one is filtered
    sources = [
        {"kind": "parquet", "path": str(tmp_path / "a.parquet"), "name": "z"},
        {"kind": "jsonl", "path": str(tmp_path / "b.jsonl"), "name": "a"},
    ]
    spec = make_spec(tmp_path / "store", sources)
    assert build_record(local_store(spec.store, "data"), build(spec).version).encoded == {
        "z": EncodedCounts(documents=3, tokens=18, bytes=15, rows=3),
        "a": EncodedCounts(documents=2, tokens=11, bytes=9, rows=3, filtered=1),
    }
