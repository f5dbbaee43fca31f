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


def encode(store: Path, url: str | Path, options: dict[str, Any], **case: Any) -> tuple[dict[str, int], str]:
    """Encode a file in a new process; return the driver's output and error."""
    given = {"store": str(store), "url": str(url), "options": {"max_bytes": 2**28, **options}, **case}
    done = subprocess.run(
        [sys.executable, "-m", "tests.drivers.memory_driver", json.dumps(given)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return (json.loads(done.stdout) if done.returncode == 0 else {}), done.stderr


def random_text(num_bytes: int) -> str:
    """Return text that neither compression nor a dictionary makes small."""
    return np.random.default_rng(0).integers(33, 127, num_bytes, np.uint8).tobytes().decode()


def assert_bounded(found: dict[str, int], largest: int) -> None:
    assert found["peak_bytes"] <= 1000 * MILLION + 4 * largest


def test_a_row_group_of_any_length_is_read_in_pieces(tmp_path: Path) -> None:
    num_rows = count(200_000, MILLION)  # 1 GB in the full run
    text = random_text(1000 * num_rows)
    texts = pa.array([text[i * 1000 : (i + 1) * 1000] for i in range(num_rows)])
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=num_rows)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 1
    found, error = encode(tmp_path / "store", tmp_path / "a.parquet", {"kind": "parquet"})
    assert found["documents"] == num_rows, error
    assert found["peak_bytes"] < 450 * MILLION  # 350 is usual; the row group alone would add 200


def write_one_large(kind: str, path: Path, text: str) -> dict[str, Any]:
    """Write a small document, `text`, a small document; return the options to read them."""
    texts = ["a", text, "b"]
    if kind == "parquet":
        pq.write_table(pa.table({"text": texts}), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    elif kind == "array":
        path.write_text(json.dumps([{"text": text} for text in texts]))
    else:
        path.write_text("<|endoftext|>".join(texts))
    return {"kind": "jsonl" if kind == "array" else kind, "separator": "<|endoftext|>"}


@pytest.mark.parametrize(
    "kind", ["parquet", "jsonl", *(pytest.param(kind, marks=full_only) for kind in ("array", "text"))]
)
def test_a_large_document_needs_at_most_four_times_its_bytes_or_is_refused(kind: str, tmp_path: Path) -> None:
    num_bytes = count(60, 500) * MILLION
    options = write_one_large(kind, tmp_path / "a", random_text(num_bytes).replace("<|", "__"))
    found, error = encode(tmp_path / "store", tmp_path / "a", options | {"max_bytes": 2**30})
    assert found["documents"] == 3, error
    # The line from a small document to 500 MB, for which this is 1 GB + 4 times the document.
    assert found["peak_bytes"] <= 250 * MILLION + 5.5 * num_bytes
    found, error = encode(tmp_path / "other", tmp_path / "a", options | {"max_bytes": num_bytes - 1})
    assert not found
    assert "documents.max_bytes" in error
    assert str(tmp_path / "a") in error


@pytest.mark.timeout(3600)
def test_a_compressed_file_of_any_length_becomes_spills_in_constant_memory(tmp_path: Path) -> None:
    """JSON lines made by a generator: one .gz that can't be cut."""
    megabytes = count(500, 50_000)
    url = f"generated://{megabytes}.jsonl.gz"
    found, error = encode(tmp_path / "store", url, {"kind": "jsonl"}, documents={"min_chars": 1000})
    assert found["read"] > megabytes * 900, error
    assert found["documents"] == found["read"] // 8 == found["read"] - found["filtered"]
    assert found["spills"] >= found["documents"] * 1000 // (72 * MILLION)  # 64 MB and the rest of a batch each
    assert_bounded(found, 0)
    assert found["peak_bytes"] < 600 * MILLION  # as for a small file


@pytest.mark.parametrize(
    ("head", "row", "options", "most"),
    [
        (b'{"text": "good"}\n', b"x\n", {"kind": "jsonl", "on_error": "skip"}, 300_000),
        (b"text,other\n", b",\n", {"kind": "csv", "delimiter": ","}, 500_000),
    ],
)
def test_rows_that_are_left_out_do_not_accumulate_in_memory(
    head: bytes, row: bytes, options: dict[str, Any], most: int, tmp_path: Path
) -> None:
    peaks = []
    for num_rows in (1000, count(most, 2 * MILLION)):
        (tmp_path / "a").write_bytes(head + row * num_rows)
        rules = {"on_error": options.get("on_error", "fail")}
        found, error = encode(tmp_path / str(num_rows), tmp_path / "a", options, documents=rules)
        assert found["read"] - found["documents"] == num_rows, error
        peaks.append(found["peak_bytes"])
    assert peaks[1] - peaks[0] < 50 * MILLION  # 100 bytes a row
