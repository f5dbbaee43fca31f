"""Measure reading from a cold object store: the first batch, waiting in the first steps, traffic of an epoch (Linux).

    python benchmarks/read_object_store.py [--shards 16] [--megabytes 100] [--block-kib 256] [--step-ms 5]
                                           [--folder FOLDER] [--output FILE.json]

S3 is moto's server behind a proxy of 100 MB/s and 30 ms a request (slow_s3.py). The first part reads
shards of which nothing is cached. The second part reads an epoch of shards of 25 MB by 4 processes that share a cache,
and counts the bytes of all requests.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures import Figure, print_table, write_json
from slow_s3 import slow_s3

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.builders.synthetic_store import random_documents, write_store
from tests.servers.s3_server import BUCKET
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.storage.formats import blocks as blocks_module

_RATE, _DELAY = 100, 30  # MB/s, ms
_STEPS, _BATCH, _SEQ_LEN = 1000, 8, 2048
_DOCUMENT_TOKENS = 1000
_EPOCH_SHARDS, _EPOCH_TOKENS, _EPOCH_PROCESSES = 8, 12_500_000, 4


def _read(url: str, cache: str, steps: int, step_seconds: float, rank: int, ranks: int) -> dict[str, float]:
    """Read in this process; return seconds: to open, to the first batch after that, and waited in all steps."""
    os.environ |= {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "an-access-key-id",
        "AWS_SECRET_ACCESS_KEY": "a-secret-access-key",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "TOKENLOOM_CACHE": cache,
    }
    began = time.perf_counter()
    data = TokenDataset(f"s3://{BUCKET}/data", seq_len=_SEQ_LEN)
    opened = time.perf_counter()
    loader = TokenLoader(data, _BATCH, seed=1, rank=rank, world_size=ranks, num_epochs=None if steps else 1)
    waits = []
    for _ in range(steps or len(loader)):
        before = time.perf_counter()
        next(loader)
        waits.append(time.perf_counter() - before)
        time.sleep(step_seconds)
    return {"open": opened - began, "first": waits[0], "waited": sum(waits), "steps": len(waits)}


def _start(url: str, cache: Path, steps: int, step_ms: float, rank: int = 0, ranks: int = 1) -> subprocess.Popen[str]:
    numbers = map(str, (steps, step_ms / 1e3, rank, ranks))
    command = [sys.executable, __file__, "--child", url, str(cache), *numbers]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _result(process: subprocess.Popen[str]) -> dict[str, float]:
    printed, _ = process.communicate()
    found: dict[str, float] = json.loads(printed)
    return found


def _seen(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/seen") as response:
        found: dict[str, int] = json.load(response)
    return found


def measure_start(folder: Path, num_shards: int, num_bytes: int, step_ms: float) -> list[Figure]:
    """Read the first steps of shards of which nothing is cached."""
    write_store(folder / "store", [random_documents(num_bytes // 2, _DOCUMENT_TOKENS, 0)] * num_shards)
    with slow_s3(folder / "store", _RATE, _DELAY) as url:
        found = _result(_start(url, folder / "cache", _STEPS, step_ms))
        seen = _seen(url)
    line = seen["bytes"] / (_RATE * 1e6)
    return [
        Figure("open the dataset", "s", [found["open"]]),
        Figure("first batch after that", "s", [found["first"]], "<= 1"),
        Figure(f"waited in {_STEPS:,} steps", "s", [found["waited"]]),
        Figure("the same, over what the bytes take", "", [found["waited"] / line], "<= 1"),
        Figure("bytes", "MB", [seen["bytes"] / 1e6]),
        Figure("requests", "", [seen["requests"]]),
    ]


def measure_epoch(folder: Path) -> list[Figure]:
    """Read an epoch by several processes that share a cache."""
    shards = [random_documents(_EPOCH_TOKENS, 1000, seed) for seed in range(_EPOCH_SHARDS)]
    reference = write_store(folder / "store", shards)
    split = sum(path.stat().st_size for path in Path(reference).rglob("*.tok"))
    began = time.perf_counter()
    with slow_s3(folder / "store", _RATE, _DELAY) as url:
        ranks = range(_EPOCH_PROCESSES)
        processes = [_start(url, folder / "cache", 0, 0, rank, _EPOCH_PROCESSES) for rank in ranks]
        found = [_result(process) for process in processes]
        seen = _seen(url)
    return [
        Figure(
            f"an epoch by {_EPOCH_PROCESSES} processes: bytes over those of the split",
            "",
            [seen["bytes"] / split],
            "<= 1.15",
        ),
        Figure("  its first batch, the slowest process", "s", [max(each["first"] for each in found)]),
        Figure("  seconds, with starting the processes", "s", [time.perf_counter() - began]),
        Figure("  the split", "MB", [split / 1e6]),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure reading from a cold object store.")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--megabytes", type=int, default=100, help="megabytes of a shard")
    parser.add_argument("--block-kib", type=int, default=blocks_module.BLOCK_BYTES // 1024)
    parser.add_argument("--step-ms", type=float, default=5.0, help="milliseconds that the consumer takes for a step")
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--only", choices=("start", "epoch"))
    parser.add_argument("--output", help="a JSON file to write")
    options = parser.parse_args(arguments)
    blocks_module.BLOCK_BYTES = options.block_kib * 1024
    figures: list[Figure] = []
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        if options.only != "epoch":
            figures += measure_start(folder / "start", options.shards, options.megabytes * 1_000_000, options.step_ms)
        if options.only != "start":
            figures += measure_epoch(folder / "epoch")
    finally:
        shutil.rmtree(folder)
    print_table(figures)
    if options.output:
        details: dict[str, Any] = {
            name: value for name, value in vars(options).items() if name not in ("folder", "output")
        }
        write_json(options.output, figures, **details)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        url, cache, steps, seconds, rank, ranks = sys.argv[2:]
        print(json.dumps(_read(url, cache, int(steps), float(seconds), int(rank), int(ranks))), flush=True)
        if int(steps):
            os._exit(0)  # shards are still being downloaded
    else:
        main()
