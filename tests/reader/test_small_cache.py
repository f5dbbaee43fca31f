"""A cache for one shard, or a few: readers keep to it, and never wait for themselves."""

from __future__ import annotations

import os
import re
import unittest.mock
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest

from tests.reader.oracle import assert_same, make_store
from tests.reader.test_remote_reading import (
    Published,
    assert_all_same,
    epoch,
    make_reading_store,
    published_in_memory,
    run_forked,
)
from tokenloom.errors import StoreError
from tokenloom.reader import producer
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.mixture import Mixture
from tokenloom.reader.samples import prepare_shards
from tokenloom.storage.cache.partial_shard import PartialShard, ShardRequest
from tokenloom.storage.cache.shard_cache import ShardCache

_T = 16
_NUM_SHARDS = 12
pytestmark = pytest.mark.timeout(60)  # the fault would be to wait forever


@pytest.fixture(scope="module")
def by_blocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """Twelve shards with small blocks."""
    with published_in_memory(make_reading_store(tmp_path_factory.mktemp("small")), "small") as found:
        yield found


def small_cache(published: Published, folder: Path, share: float = 1.0) -> ShardCache:
    """Return a cache with room for so many of the largest shard."""
    return ShardCache(folder, int(share * max(path.stat().st_size for path in published.shards)))


# ---- room for one shard


@pytest.mark.parametrize("access", ["mmap", "range"])
def test_a_mixture_reads_with_a_cache_for_one_shard(access: str, by_blocks: Published, tmp_path: Path) -> None:
    options = {"access": access, "labels": "same"}
    datasets = [by_blocks.open(small_cache(by_blocks, tmp_path), **options) for _ in range(2)]
    local = TokenDataset(by_blocks.reference, seq_len=_T, labels="same")
    found, expected = (
        TokenLoader(Mixture({"a": (one, 1.0), "b": (other, 2.0)}), 4, seed=3, rank=0, world_size=1)
        for one, other in (datasets, (local, local))
    )
    for batch, other, _ in zip(found, expected, range(20), strict=False):
        assert_same(batch, other)


def test_processes_read_single_blocks_with_a_cache_for_one_shard(by_blocks: Published, tmp_path: Path) -> None:
    def read(rank: int) -> None:
        data = by_blocks.open(small_cache(by_blocks, tmp_path, 1.5), access="range")
        options = {"order": "sequential", "rank": rank, "world_size": 2}
        local = TokenDataset(by_blocks.reference, seq_len=_T)
        assert_all_same(epoch(data, **options), epoch(local, **options))
        if rank == 0:
            run_forked(lambda: read(1))  # while this process is alive

    run_forked(lambda: read(0))


