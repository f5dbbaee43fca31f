"""Encode files, each in a new process, as workers do, and print the memory of each.

    python -m tests.drivers.memory_driver CASE ...

A case is JSON of {"store", "url", "options", "documents"}; "url" may be generated:N, N MB of JSON lines as one .gz
that exists nowhere. Each runs in a fork of this small process, and prints a line of JSON: {"peak_bytes", "read",
"filtered", "spills", "documents"} or {"error"}.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

from tests.drivers.kill_driver import forked
from tokenloom.errors import TokenloomError
from tokenloom.storage.formats.manifest import TokenizerEntry
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.work.fingerprints import remote_fingerprint, stamp
from tokenloom.storage.work.records import find_partition_records
from tokenloom.tasks.building.inputs import InputFile
from tokenloom.tasks.building.plan import Build, Partition
from tokenloom.tasks.building.tokenization import tokenize_partition
from tokenloom.tasks.rules import RowRules
from tokenloom.tasks.sources import make_reader
from tokenloom.tasks.sources.files import info_of
from tokenloom.tokenizers import load_tokenizer

MEMBER_LINES = 40_000


@functools.cache
def member() -> tuple[bytes, int]:
    """Return a gzip member of JSON lines, one in eight of them a document of 1,000 characters, and its text bytes."""
    lines = (
        json.dumps({"text": f"{i:09d} " + "abcdefghij " * (90 if i % 8 == 0 else 89)}) for i in range(MEMBER_LINES)
    )
    data = "".join(line + "\n" for line in lines).encode()
    return gzip.compress(data, 1), len(data)


class _Repeated(io.RawIOBase):
    """A file of one member repeated `count` times, which is never held in memory or on a disk."""

    def __init__(self, data: bytes, count: int) -> None:
        self._data, self._left, self._at = data, count, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._at == len(self._data):
            self._left, self._at = self._left - 1, 0
        if self._left <= 0:
            return 0
        piece = self._data[self._at : self._at + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


class GeneratedFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files generated://N.jsonl.gz: N MB of JSON lines, decompressed."""

    protocol = "generated"

    def _members(self, path: str) -> tuple[bytes, int]:
        data, num_bytes = member()
        return data, int(path.split("://")[-1].split(".")[0]) * 10**6 // num_bytes

    def size(self, path: str) -> int:
        """Return the length of the compressed file."""
        data, count = self._members(path)
        return len(data) * count

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Return the facts about the file."""
        return {"name": path, "type": "file", "size": self.size(path), "ETag": "generated"}

    def open(self, path: str, *arguments: Any, **named: Any) -> Any:
        """Open the file for reading."""
        return io.BufferedReader(_Repeated(*self._members(path)))


def encode(case: Mapping[str, Any]) -> dict[str, int]:
    """Encode the file of a case; return its counts and this process's peak of memory."""
    url, options = case["url"], {"text": "text", "on_error": "fail", "encoding_errors": "fail", **case["options"]}
    seen = {} if "://" in url else {url: stamp(url)}
    fingerprint = "xxh3_128:0" if seen else remote_fingerprint(info_of(url), url)
    file = InputFile("source", "path", url, 1, fingerprint, options, seen)
    rules = RowRules(1, None, options["max_bytes"], "fail", None, True, 0, [("train", 1.0)])
    rules = RowRules(**{**rules.__dict__, **case.get("documents", {})})
    tokenizer = case.get("tokenizer", {"kind": "byte"})
    loaded = load_tokenizer(tokenizer)
    entry = TokenizerEntry("", "", loaded.fingerprint, loaded.vocab_size, loaded.eot_id)
    build = Build(LocalStore(case["store"]), "data", "", entry, tokenizer, rules)
    totals = {"read": 0, "filtered": 0, "spills": 0, "documents": 0}
    for i, part in enumerate(make_reader(options).partitions(url)):
        name = f"part{i}"
        tokenize_partition(build, Partition(**vars(part), input_index=0, spill_name=name, file=file))
        record = find_partition_records(build.store, [name])[name]
        totals["read"] += record.encoded.rows
        totals["filtered"] += record.encoded.filtered
        totals["spills"] += len(record.spills)
        totals["documents"] += sum(sum(spill.documents) for spill in record.spills)
    return {"peak_bytes": peak_bytes(), **totals}


def report(case: Mapping[str, Any]) -> None:
    """Encode the file of a case; print what came of it."""
    found: dict[str, Any]
    try:
        found = encode(case)
    except TokenloomError as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found), flush=True)


def peak_bytes() -> int:
    """Return the most memory that this program had resident (getrusage counts the parent's before exec, too)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    fsspec.register_implementation("generated", GeneratedFileSystem)
    for argument in sys.argv[1:]:
        assert forked(lambda text=argument: report(json.loads(text))) == 0  # type: ignore[misc]
