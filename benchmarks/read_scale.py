"""Measure scale for read.py: versions of many large, sparse shards, each opened in new processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from figures import Figure
from made_store import write_sparse_store
from read_sizes import SEQ_LEN, Sizes

_CHILD = Path(__file__).with_name("read_scale_child.py")


def measure_scale(folder: Path, sizes: Sizes, rounds: int) -> list[Figure]:
    """Open a version with many shards, and one with only a long list of shards."""
    even = np.linspace(0, sizes.sparse_tokens, 1001).astype("<u8")
    big = write_sparse_store(folder / "big", sizes.sparse_shards, even, SEQ_LEN)
    many = write_sparse_store(folder / "many", sizes.listed_shards, even, SEQ_LEN, files=False)
    measured = [open_in_child(big, sizes, sizes.waits) for _ in range(rounds)]
    listed = [open_in_child(many, sizes, 0)["open"] for _ in range(rounds)]
    return [
        *_of_big_version(measured, sizes),
        Figure(f"{sizes.listed_shards:,} shards: open", "s", listed, "<= 0.6"),
    ]


def open_in_child(reference: str, sizes: Sizes, num_batches: int, **options: Any) -> dict[str, float]:
    """Open a version in a new process; return the values that it reports."""
    arguments = [reference, str(sizes.resume_at), str(num_batches), json.dumps(options)]
    done = subprocess.run([sys.executable, _CHILD, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the process that opens {reference} failed:\n{done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def _of_big_version(measured: list[dict[str, float]], sizes: Sizes) -> list[Figure]:
    tokens = sizes.sparse_shards * sizes.sparse_tokens
    what = f"{sizes.sparse_shards:,} shards, {tokens / 1e12:.3g} T tokens"
    scaled = [
        ("open", "open", "ms", 1e3, "<= 50"),
        ("first", "first batch", "ms", 1e3, "<= 50"),
        ("resume", f"resume at sample {sizes.resume_at:,}", "ms", 1e3, "<= 50"),
        ("RssAnon", f"resident growth after {sizes.waits:,} batches", "MB", 1e-6, "<= 100"),
        ("RssFile", "mapped pages resident", "MB", 1e-6, ""),
        ("maps", "maps open", "", 1.0, "<= 512"),
    ]
    return [
        Figure(f"{what}: {name}", unit, [scale * one_round[key] for one_round in measured], target)
        for key, name, unit, scale, target in scaled
    ]
