"""Measure how fast `tokenloom verify` reads, against two bare processes that only hash the same files (SHA-256).

    python benchmarks/verify.py [--rounds 7] [--gigabytes 8] [--json FILE]

The version is a real build: the .py files of the interpreter's packages and standard library, repeated with duplicates
kept, one byte per token, in shards of 100 MB. Each bare process gets half of the bytes and uses hashlib.file_digest.
Rounds are interleaved (bare, verify, verify, bare, ...), each in fresh processes, over files in the system's cache.
Ratios are taken within a round, so they do not change when the speed of the machine drifts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from corpus import python_sources, write_corpus
from figures import Figure, print_table, write_json

GB = 1e9
NUM_PROCESSES = 2
_BARE = """
import hashlib, sys
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        print(hashlib.file_digest(file, "sha256").hexdigest())
"""


def build_version(folder: Path, texts: list[str], num_bytes: float) -> tuple[str, list[Path]]:
    """Build a version of about `num_bytes` from texts; return its reference and its files."""
    sources = -(-int(num_bytes) // sum(len(text.encode()) for text in texts))
    corpus = write_corpus(folder / "corpus", texts)
    again = ", ".join(f"{{kind: parquet, path: {corpus[0].parent}/*.parquet, name: s{i}}}" for i in range(sources))
    (folder / "spec.yaml").write_text(
        f"dataset: bench\nstore: {folder}/store\nsources: [{again}]\ntokenizer: {{kind: byte}}\n"
        "documents: {deduplicate: false}\nshard_tokens: 100000000\n"
    )
    command = [sys.executable, "-m", "tokenloom", "build", str(folder / "spec.yaml"), "--direct"]
    subprocess.run(command, check=True, capture_output=True)
    shutil.rmtree(folder / "store/bench/work")  # as large as the version
    (version,) = (folder / "store/bench/versions").iterdir()
    listed = [path for path in sorted(version.rglob("*")) if path.is_file() and path.name != "build.json"]
    return f"{folder}/store/bench@{version.name}", listed


def halves(files: list[Path]) -> list[list[Path]]:
    """Divide files into NUM_PROCESSES lists of about equal bytes, the largest file first."""
    parts: list[list[Path]] = [[] for _ in range(NUM_PROCESSES)]
    filled = [0] * NUM_PROCESSES
    for path in sorted(files, key=lambda path: path.stat().st_size, reverse=True):
        least = filled.index(min(filled))
        parts[least].append(path)
        filled[least] += path.stat().st_size
    return parts


@dataclass(frozen=True)
class Taken:
    """The cost of a run: wall seconds, including its start, and processor seconds."""

    wall: float
    cpu: float


def taken(*commands: list[str]) -> Taken:
    """Run commands in parallel until all have ended; modules are compiled to bytecode, as in an installation."""
    begin, before = time.perf_counter(), os.times()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) for command in commands]
    if sum(process.wait() for process in processes):
        raise SystemExit(f"{' '.join(commands[0])}: failed")
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return Taken(time.perf_counter() - begin, cpu)


def measure(reference: str, files: list[Path], rounds: int) -> list[Figure]:
    """Time both alternately; return the figures."""
    bare = [[sys.executable, "-c", _BARE, *map(str, part)] for part in halves(files)]
    verify = [sys.executable, "-m", "tokenloom", "verify", reference, "--workers", str(NUM_PROCESSES)]
    taken(*bare)
    taken(verify)  # one run of each warms the caches of files and imports
    pairs = []
    for i in range(rounds):
        if i % 2:
            of_verify, of_bare = taken(verify), taken(*bare)
        else:
            of_bare, of_verify = taken(*bare), taken(verify)
        pairs.append((of_bare, of_verify))
    num_bytes = sum(path.stat().st_size for path in files)
    return [
        Figure("ratio of verify to bare sha256", "", [b.wall / v.wall for b, v in pairs], ">= 0.7"),
        Figure("the same of processor seconds", "", [b.cpu / v.cpu for b, v in pairs]),
        Figure("verify", "GB/s", [num_bytes / GB / v.wall for _, v in pairs]),
        Figure(f"{NUM_PROCESSES} bare sha256 processes", "GB/s", [num_bytes / GB / b.wall for b, _ in pairs]),
    ]


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure how fast verify reads.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--gigabytes", type=float, default=8.0, help="approximate size of the version")
    parser.add_argument("--tiny", action="store_true", help="a version of a few KB, whose figures mean nothing")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TOKENLOOM_BENCH_DIR")) as name:
        texts = [f"text {i}" for i in range(400)] if arguments.tiny else python_sources()
        reference, files = build_version(Path(name), texts, 10_000 if arguments.tiny else arguments.gigabytes * GB)
        figures = measure(reference, files, arguments.rounds)
        num_bytes = sum(path.stat().st_size for path in files)
    print(f"{len(files)} files, {num_bytes / GB:.2f} GB, in the system's cache")
    print_table(figures)
    if arguments.json:
        write_json(arguments.json, figures, files=len(files), bytes=num_bytes)


if __name__ == "__main__":
    main()
