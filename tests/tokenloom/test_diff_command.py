"""`tokenloom diff`: exactly the documents that differ, by source and split; what else changed; its errors."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash

from tests.builders.chats import chat_spec, conversation
from tests.builders.commands import run_json
from tests.builders.datasets import build, make_spec, write_jsonl, write_parquet
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, upload
from tests.tokenloom.test_huggingface_tokenizer import train_bpe
from tokenloom.cli.main import main
from tokenloom.spec.syntax import FILTER_RULES


def listed(capsys: pytest.CaptureFixture[str], folder: Path, fate: str, *references: str) -> list[dict[str, Any]]:
    """Return the documents of one fate."""
    output = folder / f"{fate}.jsonl"
    value = run_json(capsys, "diff", *references, "--list", fate, "--output", str(output))
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert value["listed"] == value["documents"][fate] == len(rows)
    assert value["tokens"][fate] == sum(row["num_tokens"] for row in rows)
    return rows


def version_of(folder: Path, texts: Sequence[str], **fields: Any) -> str:
    """Build a version of these texts; return its reference."""
    path = write_jsonl(folder / "in" / "a.jsonl", texts)
    return build(make_spec(folder / "store", [{"kind": "jsonl", "path": str(path)}], **fields)).reference


def hashes(texts: Sequence[str]) -> list[str]:
    return sorted(xxhash.xxh3_128_hexdigest(text.encode()) for text in texts)


def test_exactly_the_changed_removed_and_added_rows_of_news_are_found(
    any_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [pq.read_table(path)["text"].to_pylist() for path in sorted((any_data / "ag_news").glob("*.parquet"))]
    texts: list[str] = [text for part in parts for text in part]
    number_of = {text: i for i, text in enumerate(texts)}
    unique = _unique(texts)
    chosen = np.random.default_rng(0).choice(unique, 200, replace=False).tolist()
    changed, removed = chosen[:100], chosen[100:]
    added = [f"a new text, number {i}" for i in range(100)]
    edited = {i: f"{texts[i]} (edited)" for i in changed}
    kept = [edited.get(i, text) for i, text in enumerate(texts) if i not in set(removed)]

    def made(name: str, rows: Sequence[str], **fields: Any) -> str:
        path = write_parquet(tmp_path / name / "news.parquet", rows)
        source = {"kind": "parquet", "path": str(path), "name": "news"}
        return build(make_spec(tmp_path / "store", [source], **fields)).reference

    old, new = made("old", texts), made("new", [*kept, *added])
    gone, come = (listed(capsys, tmp_path, fate, old, new) for fate in ("removed", "added"))
    assert sorted(row["row"] for row in gone) == sorted(chosen)
    assert sorted(row["content"] for row in gone) == hashes([texts[i] for i in chosen])
    assert sorted(row["content"] for row in come) == hashes([*edited.values(), *added])
    assert all([*kept, *added][row["row"]] in {*edited.values(), *added} for row in come)
    value = run_json(capsys, "diff", old, new)
    assert value["documents"] == {"added": 200, "removed": 200, "kept": len(number_of) - 200, "moved": 0}
    assert value["sources"] == {"news": {"documents": value["documents"], "tokens": value["tokens"]}}
    assert [change["key"] for change in value["changes"]] == ["news: news.parquet"]


@pytest.mark.parametrize("seed", [0, 3])  # the tables have the same order, and another one
def test_exactly_the_rows_that_another_share_moves_are_found(
    seed: int, any_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = {"kind": "parquet", "path": str(any_data / "ag_news" / "*.parquet")}
    shares = {"train": 0.95, "validation": 0.04, "test": 0.01}
    old = build(make_spec(tmp_path / "store", [source])).reference
    new = build(make_spec(tmp_path / "store", [source], splits=shares, seed=seed)).reference
    moved = listed(capsys, tmp_path, "moved", old, new)
    splits = [_splits(capsys, tmp_path, one) for one in (old, new)]
    expected = {content for content in splits[0] if splits[0][content] != splits[1][content]}
    assert {row["content"] for row in moved} == expected
    assert all((row["split_before"], row["split"]) == tuple(s[row["content"]] for s in splits) for row in moved)
    value = run_json(capsys, "diff", old, new)
    assert (value["documents"]["added"], value["documents"]["removed"]) == (0, 0)
    assert 0.015 < value["documents"]["moved"] / len(splits[0]) < 0.07
    assert sum(move["documents"] for move in value["moves"]) == value["documents"]["moved"]
    assert [change["key"] for change in value["changes"]] == ["seed", "splits"][seed == 0 :]


def _unique(texts: Sequence[str]) -> list[int]:
    """Return the rows whose text is in no other row."""
    first: dict[str, int] = {}
    twice: set[str] = set()
    for i, text in enumerate(texts):
        if first.setdefault(text, i) != i:
            twice.add(text)
    return [i for text, i in first.items() if text not in twice]


def _splits(capsys: pytest.CaptureFixture[str], folder: Path, reference: str) -> dict[str, str]:
    """Return the split of each content of a version: all its documents are kept from itself."""
    return {row["content"]: row["split"] for row in listed(capsys, folder, "kept", reference, reference)}


def test_tokens_are_those_of_the_new_tokenizer_except_for_removed_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokenizer.json").write_text(train_bpe())
    tokenizer = {"kind": "huggingface", "path": str(tmp_path / "tokenizer.json"), "eot": "<|endoftext|>"}
    old = version_of(tmp_path / "a", ["lorem ipsum dolor", "gone"])
    new = version_of(tmp_path / "b", ["lorem ipsum dolor", "come"], tokenizer=tokenizer)
    value = run_json(capsys, "diff", old, new)
    assert value["documents"] == {"added": 1, "removed": 1, "kept": 1, "moved": 0}
    assert value["tokens"]["removed"] == len("gone") + 1
    assert value["tokens"]["kept"] + value["tokens"]["added"] == value["b"]["tokens"]
    assert value["tokens"]["kept"] < len("lorem ipsum dolor") + 1
    changes = {change["key"]: change for change in value["changes"] if change["kind"] == "tokenizer"}
    assert (changes["kind"]["old"], changes["kind"]["new"]) == ("byte", "huggingface")
    assert changes["vocab_size"]["old"] == 256


def test_changes_of_spec_and_inputs_are_listed_by_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (write_jsonl(tmp_path / name, [f"a text of {name}"]) for name in ("a.jsonl", "b.jsonl"))
    one, two = ({"kind": "jsonl", "path": str(path), "name": path.stem} for path in (first, second))
    old = build(make_spec(tmp_path / "store", [one])).reference
    write_jsonl(first, ["another text"])
    fields = {"seed": 5, "documents": {"min_chars": 3}}
    new = build(make_spec(tmp_path / "store", [one, two | {"filter": "text != 'x'"}], **fields)).reference
    value = run_json(capsys, "diff", old, new)
    found = [(change["kind"], change["key"], change["old"], change["new"]) for change in value["changes"]]
    assert found[:4] == [
        ("spec", "documents.min_chars", 1, 3),
        ("spec", "seed", 0, 5),
        ("spec", "sources", ["a"], ["a", "b"]),
        ("source", "b", None, {"filter": "text != 'x'", "filter_rules": FILTER_RULES, "kind": "jsonl", "text": "text"}),
    ]
    assert [(kind, key) for kind, key, _, _ in found[4:]] == [("input", "a: a.jsonl"), ("input", "b: b.jsonl")]
    assert found[5][2] is None
    assert value["sources"]["b"]["documents"] == {"added": 1, "removed": 0, "kept": 0, "moved": 0}
    assert main(["diff", old, new]) == 0
    shown = capsys.readouterr().out
    assert "spec seed: 0 -> 5\n" in shown
    shown_source = json.dumps({"filter": "text != 'x'", "filter_rules": FILTER_RULES, "kind": "jsonl", "text": "text"})
    assert f"source b: none -> {shown_source}\n" in shown
    assert "1 input added: b: b.jsonl\n1 input changed: a: a.jsonl\n" in shown
    assert [line.split() for line in shown.splitlines() if line.split()[0] in "ab"] == [
        ["a", "1", "1", "0", "0"],
        ["b", "1", "0", "0", "0"],
    ]


def test_a_list_on_stdout_is_nothing_but_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = version_of(tmp_path / "a", ["one", "two"]), version_of(tmp_path / "b", ["two", "new \x1b[0m"])
    assert main(["diff", old, new, "--list", "added"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "split": "train",
        "shard": "train/000000.tok",
        "source": "jsonl-0",
        "path": "a.jsonl",
        "row": json.loads(line)["row"],
        "content": hashes(["new \x1b[0m"])[0],
        "num_tokens": 9,
    }


def test_versions_of_other_stores_and_datasets_are_compared(
    tmp_path: Path, s3_url: str, s3_proxy: FaultyProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"text {i}" for i in range(300)]
    old = version_of(tmp_path / "a", texts, shard_tokens=800)
    new = version_of(tmp_path / "b", texts[30:], shard_tokens=500, dataset="other", seed=1)
    key = uuid.uuid4().hex
    upload(s3_url, tmp_path / "b" / "store", key)
    remote = f"s3://{BUCKET}/{key}/other"
    expected = run_json(capsys, "diff", old, new)
    assert expected["documents"] == {"added": 0, "removed": 30, "kept": 270, "moved": 0}
    found = run_json(capsys, "diff", old, remote)
    assert {**found, "b": None} == {**expected, "b": None}


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--output", "x.jsonl"], 2, "--output: only --list writes documents; give both"),
        (["--list", "added", "--json"], 2, "give --output FILE"),
        (["--list", "added", "--output", "nowhere/x.jsonl"], 1, "nowhere/x.jsonl."),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = version_of(tmp_path, ["one"])
    assert main(["diff", reference, reference, *options]) == code
    assert message in capsys.readouterr().err


def test_a_conversation_with_another_weight_is_kept_and_has_other_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [conversation(f"ask {i}", "say", "more", "so") for i in range(20)]
    old = build(chat_spec(tmp_path, rows)).reference
    rows[3]["messages"][1]["weight"] = 0
    new = build(chat_spec(tmp_path, rows)).reference
    assert old != new
    assert main(["diff", old, new]) == 0
    assert "of those in both, 1 document with other classes: learned differently\n" in capsys.readouterr().out
    output = tmp_path / "remasked.jsonl"
    found = run_json(capsys, "diff", old, new, "--list", "remasked", "--output", str(output))
    assert (found["documents"], found["remasked"]) == ({"added": 0, "removed": 0, "kept": 20, "moved": 0}, 1)
    assert found["listed"] == len(output.read_text().splitlines()) == 1


def test_a_missing_table_is_named_and_the_file_of_the_list_stays_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = version_of(tmp_path, [f"text {i}" for i in range(50)], splits={"train": 1.0})
    path = tmp_path / "store/data/versions" / reference.rpartition("@")[2] / "train/000000.docs"
    path.unlink()
    output = tmp_path / "list.jsonl"
    output.write_text("earlier\n")
    assert main(["diff", reference, reference, "--list", "kept", "--output", str(output)]) == 1
    assert f"{path}: missing from a published version; `tokenloom verify " in capsys.readouterr().err
    assert output.read_text() == "earlier\n"
    assert list(tmp_path.glob("list.jsonl*")) == [output]
