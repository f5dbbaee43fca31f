"""Measure mixtures of many members against one dataset of as many shards: descriptors, the first batch, steady speed.

    python benchmarks/read_mixture.py [--members 1,20,200] [--shards 3] [--megabytes 1.6] [--rounds 3] [--s3]
                                      [--folder DIR] [--output FILE.json]

Every run is a fresh process. The mixture and the dataset alternate, and a figure of the mixture is divided by that of
the dataset of the same round. With --s3 both are read from moto's server behind a proxy of 100 MB/s and 30 ms a
request, with an empty cache. No two shards are equal. Opening the datasets, in 16 threads, is not part of the first
batch.

Both read the same number of batches: an epoch, in which every shard is opened, and at least one second; then for three
seconds at a steady speed. Before the end of the epoch, they have not opened the same number of shards: a dataset reads
64 of them side by side, a mixture of 200 members 200. The descriptors are those of files, the most at any time, counted
four times a second; at most ten connections to S3, and two sockets of their event loop, come on top.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from figures import Figure, print_table, write_json
from slow_s3 import slow_s3

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.builders.synthetic_store import random_documents, write_store
from tests.servers.s3_server import BUCKET
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.mixture import Mixture

_BATCH, _SEQ_LEN = 8, 2048
_RATE, _DELAY = 100, 30  # MB/s, ms
_SECONDS = 3.0


def _num_descriptors() -> int:
    """Count the open files of this process: shards, their locks, and downloads."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed since
            count += not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    return count


def _read(stores: Sequence[str], seconds: float) -> dict[str, float]:
    """Read one dataset, or a mixture of several in equal shares; return what it took."""
    began = time.perf_counter()
    with ThreadPoolExecutor(16) as threads:
        datasets = [*threads.map(lambda store: TokenDataset(f"{store}/data", seq_len=_SEQ_LEN), stores)]
    opened = time.perf_counter()
    members = {f"member{i}": (data, 1.0) for i, data in enumerate(datasets)}
    loader = TokenLoader(datasets[0] if len(datasets) == 1 else Mixture(members), _BATCH, device="numpy")
    next(loader)
    first = time.perf_counter()
    num_descriptors = [0]

    def read(num_batches: int, end: float) -> float:
        """Read so many batches, and until then; return M tokens/s."""
        begin = counted = time.perf_counter()
        num_read = 0
        while num_read < num_batches or counted < end:
            next(loader)
            num_read += 1
            if (now := time.perf_counter()) > counted + 0.25:
                counted = now
                num_descriptors.append(_num_descriptors())
        return num_read * _BATCH * _SEQ_LEN / 1e6 / (time.perf_counter() - begin)

    found = {
        "open": opened - began,
        "first": first - opened,
        "cold": read(sum(map(len, datasets)) // _BATCH, first + 1),
        "rate": read(0, time.perf_counter() + seconds),
        "descriptors": max(num_descriptors),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    loader.close()
    return found


@contextmanager
def _served(folder: Path, remote: bool) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield where the stores in a folder are, and what the environment needs for it."""
    if not remote:
        yield str(folder), {}
        return
    with slow_s3(folder, _RATE, _DELAY) as url:
        yield (
            f"s3://{BUCKET}",
            {
                "AWS_ENDPOINT_URL": url,
                "AWS_ACCESS_KEY_ID": "an-access-key-id",
                "AWS_SECRET_ACCESS_KEY": "a-secret-access-key",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
                "TOKENLOOM_CACHE": tempfile.mkdtemp(dir=folder.parent),
            },
        )


def _run(folder: Path, names: Sequence[str], remote: bool) -> dict[str, float]:
    with _served(folder, remote) as (root, environment):
        stores = json.dumps([f"{root}/{name}" for name in names])
        command = [sys.executable, __file__, "--child", stores]
        printed = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(printed.stdout)
    return found


def measure(folder: Path, num_members: int, num_shards: int, num_bytes: int, rounds: int, remote: bool) -> list[Figure]:
    """Compare a mixture of datasets of some shards with one dataset of as many."""
    documents = [random_documents(num_bytes // 2, 1000, seed) for seed in range(num_shards * num_members)]
    names = [f"members{num_members}/m{i}" for i in range(num_members)]
    whole = f"whole{num_members}"
    for i, name in enumerate(names):
        write_store(folder / name, documents[i * num_shards :][:num_shards])
    write_store(folder / whole, documents)
    pairs = [(_run(folder, [whole], remote), _run(folder, names, remote)) for _ in range(rounds)]
    place = "S3" if remote else "local"
    title = f"{num_members:,} members, {place}"

    def ratio(name: str) -> list[float]:
        return [mixture[name] / one[name] for one, mixture in pairs]

    return [
        Figure(f"{title}: most descriptors of the dataset", "", [one["descriptors"] for one, _ in pairs]),
        Figure("  of the mixture, over that", "", ratio("descriptors"), "<= 1"),
        Figure("  first batch of the dataset", "s", [one["first"] for one, _ in pairs]),
        Figure("  of the mixture, over that", "", ratio("first"), "<= 2"),
        Figure("  speed of the dataset in its first epoch", "M tokens/s", [one["cold"] for one, _ in pairs]),
        Figure("  of the mixture in as many batches, over that", "", ratio("cold"), ">= 0.9"),
        Figure("  speed of the dataset after it", "M tokens/s", [one["rate"] for one, _ in pairs]),
        Figure("  of the mixture, over that", "", ratio("rate"), ">= 0.9"),
        Figure("  memory of the mixture, over that of the dataset", "", ratio("memory")),
        Figure("  opening all members", "s", [mixture["open"] for _, mixture in pairs]),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure mixtures of many members.")
    parser.add_argument("--members", default="1,20,200", help="numbers of members, separated by commas")
    parser.add_argument("--shards", type=int, default=3, help="shards of a member")
    parser.add_argument("--megabytes", type=float, default=1.6, help="megabytes of a shard")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--output", help="a JSON file to write")
    options = parser.parse_args(arguments)
    figures: list[Figure] = []
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        for number in map(int, options.members.split(",")):
            size = int(options.megabytes * 1e6)
            figures += measure(folder / "stores", number, options.shards, size, options.rounds, options.s3)
            shutil.rmtree(folder / "stores")
    finally:
        shutil.rmtree(folder)
    print_table(figures)
    if options.output:
        chosen = {name: value for name, value in vars(options).items() if name not in ("folder", "output")}
        write_json(options.output, figures, **chosen)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(_read(json.loads(sys.argv[2]), _SECONDS)), flush=True)
        os._exit(0)  # shards may still be downloaded
    main()