@pytest.mark.parametrize("num_removed", [1, 3, 100])
def test_a_shard_that_others_remove_before_it_is_opened_is_downloaded_again(
    num_removed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = make_store(tmp_path / "store", [300])
    open_cached, left = ShardCache.open, [num_removed]

    def complete_and_remove(self: ShardCache, request: ShardRequest, **_: object) -> tuple[Path, PartialShard | None]:
        self.fetch(request)
        path, blocks = open_cached(self, request)
        left[0] -= 1
        if left[0] >= 0:
            path.unlink()
        return path, blocks

    monkeypatch.setattr(ShardCache, "open", complete_and_remove)
    with published_in_memory(reference, f"raced-{num_removed}") as published:
        data = published.open(ShardCache(tmp_path / "cache"))
        if num_removed == 100:
            with pytest.raises(StoreError, match="removed the shard before it was opened; raise its limit"):
                _ = data[3]
        else:
            assert data[3]["input_ids"].tolist() == TokenDataset(reference, seq_len=_T)[3]["input_ids"].tolist()


# ---- the disk


def held_and_removed(folder: Path) -> int:
    """Return the bytes of files that were removed from a folder and are still mapped or open in this process."""
    sizes = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if (path := os.readlink(descriptor)).startswith(str(folder)) and path.endswith(".part (deleted)"):
                sizes[str(os.stat(descriptor).st_ino)] = 512 * os.stat(descriptor).st_blocks
    for line in Path("/proc/self/maps").read_text().splitlines():
        if found := re.match(r"(\w+)-(\w+) \S+ \w+ \S+ (\d+) +(.*) \(deleted\)$", line):
            start, end, inode, path = found.groups()
            if path.startswith(str(folder)):
                sizes[inode] = int(end, 16) - int(start, 16)
    return sum(sizes.values())


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_a_loader_keeps_no_space_of_removed_shards_that_its_next_rows_do_not_need(
    packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "WINDOW_ROWS", 32)
    reference = make_store(tmp_path / "store", [10_000 + i for i in range(_NUM_SHARDS)])
    with published_in_memory(reference, "removed") as published:
        largest = max(path.stat().st_size for path in published.shards)
        data = published.open(small_cache(published, tmp_path / "cache", 4), packing=packing)
        local = TokenDataset(reference, seq_len=_T, packing=packing)
        loader, expected = (TokenLoader(each, 16, num_epochs=1, lanes=2, prefetch=0) for each in (data, local))
        for number, batch in enumerate(loader):
            assert_same(batch, next(expected))
            if number % 5 == 0:
                assert held_and_removed(tmp_path) <= 1.2 * 2 * largest  # whole pages, of two lanes
    assert data.shards.cache is not None
    assert data.shards.cache.stats()["evictions"] > 0  # not of shards that were read by blocks alone
    # Shards in use are removed last. A lane may begin inside a shard, whose other part it reads at the end; one that
    # was downloaded ahead may be removed before its use.
    assert data.shards.cache.stats()["downloads"] <= 2 * _NUM_SHARDS  # not one for each block


# ---- the members of a mixture


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Published]]:
    """Two versions of six shards of one length, and one of twelve."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(published_in_memory(make_store(folder, [2000] * num_shards, seed=number), folder.name))
            for number, num_shards in enumerate((6, 6, 12))
            for folder in [tmp_path_factory.mktemp(f"member{number}")]
        ]


def cached(members: list[Published], cache: ShardCache, num_opened: int = 512) -> list[TokenDataset]:
    """Open them with one cache."""
    return [each.open(cache, max_open_shards=num_opened) for each in members]


def test_members_share_a_cache_by_weight(
    members: list[Published], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least recently used shards are removed, and a member of nine tenths uses its shards nine times as often."""
    monkeypatch.setattr(producer, "WINDOW_ROWS", 32)
    monkeypatch.setattr(producer, "_LOOK_AHEAD", 256)
    heavy, light = cached(members[:2], small_cache(members[0], tmp_path, 6.5))
    loader = TokenLoader(Mixture({"heavy": (heavy, 0.9), "light": (light, 0.1)}), 8, lanes=1, prefetch=0)
    names = [{entry.sha256 for entry in data.shards.entries} for data in (heavy, light)]
    held = []
    for number, _ in zip(range(6 * len(heavy) // 8), loader, strict=False):
        if number % 20 == 0:
            found = {path.stem for path in (tmp_path / "shards").glob("*")}
            held.append([len(found & of_member) for of_member in names])
    loader.close()
    of_heavy, of_light = np.mean(held[len(held) // 4 :], axis=0)
    assert of_heavy > 2 * of_light  # which has a shard in use, and perhaps its next one
    assert of_heavy + of_light > 5


def test_what_members_download_ahead_fits_into_half_of_their_cache_together(
    members: list[Published], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, ahead = small_cache(members[0], tmp_path, 8.5), list[ShardRequest]()
    monkeypatch.setattr(ShardCache, "ahead", lambda _, requests: ahead.extend(requests))
    one, other = cached(members[:2], cache)
    prepare_shards([(data, index) for index in range(6) for data in (one, other)], unittest.mock.Mock(), waits=False)
    shards = [data.shards.request(index) for index in range(2) for data in (one, other)]
    assert ahead == shards  # the four that are needed first


def open_files(folder: Path) -> Counter[str]:
    """Count the descriptors of this process by file in a folder."""
    found = Counter[str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found[os.readlink(descriptor)] += 1
    return Counter({path: number for path, number in found.items() if path.startswith(f"{folder}/shards/")})


def test_a_mixture_has_the_descriptors_of_a_dataset_of_as_many_shards_under_one_limit(
    members: list[Published], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "WINDOW_ROWS", 32)
    most = []
    for number, chosen in enumerate((members[:2], members[2:])):
        cache = ShardCache(tmp_path / str(number))
        datasets = cached(chosen, cache, 4)
        source = Mixture({"a": (datasets[0], 1), "b": (datasets[1], 1)}) if len(datasets) == 2 else datasets[0]
        found, of_a_file = [], []
        for _ in zip(TokenLoader(source, 8, prefetch=0), range(12 * 2000 // _T // 8), strict=False):
            files = open_files(cache.folder)
            found.append(files.total())
            of_a_file.append(max(files.values(), default=0))
        # Now and then, a thread still opens a shard that was dropped meanwhile.
        assert max(found) <= 12
        most.append([sorted(each)[len(each) * 9 // 10] for each in (found, of_a_file)])
    assert most == [[8, 2], [8, 2]]  # of a file, its map; and its lock, which also reads ahead
