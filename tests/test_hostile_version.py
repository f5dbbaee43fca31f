"""Versions that someone else wrote: every field nasty, every checksum right.

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

from tests.support import FULL, build, count, make_spec
from tests.tokenloom.test_huggingface_tokenizer import train_bpe
from tokenloom.errors import FormatError
from tokenloom.storage.canonical import read_signed

pytestmark = pytest.mark.slow
_ROOT = Path(__file__).parent.parent


def write_version(folder: Path, kind: str) -> Path:
    """Build a version with ids, quarantined rows, tokenizer files, listed samples, two splits; return its store."""
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
        packs=[{"packing": "best_fit", "seq_len": 16}],
    )
    build(spec)
    return folder / "store"


@pytest.mark.parametrize(
    ("group", "share"),
    [
        ("manifest", 0.25),
        ("tokenizer", 0.25),
        ("small", 0.5),
        ("shard", 0.2),
        ("manifest@memory", 0.1),
        ("shard@memory", 0.05),
    ],
)
@pytest.mark.parametrize("kind", ["huggingface", "tiktoken"])
def test_nothing_that_a_version_says_does_harm(kind: str, group: str, share: float, tmp_path: Path) -> None:
    if kind == "tiktoken" and group not in ("manifest", "tokenizer"):
        pytest.skip("the same as with the other tokenizer")
    store = write_version(tmp_path, kind)
    command = [sys.executable, "-m", "tests.hostile_driver", str(store), group, str(1 if FULL else share)]
    variables = {"TOKENLOOM_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=_ROOT, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=550
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == []
    assert found["cases"] > 20
    assert found["ends"]["FormatError"] > 10
    assert found["grown_mb"] < 300


@pytest.mark.parametrize("start", [b"[", b'{"a":'])
def test_a_signed_file_that_is_nothing_but_depth_is_refused(start: bytes) -> None:
    """A thousand million brackets with TOKENLOOM_FULL=1: 7 s and 2.9 GB."""
    num_bytes = count(10**7, 10**9)
    body = b'{"a":' + start * (num_bytes // len(start))
    data = b"".join([body, b',"checksum":"', hashlib.sha256(body).hexdigest().encode(), b'"}'])
    del body
    with pytest.raises(FormatError, match=r"manifest\.json: its checksum matches, but it holds no JSON"):
        read_signed(data, "manifest.json")
