"""Compare the requests of a build to S3 with those that `tokenloom plan` counts.

    python benchmarks/plan_requests.py FOLDER [--gigabytes 5] [--workers 2] [--output FILE.json]

The text is made while it is read (made_text.py). S3 is moto in a process of its own, behind a proxy that counts
requests, and returns the checksums of what is written as Amazon's S3 does. moto keeps the objects in TMPDIR: about as
many bytes as the text has.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import made_text
from figures import Figure, print_table, write_json

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the server and the proxy of the tests
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, S3_ENVIRONMENT, s3_server

_WRITES = ("PUT", "POST")


def _spec(folder: Path, num_bytes: int, num_workers: int) -> Path:
    source = made_text.source(folder, max(1, num_bytes // made_text.FILE_BYTES))
    spec = {"dataset": "made", "store": f"s3://{BUCKET}/store", "sources": [source], "tokenizer": "gpt2"}
    path = folder / "made.yaml"
    path.write_text(json.dumps(spec | {"report": False, "runner": {"kind": "process", "workers": num_workers}}))  # YAML
    return path


def _run(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    arguments = [sys.executable, "-m", "tokenloom", *command, "--json"]
    done = subprocess.run(arguments, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(folder: Path, num_bytes: int, num_workers: int) -> tuple[list[Figure], dict[str, Any]]:
    """Plan and build; return what was counted beside what plan said."""
    folder.mkdir(parents=True, exist_ok=True)
    made_text.write_text(folder)
    spec = _spec(folder, num_bytes, num_workers)
    with s3_server() as url, FaultyProxy(url) as proxy:
        proxy.returns_checksums = True
        environment = made_text.environment(folder) | S3_ENVIRONMENT | {"AWS_ENDPOINT_URL": proxy.url}
        planned = _run(["plan", str(spec)], environment)
        proxy.forget()
        proxy.returns_checksums = True
        start = time.monotonic()
        _run(["build", str(spec), "--direct"], environment)
        seconds = time.monotonic() - start
        seen, bytes_up = list(proxy.seen), proxy.bytes_up
    listings = sum(method == "GET" and path.count("/") == 1 for method, path, _ in seen)
    writes = listings + sum(method in _WRITES for method, _, _ in seen)
    steps = planned["steps"].values()
    figures = [
        Figure("requests", "", [len(seen)], f"plan: {planned['requests']:,}"),
        Figure("requests, of those of plan", "", [len(seen) / planned["requests"]], "0.95 to 1.05"),
        Figure("reads", "", [len(seen) - writes], f"plan: {sum(step['reads'] for step in steps):,}"),
        Figure("writes and listings", "", [writes], f"plan: {sum(step['writes'] for step in steps):,}"),
        Figure(
            "read", "GB", [sum(n for *_, n in seen) / 1e9], f"plan: {sum(s['bytes_read'] for s in steps) / 1e9:.2f}"
        ),
        Figure("written", "GB", [bytes_up / 1e9], f"plan: {sum(step['bytes_written'] for step in steps) / 1e9:.2f}"),
        Figure("time", "s", [seconds]),
    ]
    return figures, planned


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Compare the requests of a build with those that plan counts.")
    parser.add_argument("folder", type=Path, help="a folder on a disk with 70 MB")
    parser.add_argument("--gigabytes", type=float, default=5.0, help="gigabytes of text")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", help="a JSON file to write")
    arguments = parser.parse_args()
    figures, planned = measure(arguments.folder.absolute(), int(arguments.gigabytes * 1e9), arguments.workers)
    print_table(figures)
    if arguments.output:
        write_json(arguments.output, figures, gigabytes=arguments.gigabytes, planned=planned, cpus=os.cpu_count())


if __name__ == "__main__":
    main()
