"""Measure `tokenloom trace` and `tokenloom where` on a version of 10**12 tokens.

    python benchmarks/trace_where.py [--rounds 5] [--shards 10000] [--documents 100000] [--json FILE]

The manifest lists all shards, of 100,000,000 tokens and 100,000 documents each. Only those that the commands touch
exist: their tokens are zeros that take no disk space, their document offsets and tables are real. Each command is a
process of its own. "inside" is its time after its imports, from opening the store to the last line, and "processor" the
processor's time in that; "whole" is the time of the process. The files are in the page cache.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from figures import Figure, print_table, write_json
from made_store import make_folder, publish, sparse_header, write_sparse_shard
from tokenloom.reader.order import Order, Steps
from tokenloom.reader.ranks import Ranks
from tokenloom.storage.formats.documents import DocumentTableWriter
from tokenloom.storage.formats.keys import DEFAULT_SHARES, KEY_SPACE, equal_part, order_keys, split_indices
from tokenloom.storage.formats.version_files import InputEntry, encode_inputs
from tokenloom.storage.packing.plans import num_concat_samples, num_samples

SEQ_LEN, BATCH, WORLD, STEP, RANK, SEED = 2048, 8, 64, 123_456, 5, 7
_ORDERS = ("block", "full")
_TOKENS = 1000  # of a document
_PATH = "news.parquet"
_CHILD = """
import sys, time
from tokenloom.cli.commands import trace, where
from tokenloom.cli import opened_stream
import tokenloom.reader.dataset, tokenloom.reader.mixture, tokenloom.reader.tracing.batches
import tokenloom.tasks.running.without_pandas
import tokenloom.reader.tracing.sightings, tokenloom.tasks.lookup.contents, tokenloom.tasks.lookup.rows
import tokenloom.tasks.lookup.known_spec, tokenloom.tokenizers.byte, tokenloom.storage.packing.document_plans
from tokenloom.cli.main import main
begin, used = time.perf_counter(), time.process_time()
code = main()
print(time.perf_counter() - begin, time.process_time() - used, file=sys.stderr)
sys.exit(code)
"""


@dataclass(frozen=True)
class Sizes:
    """How large the version is."""

    shards: int
    documents: int  # of a shard

    @property
    def offsets(self) -> NDArray[np.uint64]:
        """The document offsets of every shard, (documents + 1,)."""
        return np.arange(0, (self.documents + 1) * _TOKENS, _TOKENS, dtype=np.uint64)


def write_version(folder: Path, sizes: Sizes) -> tuple[str, str]:
    """Write the manifest, and the shards that the commands touch; return the reference, and a content in it."""
    shards = make_folder(folder)
    offsets = sizes.offsets
    content, key = _content()
    header = sparse_header(0, offsets)
    num_packed = num_samples("best_fit", SEQ_LEN, int(offsets[-1]), offsets)
    entries = []
    for index in range(sizes.shards):
        start, end = equal_part(index, sizes.shards)
        entry: dict[str, Any] = {"name": f"train/{index:06d}.tok", "sha256": f"{index:064x}", "docs_sha256": "0" * 64}
        entry |= {"tokens": int(offsets[-1]), "documents": sizes.documents, "bytes": header.file_bytes}
        entry |= {"first_key": f"{start:016x}", "last_key": f"{end - 1:016x}"}
        entries.append(entry | {"samples": {f"best_fit/{SEQ_LEN}": num_packed}})
    home = key * sizes.shards // KEY_SPACE
    num_cut = int(num_concat_samples(int(offsets[-1]), SEQ_LEN))
    touched = {
        home,
        *(shard for num in (num_cut, num_packed) for name in _ORDERS for shard in _touched(sizes, name, num)),
    }
    for index in sorted(touched):
        path = shards / f"{index:06d}.tok"
        write_sparse_shard(path, sparse_header(index, offsets), offsets)
        _write_table(path.with_suffix(".docs"), sizes, index, content if index == home else None, key)
    inputs = encode_inputs([InputEntry("news", _PATH, "xxh3_128:" + "0" * 32, 1)])
    (shards.parent / "inputs.json").write_bytes(inputs)
    digests = {"inputs.json": hashlib.sha256(inputs).hexdigest()}
    return publish(folder, entries, digests), content.astype(">u8").tobytes().hex()


def _touched(sizes: Sizes, name: str, num_samples_of_shard: int) -> list[int]:
    """Return the shards of the traced batch in an order."""
    order = Order(name, np.full(sizes.shards, num_samples_of_shard, np.int64), SEED)
    steps = Steps(Ranks(RANK, WORLD, "benchmark"), BATCH, None, True)
    samples = order.samples(steps.positions(STEP * steps.samples, 1))
    found: list[int] = np.unique(samples // num_samples_of_shard).tolist()
    return found


def _content() -> tuple[NDArray[np.uint64], int]:
    """Return a content of the split train, (2,), and its key."""
    contents = np.random.default_rng(1).integers(0, 2**64, (100, 2), dtype=np.uint64)
    found = contents[split_indices(contents, DEFAULT_SHARES) == 0][:1]
    return found[0], int(order_keys(found, 0)[0])


def _write_table(path: Path, sizes: Sizes, index: int, content: NDArray[np.uint64] | None, key: int) -> None:
    """Write the document table of a shard, with sorted keys of its range, and one given content."""
    rng, num = np.random.default_rng(index), sizes.documents
    start, end = equal_part(index, sizes.shards)
    keys = np.sort(rng.integers(start, end, num, dtype=np.uint64, endpoint=False))
    contents = rng.integers(0, 2**64, (num, 2), dtype=np.uint64)
    if content is not None:
        place = min(int(np.searchsorted(keys, np.uint64(key))), num - 1)
        keys[place], contents[place] = key, content
    with path.open("x+b") as file, DocumentTableWriter(file) as writer:
        lengths = np.full(num, _TOKENS, np.uint32)
        writer.append(lengths, np.zeros(num, np.uint32), np.arange(num, dtype=np.uint64), contents, keys)


def measure(arguments: Sequence[str], cache: Path) -> dict[str, float]:
    """Run a command; return its seconds, see above."""
    begin = time.perf_counter()
    environment = os.environ | {"TOKENLOOM_CACHE": str(cache)}
    command = [sys.executable, "-c", _CHILD, *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    found = json.loads(done.stdout)
    assert found.get("samples") or found["steps"], "nothing was found"
    inside, used = map(float, done.stderr.splitlines()[-1].split())
    return {"inside": inside, "processor": used, "whole": seconds}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure all commands and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--documents", type=int, default=100_000, help="of a shard, 1,000 tokens each")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        sizes = Sizes(options.shards, options.documents)
        reference, content = write_version(Path(folder), sizes)
        loader = [f"--seq-len={SEQ_LEN}", f"--batch-size={BATCH}", f"--world-size={WORLD}", f"--seed={SEED}"]
        step = ["trace", reference, f"--step={STEP}", f"--rank={RANK}", *loader]
        commands = {
            "trace, concat, block": (step, "<= 0.2"),
            "trace, concat, full": ([*step, "--order=full"], "<= 0.2"),
            "trace, best_fit, full": ([*step, "--order=full", "--packing=best_fit"], ""),
            "where by content, with steps": (["where", reference, "--content", content, *loader], "<= 1"),
        }
        figures = []
        for name, (arguments, target) in commands.items():
            rounds = [measure(arguments, Path(folder) / "cache") for _ in range(options.rounds)]
            for what, goal in (("inside", target), ("processor", ""), ("whole", "")):
                figures.append(Figure(f"{name}: {what}", "s", [one[what] for one in rounds], goal))
    print(f"{sizes.shards:,} shards, {sizes.shards * sizes.documents * _TOKENS / 1e12:.3g} T tokens, batch of {BATCH}")
    print_table(figures, digits=3)
    if options.json:
        write_json(options.json, figures, shards=sizes.shards, documents=sizes.documents)


if __name__ == "__main__":
    main()
