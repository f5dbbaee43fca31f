"""The text of the largest measurement is real, has no document twice, and costs the space of one file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

_BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_workers_read_distinct_documents_of_files_that_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(_BENCHMARKS)  # as for a program that is run: they share modules
    import made_text

    folder = tmp_path / "text"
    folder.mkdir()
    made_text.write_text(folder, 300_000)
    sources = [made_text.source(folder, 3)]
    spec = {"dataset": "d", "store": f"{tmp_path}/store", "sources": sources, "tokenizer": {"kind": "byte"}}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "tokenloom", "build", str(tmp_path / "spec.yaml"), "--direct", "--json"]
    done = subprocess.run(command, env=made_text.environment(folder), capture_output=True, text=True, check=True)
    texts = pq.read_table(folder / "text.parquet")["text"].to_pylist()
    rows = json.loads(done.stdout)["rows"]
    assert rows["read"] == rows["kept"] == 3 * len(texts) > 0
    with made_text.MadeText().open(f"{folder}/3/part-000002.parquet") as last:
        found = pq.read_table(last)["text"].to_pylist()
    assert found == [
        f"Document {2 * len(texts) + i:010}.\n{text.partition(chr(10))[2]}" for i, text in enumerate(texts)
    ]
