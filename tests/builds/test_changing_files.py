"""Outside files that change while builds are killed or fail: what is published is what a build alone publishes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.datasets import make_spec, write_jsonl
from tests.counts import SUMMARY, count

_ROOT = Path(__file__).parents[2]
_TEXTS = [f"document {i}, said {i % 7} times" * (1 + i % 5) for i in range(60)]
_ROWS = "rows.jsonl"


def _write_variant(folder: Path, variant: int) -> None:
    """Write one variant of each outside file; those of rows have equal lengths, and equal numbers of rows."""
    folder.mkdir(parents=True)
    write_jsonl(folder / _ROWS, [text.replace("said", ("said", "told")[variant]) for text in _TEXTS[:40]])
    ids = [f"id {i}" for i in range(30)]
    rows = [{"id": name, "text": text} for name, text in zip(ids, _TEXTS[30:], strict=True)]
    if variant:
        rows.reverse()
    pq.write_table(pa.Table.from_pylist(rows), folder / "named.parquet", row_group_size=8)
    scores = pa.table({"id": ids, "score": [(i + variant) % 3 for i in range(30)]})
    pq.write_table(scores, folder / "scores.parquet")
    aligned = pa.table({"quality": [float((i + variant) % 4) for i in range(40)]})
    pq.write_table(aligned, folder / "rows.parquet")
    (folder / "removed.txt").write_text("".join(f"{ids[i + variant]}\n" for i in (0, 5, 9)))
    excluded = [json.dumps(_TEXTS[i + 7 * variant]) for i in (31, 36)]
    (folder / "excluded.txt").write_text("\n".join(excluded))


def _spec(folder: Path) -> Any:
    files = folder / "files"
    sources = [
        {"kind": "jsonl", "path": str(files / _ROWS), "name": "rows"},
        {"kind": "parquet", "path": str(files / "named.parquet"), "id": "id", "name": "named"},
    ]
    marks = [
        {"path": str(files / "scores.parquet"), "key": "id", "source": "named"},
        {"path": str(files / "removed.txt"), "key": "id", "as": "remove", "source": "named"},
        {"path": str(files / "rows.parquet"), "key": "row", "source": "rows"},
    ]
    documents = {
        "marks": marks,
        "exclude": str(files / "excluded.txt"),
        "repeat": {"by": "score", "times": {"1": 2, "2": 0.5}},
        "keep": "quality >= 1 or score >= 0",
    }
    return make_spec(folder / "store", sources, documents=documents, shard_tokens=1500)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_is_published_beside_changing_files_kills_and_faults_is_what_a_build_alone_publishes(
    tmp_path: Path,
) -> None:
    for variant in (0, 1):
        _write_variant(tmp_path / "variants" / str(variant), variant)
    (tmp_path / "spec.json").write_text(_spec(tmp_path).model_dump_json())
    command = [
        sys.executable,
        "-m",
        "tests.drivers.changing_driver",
        str(tmp_path),
        str(count(20, 300)),
        str(count(8, 100)),
    ]
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    ends = Counter(each["end"] for each in rounds)
    SUMMARY.append(f"rounds with changing files: {dict(ends)}")
    assert [each["problem"] for each in rounds if each["problem"]] == []
    assert {name for each in rounds for name in each["changed"]} >= {_ROWS, "rows.parquet", "scores.parquet"}
