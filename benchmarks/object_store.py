"""Measure what a build moves to and from an object store: bytes, requests, memory (Linux).

    python benchmarks/object_store.py [--megabytes 200] [--workers 2] [--input FOLDER] [--output FILE.json]

The build goes from S3 to S3 or, with --input, from a folder (which the program fills) to S3. S3 is a server of its
protocol (moto) in a separate process, behind a proxy that counts the traffic. Ratios divide the counted bytes by the
bytes that had to move. Up: the spills, shards and document tables. Down: the input twice (it is read again for the
check), the spills once, and 2 MiB for each range that is read, because checksums cover blocks. All requests of the
build count. The memory limit is that of a worker process.
read_object_store.py measures reading.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from figures import Figure, print_table, write_json

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the server and the proxy of the tests
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, put, s3_server
from tokenloom.flows.direct import build_directly
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.versions.references import dataset_store

_MIB = 2**20
_FILE_BYTES = 50_000_000
_SHARD_TOKENS = 20_000_000
_ALPHABET = "etaoinshrdlu "


def _write_input(url: str, folder: Path | None, num_bytes: int) -> int:
    """Put parquet files with about `num_bytes` of text into the bucket or a folder; return the bytes of the files."""
    total = 0
    for number in range(max(1, num_bytes // _FILE_BYTES)):
        rows = list(_texts(number, min(num_bytes, _FILE_BYTES)))
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"text": rows}), sink, row_group_size=2000, compression="none", use_dictionary=False)
        data = sink.getvalue().to_pybytes()
        name = f"{number:03d}.parquet"
        if folder:
            (folder / name).write_bytes(data)
        else:
            put(url, f"input/{name}", data)
        total += len(data)
    return total


def _texts(seed: int, num_bytes: int) -> Iterator[str]:
    numbers = random.Random(seed)
    while num_bytes > 0:
        text = "".join(numbers.choices(_ALPHABET, k=numbers.randint(500, 8000)))
        num_bytes -= len(text)
        yield text


def _spec(folder: Path | None) -> BuildSpec:
    return BuildSpec.model_validate(
        {
            "dataset": "data",
            "store": f"s3://{BUCKET}/store",
            "sources": [{"kind": "parquet", "path": f"{folder or f's3://{BUCKET}/input'}/*.parquet"}],
            "tokenizer": {"kind": "byte"},
            "shard_tokens": _SHARD_TOKENS,
        }
    )


def measure(num_bytes: int, num_workers: int, folder: Path | None) -> list[Figure]:
    """Build once and compare the bytes that moved with those that had to; `folder` is the input's, None for S3."""
    with s3_server() as url, FaultyProxy(url) as proxy:
        os.environ |= {
            "AWS_ENDPOINT_URL": proxy.url,
            "AWS_ACCESS_KEY_ID": "an-access-key-id",
            "AWS_SECRET_ACCESS_KEY": "a-secret-access-key",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        input_bytes = _write_input(url, folder, num_bytes)
        result = build_directly(_spec(folder), num_workers)
        seen, bytes_up = list(proxy.seen), proxy.bytes_up
        store = dataset_store(f"s3://{BUCKET}/store", "data")
        spills = sum(n for name, n in store.lengths("work/spills").items() if name.endswith(".spill"))
        folders = [f"versions/{result.version}/{split}" for split in result.splits]
        shards = sum(sum(store.lengths(folder).values()) for folder in folders)
    num_shards = sum(split["shards"] for split in result.splits.values())
    ranges = [(path, count) for method, path, count in seen if method == "GET" and "." in path.rpartition("/")[2]]
    down = sum(count for _, _, count in seen)
    allowed = spills + (0 if folder else 2 * input_bytes)
    kinds = Counter(method for method, _, _ in seen)
    return [
        Figure("bytes up over (spills + shards + tables)", "", [bytes_up / (spills + shards)]),
        Figure("bytes down over (2 x input on S3 + spills)", "", [down / allowed]),
        Figure("the same, less 2 MiB per range read", "", [max(0, down - 2 * _MIB * len(ranges)) / allowed]),
        Figure("requests that make a shard: spills, records, shard", "", [_making(seen) / num_shards]),
        Figure("requests of the whole build per shard", "", [len(seen) / num_shards]),
        *(Figure(f"requests: {kind}", "", [count]) for kind, count in sorted(kinds.items())),
        Figure("shards", "", [num_shards]),
        Figure("input", "MB", [input_bytes / 1e6]),
        Figure("peak memory of a worker", "MB", [resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3]),
    ]


def _making(seen: Sequence[tuple[str, str, int]]) -> int:
    """Count the requests that read spills, assignment and records of shards, and write shards."""
    made = [f"/data/versions/[0-9a-f]+/{split}/" for split in ("train", "validation", "test")]
    pattern = re.compile("|".join([r"GET .*\.spill$", "/work/builds/", *made]))
    return sum(bool(pattern.search(f"{method} {path}")) for method, path, _ in seen)


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure what a build moves to and from an object store.")
    parser.add_argument("--megabytes", type=int, default=200, help="megabytes of text")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--input", type=Path, metavar="FOLDER", help="folder for the input (default: S3)")
    parser.add_argument("--output", help="a JSON file to write")
    arguments = parser.parse_args()
    figures = measure(arguments.megabytes * 1_000_000, arguments.workers, arguments.input)
    print_table(figures)
    if arguments.output:
        write_json(arguments.output, figures, megabytes=arguments.megabytes, workers=arguments.workers)


if __name__ == "__main__":
    main()
