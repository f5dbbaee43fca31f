"""All copies of identical documents, with what is learned of them, come from the row with the most copies."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.chats import chat_spec, conversation
from tests.builders.datasets import build, local_store, make_spec, open_documents
from tests.builders.row_files import write_rows
from tests.counts import count
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.versions.published import load_manifest, version_path
from tokenloom.tasks import sizes

_FILES = ("a", "b", "c", "d", "e")
_Row = tuple[str, int]  # the file, and the number of the row
_TIMES = {0: 0, 2: 2, 3: 3, 7: 7}


def _text(made: random.Random) -> dict[str, Any]:
    return {"text": f"text {made.randrange(6)}"}


def _chat(made: random.Random) -> dict[str, Any]:
    """A conversation whose twins differ in what is learned of them."""
    row = conversation("said", f"one {made.randrange(3)}", "said", f"two {made.randrange(2)}")
    for message in row["messages"][1::2]:
        message["weight"] = made.randrange(2)
    return row


def _ids(made: random.Random) -> dict[str, Any]:
    """A document of ids whose twins differ in their masks."""
    ids = [5, 6 + made.randrange(3), 7 + made.randrange(2)]
    return {"input_ids": ids, "loss_mask": [made.randrange(2) for _ in ids]}


_MAKES = {"texts": _text, "conversations": _chat, "tokens": _ids}


def _spec(folder: Path, kind: str, made: random.Random) -> tuple[BuildSpec, dict[_Row, int]]:
    """Return a spec of files of twins with marks beside them, and how many copies of its own each row would have."""
    copies: dict[_Row, int] = {}
    for name in _FILES:
        rows = [_MAKES[kind](made) for _ in range(made.randint(1, 12))]
        quality = [made.choice([0, 1, 1, 2, 3, 3, 7]) for _ in rows]
        copies |= {(name, number): _TIMES.get(value, 1) for number, value in enumerate(quality)}
        path = folder / "in" / f"{name}.{'jsonl' if kind == 'conversations' else 'parquet'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "conversations":
            write_rows(path, rows)
        else:
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=5)
        (folder / "marks").mkdir(exist_ok=True)
        pq.write_table(pa.table({"quality": quality}), folder / "marks" / f"{name}.parquet")
    marks = [{"path": str(folder / "marks/*.parquet"), "key": "row"}]
    rules = {"marks": marks, "repeat": {"by": "quality", "times": {str(key): times for key, times in _TIMES.items()}}}
    fields: dict[str, Any] = {"documents": rules, "splits": {"train": 1.0}, "shard_tokens": 300}
    if kind == "conversations":
        source = {"path": str(folder / "in/*.jsonl"), "layout": "messages"}
        return chat_spec(
            folder, [], source=source, **(fields | {"documents": rules | {"without_target": "keep"}})
        ), copies
    if kind == "tokens":
        source = {"kind": "tokens", "format": "huggingface", "path": str(folder / "in/*.parquet")}
        fields["tokenizer"] = {"kind": "ids", "vocab_size": 100, "eot_id": 0}
    else:
        source = {"kind": "parquet", "path": str(folder / "in/*.parquet")}
    return make_spec(folder / "store", [source], **fields), copies


def _numbers(folder: Path) -> dict[tuple[str, int], int]:
    """The number of each row of JSON lines by its first byte, as the document table has it."""
    numbers = {}
    for path in (folder / "in").glob("*.jsonl"):
        start = 0
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True)):
            numbers[path.stem, start] = number
            start += len(line)
    return numbers


def _documents(folder: Path, spec: BuildSpec, version: str) -> Iterator[tuple[bytes, _Row, int | None]]:
    """Yield the content of each document of a version, its row, and a hash of the classes of its tokens."""
    store, numbers = local_store(spec.store, spec.dataset), _numbers(folder)
    inputs = json.loads(store.read(version_path(version, "inputs.json")))["inputs"]
    for entry in load_manifest(store, version).shards:
        for row in open_documents(store.local(version_path(version, entry.name)).with_suffix(".docs")).to_pylist():
            name = Path(inputs[row["input"]]["path"]).stem
            yield row["content"], (name, numbers.get((name, row["row"]), row["row"])), row.get("classes")


@pytest.mark.parametrize("kind", _MAKES)
@pytest.mark.parametrize("seed", range(count(4, 100)))
def test_all_copies_come_from_the_row_with_the_most(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = random.Random(seed)
    spec, copies = _spec(tmp_path, kind, made)
    each_row = spec.model_copy(
        update={"documents": spec.documents.model_copy(update={"deduplicate": False, "marks": [], "repeat": None})}
    )
    rows: defaultdict[bytes, list[_Row]] = defaultdict(list)
    classes: dict[_Row, int | None] = {}
    for content, row, of_row in _documents(tmp_path, each_row, build(each_row).version):
        rows[content].append(row)
        classes[row] = of_row
    winners = {content: max(sorted(found), key=lambda row: copies[row]) for content, found in rows.items()}
    expected = sorted((c, row, classes[row]) for c, row in winners.items() for _ in range(copies[row]))
    monkeypatch.setattr(sizes, "MAX_FAN_IN", made.choice([2, 3, 1024]))
    assert sorted(_documents(tmp_path, spec, build(spec).version)) == expected
