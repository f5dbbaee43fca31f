"""Processes of a machine that read a version through one cache, without torch.

python -m tests.reader.cache_ranks REFERENCE FOLDER WORLD_SIZE: each rank writes the digests of its batches to
FOLDER/RANK, and ends when all shards are in FOLDER/cache.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tests.servers.processes import wait_until
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.storage.cache import partial_shard
from tokenloom.storage.cache.shard_cache import ShardCache

T = 16
BATCH = 4
NUM_SHARDS = 12
REQUEST_BYTES = 2048


def loader_of(data: TokenDataset, **options: Any) -> TokenLoader:
    """Return the loader that all tests use."""
    return TokenLoader(data, BATCH, **{"seed": 3, "num_epochs": 1, "drop_last": False, **options})


def cached(cache: ShardCache) -> list[Path]:
    """Return the complete files of a cache."""
    return sorted((cache.folder / "shards").glob("*.tok"))


def digest(batch: dict[str, Any]) -> str:
    """Return a short digest of a batch."""
    return str(zlib.crc32(np.stack([batch["input_ids"], batch["labels"]]).tobytes()))


def read_rank(reference: str, folder: Path, rank: int, world_size: int) -> None:
    """Write the digests of the batches of a rank, and wait until all shards are complete."""
    partial_shard.REQUEST_BYTES = REQUEST_BYTES
    cache = ShardCache(folder / "cache")
    data = TokenDataset(reference, seq_len=T, cache=cache)
    with (folder / str(rank)).open("w") as file:
        for batch in loader_of(data, rank=rank, world_size=world_size, device="numpy"):
            print(digest(batch), file=file, flush=True)
    wait_until(lambda: len(cached(cache)) == NUM_SHARDS)


def main() -> None:
    """Fork a process for each rank but the first, and exit as a script does."""
    reference, folder, world_size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    import s3fs  # noqa: F401  # once, and not in each process

    children = []
    for rank in range(1, world_size):
        if not (child := os.fork()):
            read_rank(reference, folder, rank, world_size)
            return
        children.append(child)
    read_rank(reference, folder, 0, world_size)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * len(children)


if __name__ == "__main__":
    main()
