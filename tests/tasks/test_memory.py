"""A worker needs at most 1 GB and four times its largest document, whatever the input; measured in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.counts import count, full_only

pytestmark = pytest.mark.slow
MILLION = 1_000_000
ROOT = Path(__file__).parent.parent.parent


def encode(*cases: dict[str, Any]) -> list[dict[str, Any]]:
    """Encode the file of each case in a process of its own; return what the driver says of each."""
    arguments = [
        json.dumps({**case, "options": {"max_bytes": 2**28, **case["options"]}}, default=str) for case in cases
    ]
    command = [sys.executable, "-m", "tests.drivers.memory_driver", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def random_text(num_bytes: int) -> str:
    """Return text that neither compression nor a dictionary makes small."""
    return np.random.default_rng(0).integers(33, 127, num_bytes, np.uint8).tobytes().decode()


def test_a_row_group_of_any_length_is_read_in_pieces(tmp_path: Path) -> None:
    num_rows = count(100_000, MILLION)  # 1 GB in the full run
    text = random_text(1000 * num_rows)
    texts = pa.array([text[i * 1000 : (i + 1) * 1000] for i in range(num_rows)])
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=num_rows)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 1
    case = {"store": tmp_path / "store", "url": tmp_path / "a.parquet", "options": {"kind": "parquet"}}
    (found,) = encode(case)
    assert found["documents"] == num_rows, found
    assert found["peak_bytes"] < count(400, 450) * MILLION  # 330 is usual; the row group alone would add 100


def write_one_large(kind: str, path: Path, text: str) -> dict[str, Any]:
    """Write a small document, `text`, a small document; return the options to read them."""
    texts = ["a", text, "b"]
    if kind == "parquet":
        pq.write_table(pa.table({"text": texts}), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        path.write_text("<|endoftext|>".join(texts))
    return {"kind": kind, "separator": "<|endoftext|>"}


@pytest.mark.parametrize("kind", ["parquet", "jsonl", pytest.param("text", marks=full_only)])
def test_a_large_document_needs_at_most_four_times_its_bytes_or_is_refused(kind: str, tmp_path: Path) -> None:
    num_bytes = count(40, 500) * MILLION
    options = write_one_large(kind, tmp_path / "a", random_text(num_bytes).replace("<|", "__"))
    cases = [
        {"store": tmp_path / str(limit), "url": tmp_path / "a", "options": options | {"max_bytes": limit}}
        for limit in (2**30, num_bytes - 1)
    ]
    found, refused = encode(*cases)
    assert found["documents"] == 3, found
    assert found["peak_bytes"] <= count(420 * MILLION, 1000 * MILLION + 4 * num_bytes)  # 340 MB is usual for 40
    assert "documents.max_bytes" in refused["error"]
    assert str(tmp_path / "a") in refused["error"]


@pytest.mark.timeout(3600)
def test_a_compressed_file_of_any_length_becomes_spills_in_constant_memory(tmp_path: Path) -> None:
    """JSON lines made by a generator: one .gz that can't be cut."""
    megabytes = count(250, 50_000)
    case = {"url": f"generated://{megabytes}.jsonl.gz", "options": {"kind": "jsonl"}, "documents": {"min_chars": 1000}}
    (found,) = encode({"store": tmp_path / "store", **case})
    assert found["read"] > megabytes * 900, found
    assert found["documents"] == found["read"] // 8 == found["read"] - found["filtered"]
    assert found["spills"] >= found["documents"] * 1000 // (72 * MILLION)  # 64 MB and the rest of a batch each
    assert found["peak_bytes"] < count(350, 600) * MILLION  # 220 is usual for 250 MB, which alone would add as much


@pytest.mark.parametrize(
    ("head", "row", "options"),
    [
        (b'{"text": "good"}\n', b"x\n", {"kind": "jsonl", "on_error": "skip"}),
        (b"text,other\n", b",\n", {"kind": "csv", "delimiter": ","}),
    ],
)
def test_rows_that_are_left_out_do_not_accumulate_in_memory(
    head: bytes, row: bytes, options: dict[str, Any], tmp_path: Path
) -> None:
    counts = (1000, count(100_000, 2 * MILLION))
    for num_rows in counts:
        (tmp_path / f"in-{num_rows}").write_bytes(head + row * num_rows)
    rules = {"on_error": options.get("on_error", "fail")}
    few, many = encode(
        *(
            {"store": tmp_path / str(n), "url": tmp_path / f"in-{n}", "options": options, "documents": rules}
            for n in counts
        )
    )
    assert [found["read"] - found["documents"] for found in (few, many)] == list(counts)
    assert many["peak_bytes"] - few["peak_bytes"] < count(15, 50) * MILLION  # 150 bytes a row
