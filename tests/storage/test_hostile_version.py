"""Versions from an attacker: hostile values in every field, with valid checksums.

Reading one works, or ends in an error of ours that names the file; it opens nothing outside of the store, writes
nothing outside of the cache, imports, runs and asks for nothing that the version names, and takes neither long nor
much memory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.datasets import build, make_spec
from tests.counts import count, full_only
from tests.tokenloom.test_huggingface_tokenizer import train_bpe
from tokenloom.errors import FormatError
from tokenloom.storage.formats.records import parse_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_ROOT = Path(__file__).parents[2]


def write_version(folder: Path, kind: str) -> Path:
    """Build a version with ids, quarantined rows, tokenizer files, two splits; return its store."""
    texts = [f"document {i} says " + "word " * (i % 30) for i in range(400)]
    table = pa.table({"text": [*texts, None], "id": [f"id-{i}" for i in range(401)]})
    pq.write_table(table, folder / "a.parquet")
    if kind == "huggingface":
        (folder / "tokenizer.json").write_text(train_bpe())
        tokenizer: dict[str, Any] = {"kind": kind, "path": str(folder / "tokenizer.json"), "name": "own"}
    else:
        lines = [base64.b64encode(bytes([i])) + b" %d\n" % i for i in range(256)]
        (folder / "ranks.tiktoken").write_bytes(b"".join(lines))
        tokenizer = {"kind": kind, "ranks": str(folder / "ranks.tiktoken"), "pattern": "gpt2"}
        tokenizer["special_tokens"] = {"<|endoftext|>": 256}
    spec = make_spec(
        folder / "store",
        [{"kind": "parquet", "path": str(folder / "a.parquet"), "id": "id"}],
        tokenizer=tokenizer,
        shard_tokens=20_000,
        splits=[{"name": "train", "share": 0.8}, {"name": "validation", "share": 0.2}],
        documents={"on_error": "skip"},
    )
    build(spec)
    return folder / "store"


@pytest.mark.parametrize(
    ("kind", "place", "groups"),
    [
        ("huggingface", "local", ["manifest", "tokenizer", "small", "shard"]),
        ("huggingface", "remote", ["manifest", "shard"]),
        pytest.param("tiktoken", "local", ["manifest", "tokenizer"], marks=full_only),
    ],
)
def test_a_hostile_version_does_no_harm(kind: str, place: str, groups: list[str], tmp_path: Path) -> None:
    """12 cases of each group, chosen by a fixed seed; all 12,000 with TOKENLOOM_FULL=1."""
    store = write_version(tmp_path, kind)
    most = str(count(12, sys.maxsize))
    command = [sys.executable, "-m", "tests.drivers.hostile_driver", str(store), place, most, *groups]
    variables = {"TOKENLOOM_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=_ROOT, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=1700
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [group["group"] for group in found] == groups
    for group in found:
        assert group["wrong"] == []
        assert group["cases"] >= 12
        assert group["ends"]["FormatError"] > 0
        assert group["grown_mb"] < 600


@pytest.mark.parametrize("start", [b"[", b'{"a":'])
def test_a_deeply_nested_signed_file_is_refused(start: bytes) -> None:
    """A billion brackets with TOKENLOOM_FULL=1: 7 s and 2.9 GB."""
    num_bytes = count(10**7, 10**9)
    body = b'{"a":' + start * (num_bytes // len(start))
    data = b"".join([body, b',"checksum":"', hashlib.sha256(body).hexdigest().encode(), b'"}'])
    del body
    with pytest.raises(FormatError, match=r"manifest\.json: it does not hold valid JSON"):
        parse_json(data, "manifest.json", is_signed=True)
