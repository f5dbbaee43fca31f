"""A process that uses a cache of shards, for tests of several at once and of killed ones.

    python -m tests.drivers.cache_driver FOLDER LIMIT_BYTES URL [PATH SHA256 NUM_BYTES BLOCKS_SHA256]...

fetches the files in the order given, prints the statistics as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tokenloom.storage.cache import partial_shard
from tokenloom.storage.cache.partial_shard import ShardRequest
from tokenloom.storage.cache.shard_cache import ShardCache
from tokenloom.storage.stores import open_store

BLOCK_BYTES = 20_000


def start(folder: Path, limit_bytes: int, requests: list[ShardRequest]) -> subprocess.Popen[str]:
    """Start a process that fetches from one store."""
    words = [str(word) for request in requests for word in request[1:]]
    command = [sys.executable, "-m", "tests.drivers.cache_driver", str(folder), str(limit_bytes)]
    return subprocess.Popen([*command, requests[0].store.root, *words], stdout=subprocess.PIPE, text=True)


def statistics(process: subprocess.Popen[str]) -> dict[str, int]:
    """Wait for a process that `start` started; return what it did."""
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    found: dict[str, int] = json.loads(printed)
    return found


def _fetch_all(folder: str, limit_bytes: str, url: str, *words: str) -> None:
    partial_shard.REQUEST_BYTES = BLOCK_BYTES
    cache, store = ShardCache(Path(folder), int(limit_bytes)), open_store(url)
    for path, sha256, num_bytes, blocks_sha256 in zip(words[::4], words[1::4], words[2::4], words[3::4], strict=True):
        cache.fetch(ShardRequest(store, path, sha256, int(num_bytes), blocks_sha256))
    sys.stdout.write(json.dumps(cache.stats()))


if __name__ == "__main__":
    _fetch_all(*sys.argv[1:])
