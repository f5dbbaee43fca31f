"""Builds to S3 that are killed around their writes, as a separate program; test_s3_builds.py starts it.

    python -m tests.drivers.s3_kill_driver FOLDER NUMBER   a kill before and after so many writes, evenly spaced

Reads FOLDER/spec.json, and FOLDER/hashes of the same build to a folder; prints a JSON object a kill. Each of its builds
goes to a folder of its own in the bucket.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import s3fs  # noqa: F401  (a fork would import it each time, and what follows)

import tokenloom.tasks.sources.jsonl
import tokenloom.tokenizers.byte  # noqa: F401
from tests.builders import datasets
from tests.drivers.kill_driver import find_incomplete, forked
from tests.servers.s3_server import BUCKET, download
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores import remote_retries, s3
from tokenloom.storage.stores.remote_retries import RemoteCalls

_PART_BYTES = 5 * 2**20  # the least that S3 takes


class _Killer:
    """Counts the requests that write, and ends this process before or after number `at`."""

    def __init__(self, at: int | None) -> None:
        self._at, self.count = at, 0

    def install(self) -> None:
        """Intercept every request that writes."""
        call = RemoteCalls.call

        def counted(calls: RemoteCalls, place: str, name: str, *args: Any, doing: str = "read", **options: Any) -> Any:
            if doing == "read":
                return call(calls, place, name, *args, **options)
            self._tick()
            result = call(calls, place, name, *args, doing=doing, **options)
            self._tick()
            return result

        setattr(RemoteCalls, "call", counted)  # noqa: B010  (mypy refuses the plain assignment to a method)

    def _tick(self) -> None:
        if self.count == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


def _build(spec: BuildSpec, at: int | None, folder: Path) -> None:
    killer = _Killer(at)
    killer.install()
    datasets.build(spec)
    (folder / "count").write_text(str(killer.count))


def _build_and_hash(spec: BuildSpec, folder: Path) -> None:
    (folder / "found").write_text(json.dumps(datasets.listed_files(spec, datasets.build(spec).version)))


def kill_around_writes(folder: Path, number: int) -> None:
    """Kill builds around their writes, look at the store, resume, compare."""
    spec = BuildSpec.model_validate_json((folder / "spec.json").read_text())
    pa.array([0])  # imports pandas, where there is one
    gc.freeze()
    at_store = spec.model_copy(update={"store": f"s3://{BUCKET}/kills/counted"})
    assert forked(lambda: _build(at_store, None, folder)) == 0
    count = int((folder / "count").read_text())
    number = min(number, count)
    for i in range(number):
        at = i * (count - 1) // max(1, number - 1)
        problem = _kill_and_resume(spec, folder, at)
        print(json.dumps({"at": at, "of": count, "problem": problem}), flush=True)


def _kill_and_resume(spec: BuildSpec, folder: Path, at: int) -> str | None:
    spec = spec.model_copy(update={"store": f"s3://{BUCKET}/kills/{at}"})
    status = forked(lambda: _build(spec, at, folder))
    if status != -signal.SIGKILL:
        return f"was not killed: {status}"
    if problem := wrong_in_store(f"kills/{at}"):
        return f"after the kill: {problem}"
    (folder / "found").unlink(missing_ok=True)
    if (status := forked(lambda: _build_and_hash(spec, folder))) != 0:
        return f"the resume failed: {status}"
    if (folder / "found").read_text() != (folder / "hashes").read_text():
        return "the resumed build has other bytes"
    return wrong_in_store(f"kills/{at}", must_be_visible=True)


def wrong_in_store(key: str, *, must_be_visible: bool = False) -> str | None:
    """Return what is visible but incomplete in a store under `key`; None if nothing is."""
    with tempfile.TemporaryDirectory() as name:
        download(os.environ["AWS_ENDPOINT_URL"], key, Path(name))
        return find_incomplete(Path(name) / "data", must_be_visible=must_be_visible)


if __name__ == "__main__":
    remote_retries.FIRST_WAIT_SECONDS = 0.01
    s3.PART_BYTES = _PART_BYTES
    kill_around_writes(Path(sys.argv[1]), int(sys.argv[2]))
