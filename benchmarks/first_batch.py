"""Print as JSON how long the first batch of a version takes in a fresh process, and the rate of those after it.

    python benchmarks/first_batch.py STORE/DATASET

Its shards are evicted from the system's cache before. The loader has the default order, and batches of 8 x 2,048
tokens. Imports don't count.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch  # noqa: F401  (the loader imports it with its first batch)

from read_cold import make_cold
from read_sizes import BATCH, SEQ_LEN
from tokenloom.reader import TokenDataset
from tokenloom.reader.loader import TokenLoader

_SECONDS = 20.0


def main() -> None:
    """Measure the version that the command line names."""
    make_cold(sorted(Path(sys.argv[1]).rglob("*.tok")), drop_caches=False)
    start = time.perf_counter()
    loader = TokenLoader(TokenDataset(sys.argv[1], seq_len=SEQ_LEN), BATCH, rank=0, world_size=1)
    batches = iter(loader)
    next(batches)
    first = time.perf_counter()
    num_batches = passed = 0.0
    while passed < _SECONDS:
        next(batches)
        num_batches, passed = num_batches + 1, time.perf_counter() - first
    loader.close()
    rate = num_batches * BATCH * SEQ_LEN / passed
    print(json.dumps({"first batch": first - start, "million tokens a second": rate / 1e6}))


if __name__ == "__main__":
    main()
