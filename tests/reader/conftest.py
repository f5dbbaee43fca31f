"""Fixtures for the tests of the reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenloom.storage.cache.shard_cache import ShardCache


@pytest.fixture(scope="session", autouse=True)
def _cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep sample counts out of the user's cache, in this process and in those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENLOOM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("RANK", raising=False)
        patch.delenv("WORLD_SIZE", raising=False)
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for stores that tests share and never change."""
    return tmp_path_factory.mktemp("stores")


@pytest.fixture
def cache(tmp_path: Path) -> ShardCache:
    """A cache of remote shards without a limit."""
    return ShardCache(tmp_path / "cache")
