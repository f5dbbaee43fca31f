"""Open a version, read from it, and print times and memory as JSON; read_scale.py starts this process.

python benchmarks/read_scale_child.py REFERENCE RESUME_AT NUM_BATCHES OPTIONS
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from read_sizes import BATCH, SEQ_LEN
from tokenloom.reader import TokenDataset
from tokenloom.reader.loader import TokenLoader


def resident_bytes() -> dict[str, int]:
    """Return the resident bytes of this process: anonymous memory and mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = (line.replace(":", "").split() for line in lines if line.startswith(("RssAnon", "RssFile")))
    return {name: int(size) * 1024 for name, size, _ in sizes}


def read(reference: str, resume_at: int, num_batches: int, options: dict[str, Any]) -> dict[str, float]:
    """Open a version, take a batch, resume at a distant sample; with `num_batches` 0, only open it."""
    gc.collect()  # otherwise the first collection after the imports, some 85 ms with torch, would be measured
    before, begin = resident_bytes(), time.perf_counter()
    data = TokenDataset(reference, seq_len=SEQ_LEN, **options)
    loader = TokenLoader(data, BATCH, rank=0, world_size=1)
    measured: dict[str, float] = {"open": time.perf_counter() - begin}
    if not num_batches:
        return measured
    next(loader)
    measured["first"] = time.perf_counter() - begin - measured["open"]
    state = loader.state_dict()
    loader.close()
    begin = time.perf_counter()
    resumed = TokenLoader(data, BATCH, rank=0, world_size=1)
    resumed.load_state_dict(state | {"samples": resume_at})
    next(resumed)
    measured["resume"] = time.perf_counter() - begin
    for _ in range(num_batches):
        next(resumed)
    after = resident_bytes()
    measured |= {name: after[name] - before[name] for name in before}
    measured["maps"] = sum(".tok" in line for line in Path("/proc/self/maps").read_text().splitlines())
    resumed.close()
    return measured


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))))
