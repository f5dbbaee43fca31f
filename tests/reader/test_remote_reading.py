"""Reading a remote store through the cache: the same batches as locally, whatever the server and other readers do."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.counts import count
from tests.reader.oracle import FIELDS, PACKINGS, assert_same, make_store, shard_paths
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, put, upload
from tokenloom.errors import StoreError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.storage.cache.cache_files import CacheFiles
from tokenloom.storage.cache.shard_cache import ShardCache
from tokenloom.storage.stores import remote, remote_retries
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions.tags import move, newest_number

_T = 16
_BATCH = 4
_NUM_SHARDS = 12
_BLOCK_BYTES = 5000
_OFFSETS_START = 48  # the place of this field in a shard's header
_DRIVER = "import sys; from tests.reader import test_remote_reading as t; getattr(t, sys.argv[1])(*sys.argv[2:])"

Batches = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several requests per shard, and short waits between retries."""
    monkeypatch.setattr(remote, "BLOCK_BYTES", _BLOCK_BYTES)
    monkeypatch.setattr(remote_retries, "FIRST_WAIT_SECONDS", 0.01)


@dataclass
class Published:
    """A version in a local folder, and the same version in the S3 store."""

    reference: str
    url: str
    server: str
    key: str

    @property
    def shards(self) -> list[Path]:
        """The local files of the shards."""
        return shard_paths(self.reference)

    @property
    def num_bytes(self) -> int:
        """The total size of the shards."""
        return sum(path.stat().st_size for path in self.shards)

    def name(self, index: int) -> str:
        """Return the name of a shard, relative to the dataset's folder."""
        return self.shards[index].relative_to(self.reference).as_posix()

    def put(self, index: int, data: bytes) -> None:
        """Write a shard in the S3 store."""
        put(self.server, f"{self.key}/data/{self.name(index)}", data)

    def local(self, **options: Any) -> Batches:
        """Return the batches of an epoch, read from the local folder."""
        return epoch(TokenDataset(self.reference, seq_len=_T, **options), prefetch=0)

    def open(self, cache: ShardCache, **options: Any) -> TokenDataset:
        """Open the dataset in the S3 store."""
        return TokenDataset(self.url, seq_len=_T, cache=cache, **options)


def publish(server: str, reference: str) -> Published:
    """Upload a version."""
    key = f"reading/{uuid.uuid4().hex}"
    upload(server, Path(reference).parent, key)
    return Published(reference, f"s3://{BUCKET}/{key}/data", server, key)


@contextmanager
def published_in_memory(reference: str, name: str) -> Iterator[Published]:
    """Copy a version to NAME/data in fsspec's memory store: S3 clients are slow to start."""
    system = fsspec.filesystem("memory")
    system.put(reference, f"/{name}/data", recursive=True)
    try:
        yield Published(reference, f"memory://{name}/data", "", "")
    finally:
        system.rm(f"/{name}", recursive=True)


def make_reading_store(folder: Path) -> str:
    """Write a version of small shards; return its reference."""
    return make_store(folder, [2000 + 100 * i for i in range(_NUM_SHARDS)])


@pytest.fixture(scope="module")
def published(s3_url: str, folder: Path) -> Published:
    """A version that no test changes."""
    return publish(s3_url, make_reading_store(folder / "remote"))


@pytest.fixture(scope="module")
def in_memory(folder: Path) -> Iterator[Published]:
    """A version in fsspec's memory store that no test changes."""
    with published_in_memory(make_reading_store(folder / "memory"), "reading") as found:
        yield found


def loader_of(data: TokenDataset, **options: Any) -> TokenLoader:
    """Return the loader that all tests use."""
    return TokenLoader(data, _BATCH, **{"seed": 3, "num_epochs": 1, "drop_last": False, **options})


def epoch(data: TokenDataset, **options: Any) -> Batches:
    """Return the batches of an epoch."""
    return list(loader_of(data, **options))


def assert_all_same(found: Batches, expected: Batches) -> None:
    """Check that two epochs are equal, element by element."""
    assert len(found) == len(expected) > 10
    for batch, other in zip(found, expected, strict=True):
        assert_same(batch, other)


def cached(cache: ShardCache) -> list[Path]:
    """Return the complete files of a cache."""
    return sorted((cache.folder / "shards").glob("*.tok"))


def downloads_of(proxy: FaultyProxy, published: Published) -> list[float]:
    """Return how often each shard was downloaded: bytes sent over its length."""
    return [proxy.bytes_sent(published.name(i)) / path.stat().st_size for i, path in enumerate(published.shards)]


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds, for at most 30 s."""
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---- the same batches


@pytest.mark.parametrize(
    ("kind", "packing", "order"),
    [
        ("published", "concat", "block"),
        ("published", "best_fit", "full"),
        *(("in_memory", packing, order) for packing in PACKINGS for order in ("block", "full")),
    ],
)
def test_a_remote_epoch_is_the_local_one(
    kind: str, packing: str, order: str, s3_proxy: FaultyProxy, cache: ShardCache, request: pytest.FixtureRequest
) -> None:
    store: Published = request.getfixturevalue(kind)
    fields = FIELDS if order == "full" else ()
    expected = epoch(TokenDataset(store.reference, seq_len=_T, packing=packing, fields=fields), order=order)
    data = store.open(cache, packing=packing, fields=fields)
    for prefetch in (None, 0):
        assert_all_same(epoch(data, order=order, prefetch=prefetch), expected)
    assert cache.stats()["downloads"] == _NUM_SHARDS


def test_samples_and_workers_of_a_dataloader_read_the_same_tokens(
    published: Published, s3_proxy: FaultyProxy, cache: ShardCache
) -> None:
    local = TokenDataset(published.reference, seq_len=_T)
    data = published.open(cache)
    assert data[7]["input_ids"].tolist() == local[7]["input_ids"].tolist()  # opens connections before the fork
    stream = data.iterable(batch_size=_BATCH, seed=3, num_epochs=1, drop_last=False)
    found = list(DataLoader(stream, batch_size=None, num_workers=2))
    assert_all_same(found, published.local())
    assert downloads_of(s3_proxy, published) == [1] * _NUM_SHARDS


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_a_cache_smaller_than_the_split_gives_the_same_batches_within_its_limit(
    packing: str, in_memory: Published, tmp_path: Path
) -> None:
    limit = 4 * max(path.stat().st_size for path in in_memory.shards)
    cache = ShardCache(tmp_path, limit)
    used = CacheFiles(tmp_path, limit).used
    found, most = [], 0
    for batch in loader_of(in_memory.open(cache, packing=packing, max_open_shards=2), lanes=3):
        found.append(batch)
        most = max(most, used())
    assert 0 < most <= limit < in_memory.num_bytes / 2
    local = TokenDataset(in_memory.reference, seq_len=_T, packing=packing)
    assert_all_same(found, epoch(local, lanes=3))
    assert cache.stats()["evictions"] > 0


def test_a_shard_that_was_evicted_from_the_cache_can_still_be_read(in_memory: Published, cache: ShardCache) -> None:
    loader = loader_of(in_memory.open(cache))
    found = [next(loader)]
    for prefetched in range(4):
        for path in cached(cache):
            path.unlink()
        found += [next(loader) for _ in range(5 * prefetched)]
    assert_all_same([*found, *loader], in_memory.local())


# ---- sharing a cache


def test_loaders_that_share_a_cache_download_each_shard_once(
    published: Published, s3_proxy: FaultyProxy, cache: ShardCache
) -> None:
    expected = published.local()
    data = published.open(cache)
    loaders = [loader_of(data), loader_of(published.open(cache)), loader_of(published.open(ShardCache(cache.folder)))]
    found: list[Batches] = [[] for _ in loaders]
    for batches in zip(*loaders, strict=True):
        for taken, batch in zip(found, batches, strict=True):
            taken.append(batch)
    for taken in found:
        assert_all_same(taken, expected)
    assert downloads_of(s3_proxy, published) == [1] * _NUM_SHARDS


def read_epoch(reference: str, folder: str, name: str = "printed") -> None:
    """Run in a process that reads: write a digest of each batch, then the statistics of the cache, to a file."""
    remote_retries.FIRST_WAIT_SECONDS, remote.BLOCK_BYTES = 0.01, _BLOCK_BYTES
    cache = ShardCache(Path(folder) / "cache")
    with (Path(folder) / name).open("w") as file:
        for batch in loader_of(TokenDataset(reference, seq_len=_T, cache=cache)):
            print(digest(batch), file=file, flush=True)
        print(json.dumps(cache.stats()), file=file)


def read_epochs(reference: str, folder: str, times: str) -> None:
    """Run in processes that read the same batches at the same time."""
    run_children(int(times), lambda number: read_epoch(reference, folder, str(number)))


def run_children(times: int, work: Callable[[int], None]) -> None:
    """Fork processes that exit as a script does, and wait for them; to import torch in each would take long."""
    children = []
    for number in range(times):
        if not (child := os.fork()):
            work(number)
            sys.exit(0)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * times


def digest(batch: dict[str, Any]) -> str:
    """Return a short digest of a batch."""
    return str(zlib.crc32(torch.stack([batch["input_ids"], batch["labels"]]).numpy().tobytes()))


def start(function: str, *args: object) -> subprocess.Popen[str]:
    """Start a process that runs a function of this module."""
    command = [sys.executable, "-c", _DRIVER, function, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def assert_ends(process: subprocess.Popen[str]) -> None:
    """Check that a process exits with 0 within two minutes."""
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_processes_that_share_a_cache_download_each_shard_once(
    published: Published, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    assert_ends(start("read_epochs", published.url, tmp_path, 2))
    printed = [(tmp_path / str(number)).read_text().splitlines() for number in range(2)]
    expected = [digest(batch) for batch in published.local()]
    assert [lines[:-1] for lines in printed] == [expected, expected]
    assert sum(json.loads(lines[-1])["downloads"] for lines in printed) == _NUM_SHARDS
    assert downloads_of(s3_proxy, published) == [1] * _NUM_SHARDS


def test_another_process_continues_with_the_cache_of_a_killed_one(
    published: Published, s3_proxy: FaultyProxy, cache: ShardCache
) -> None:
    s3_proxy.always = "slow"
    process = start("read_epoch", published.url, cache.folder.parent)
    wait_until(lambda: process.poll() is not None or len(cached(cache)) >= 3)
    process.send_signal(signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err
    s3_proxy.always = "ok"
    kept = len(cached(cache))
    assert kept < _NUM_SHARDS
    assert_all_same(epoch(published.open(cache)), published.local())
    assert cache.stats()["downloads"] == _NUM_SHARDS - kept
    assert len(cached(cache)) == _NUM_SHARDS
    assert not [path for path in (cache.folder / "partial").iterdir() if path.name[:64].isalnum()]


def end_early(reference: str, folder: str, times: str) -> None:
    """Run in processes that take one batch, and exit while shards are being downloaded."""
    remote.BLOCK_BYTES = _BLOCK_BYTES
    kept = []  # the loader stays alive, as a global variable of a script does

    def take_one(number: int) -> None:
        cache = ShardCache(Path(folder) / str(number))
        data = TokenDataset(reference, seq_len=_T, packing=PACKINGS[number % 2], cache=cache)
        kept.append(loader_of(data))
        next(kept[0])

    run_children(int(times), take_one)


def test_a_program_can_exit_while_shards_are_downloaded(
    published: Published, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    s3_proxy.always = "slow"
    times = count(3, 50)
    assert_ends(start("end_early", published.url, tmp_path, times))
    done = [len(list((tmp_path / str(number) / "shards").glob("*.tok"))) for number in range(times)]
    assert max(done) < _NUM_SHARDS


# ---- damaged copies


def damage_header(data: bytes) -> bytes:
    """Return a shard with one bit of its header changed."""
    return data[:30] + bytes([data[30] ^ 4]) + data[31:]


def damage_token(data: bytes) -> bytes:
    """Return a shard with one bit of a token changed."""
    return data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]


def damage_offset(data: bytes) -> bytes:
    """Return a shard with one bit of a document offset changed."""
    (offsets_start,) = struct.unpack_from("<Q", data, _OFFSETS_START)
    place = offsets_start + 16
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "options"),
    [
        (damage_header, {}),
        (lambda data: data[:-1], {}),
        (lambda data: data[:100], {"packing": "best_fit"}),
        (lambda data: b"", {}),
        (lambda data: bytes(len(data)), {"access": "pread"}),
        (damage_offset, {"packing": "document"}),
        (damage_offset, {"fields": ("position_ids",)}),
        (damage_offset, {"packing": "best_fit", "access": "pread"}),
        (damage_token, {"verify": "full"}),
        (damage_token, {"verify": "full", "packing": "best_fit"}),
        (damage_offset, {"verify": "full"}),
    ],
)
def test_a_copy_that_is_damaged_on_disk_is_downloaded_again(
    damage: Callable[[bytes], bytes],
    options: dict[str, Any],
    in_memory: Published,
    cache: ShardCache,
) -> None:
    expected = in_memory.local(**options)
    assert_all_same(epoch(in_memory.open(cache, **options)), expected)
    good = {path: path.read_bytes() for path in cached(cache)}
    for path in list(good)[:4]:
        path.unlink()  # the map of the first loader stays as it was
        path.write_bytes(damage(good[path]))
    again = ShardCache(cache.folder)
    assert_all_same(epoch(in_memory.open(again, **options)), expected)
    # Two threads may find the same damage at once.
    assert again.stats()["downloads"] == again.stats()["failed_checks"] >= 4
    assert {path: path.read_bytes() for path in cached(cache)} == good


# ---- servers


def faults(seed: int, share: float) -> Iterator[str]:
    """Yield the fate of each request: for a `share` of them an error, a truncation, a lost connection or a delay."""
    rng = random.Random(seed)
    while True:
        yield rng.choice(["503", "cut", "drop", "slow", "flip", "500"]) if rng.random() < share else "ok"


@pytest.mark.parametrize("seed", range(count(2, 200)))
def test_a_tenth_of_requests_failing_costs_little_and_changes_no_batch(
    seed: int, published: Published, s3_proxy: FaultyProxy, cache: ShardCache
) -> None:
    packing = PACKINGS[seed % 2]
    data = published.open(cache, packing=packing)  # a damaged manifest is an error
    fates, num_before = list(islice(faults(seed, 0.1), 300)), len(s3_proxy.seen)
    s3_proxy.plan(*fates)
    assert_all_same(epoch(data), published.local(packing=packing))
    num_wasted = sum(fate in ("cut", "flip") for fate in fates[: len(s3_proxy.seen) - num_before])
    largest = max(path.stat().st_size for path in shard_paths(published.reference))
    sent = sum(n for method, name, n in s3_proxy.seen if method == "GET" and name.endswith(".tok"))
    counted = 0 if packing == "concat" else _NUM_SHARDS * (4096 + 8 * 400)  # headers and offsets, before any shard
    assert sent <= published.num_bytes + num_wasted * largest + counted
    assert len(cached(cache)) == _NUM_SHARDS


@pytest.mark.parametrize(("always", "prefetch"), [("slow", 4), ("503", 0), ("503", 4), ("403", 4)])
def test_the_reader_waits_for_a_slow_server_and_names_one_that_fails(
    always: str, prefetch: int, published: Published, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    largest = max(path.stat().st_size for path in published.shards)
    cache = ShardCache(tmp_path, 4 * largest)  # at most two of the 12 shards are downloaded ahead
    loader = loader_of(published.open(cache), prefetch=prefetch, lanes=1)
    found = [next(loader) for _ in range(3)]
    s3_proxy.always = always
    if always == "slow":
        found += [next(loader) for _ in range(150)]
    else:
        with pytest.raises(StoreError, match=rf"{published.url}/.*\.tok: "):
            found.extend(iter(loader.__next__, None))
    s3_proxy.always = "ok"
    assert_all_same([*found, *loader], epoch(TokenDataset(published.reference, seq_len=_T), lanes=1))


@pytest.mark.parametrize(("packing", "prefetch"), [("concat", 0), ("document", 4)])
def test_a_shard_that_is_missing_from_the_store_is_named_and_reading_continues_once_it_is_back(
    prefetch: int, packing: str, s3_url: str, s3_proxy: FaultyProxy, cache: ShardCache, tmp_path: Path
) -> None:
    published = publish(s3_url, make_reading_store(tmp_path / "store"))
    data = published.open(cache, packing=packing)
    good = published.shards[5].read_bytes()
    delete(s3_url, f"{published.key}/data/{published.name(5)}")
    loader = loader_of(data, prefetch=prefetch, order="sequential")
    found: Batches = []
    where = re.escape(f"{published.url}/{published.name(5)}")
    with pytest.raises(StoreError, match=f"{where}: missing from a published version; restore it"):
        found.extend(iter(loader.__next__, None))
    with pytest.raises(StoreError, match=f"{where}: missing"):
        data[int(data.counts[:6].sum()) - 1]
    published.put(5, good)
    local = TokenDataset(published.reference, seq_len=_T, packing=packing)
    assert_all_same([*found, *loader], epoch(local, order="sequential"))


def delete(server: str, key: str) -> None:
    """Delete an object."""
    import http.client
    from urllib.parse import quote, urlsplit

    connection = http.client.HTTPConnection(urlsplit(server).netloc, timeout=30)
    headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"}
    connection.request("DELETE", quote(f"/{BUCKET}/{key}"), headers=headers)
    assert connection.getresponse().status == 204
    connection.close()


# ---- looking ahead, nodes, tags


@pytest.mark.parametrize("packing", ["best_fit"] if count(0, 1) == 0 else PACKINGS)
def test_the_next_shards_are_downloaded_before_they_are_needed(
    packing: str, published: Published, s3_proxy: FaultyProxy, cache: ShardCache
) -> None:
    data = published.open(cache, packing=packing)
    loader = loader_of(data, lanes=1, prefetch=0)
    next(loader)  # from one shard or two
    wait_until(lambda: len(cached(cache)) == _NUM_SHARDS)
    requests = len(s3_proxy.seen)
    assert len(data.shards) <= 2
    assert len(list(loader)) == len(loader) - 1
    assert len(s3_proxy.seen) == requests
    assert downloads_of(s3_proxy, published)[3] >= 1


def test_looking_ahead_takes_at_most_half_of_the_cache(in_memory: Published, tmp_path: Path) -> None:
    largest = max(path.stat().st_size for path in in_memory.shards)
    cache = ShardCache(tmp_path, 6 * largest)
    loader = loader_of(in_memory.open(cache), lanes=1, prefetch=0)
    next(loader)
    wait_until(lambda: len(cached(cache)) >= 3)
    for _ in range(20):
        next(loader)
    assert cache.stats()["evictions"] == 0
    assert len(cached(cache)) <= 5


def test_a_node_downloads_only_its_share_and_all_ranks_together_read_the_epoch(tmp_path: Path) -> None:
    num_nodes, node_ranks, num_shards = 4, 8, 256
    reference = make_store(tmp_path / "store", [300 + i % 50 for i in range(num_shards)])
    system = fsspec.filesystem("memory")
    system.put(str(tmp_path / "store"), "/nodes", recursive=True)
    paths = shard_paths(reference)
    num_bytes = sum(path.stat().st_size for path in paths)
    samples: list[str] = []
    for node in range(num_nodes):
        cache = ShardCache(tmp_path / f"node{node}")
        data = TokenDataset("memory://nodes/data", seq_len=_T, cache=cache)
        for rank in range(node * node_ranks, (node + 1) * node_ranks):
            loader = loader_of(data, rank=rank, world_size=num_nodes * node_ranks, prefetch=0, lanes=64)
            for batch in loader:
                rows = zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True)
                samples += [str(row) for row in rows if row[1][0] != -100]
        assert cache.stats()["bytes_downloaded"] <= 1.1 / num_nodes * num_bytes
    local = TokenDataset(reference, seq_len=_T)
    whole = (local[i] for i in range(len(local)))
    assert sorted(samples) == sorted(str((x["input_ids"].tolist(), x["labels"].tolist())) for x in whole)
    system.rm("/nodes", recursive=True)


def test_a_remote_tag_names_the_last_version_in_its_log(
    s3_url: str, s3_proxy: FaultyProxy, cache: ShardCache, tmp_path: Path
) -> None:
    key = f"tags/{uuid.uuid4().hex}"
    url = f"s3://{BUCKET}/{key}/data"
    make_store(tmp_path, [500, 400], seed=1)
    (first,) = (path.name for path in (tmp_path / "data" / "versions").iterdir())
    upload(s3_url, tmp_path, key)
    old = TokenDataset(url, seq_len=_T, cache=cache)
    assert old.manifest["version"] == first
    make_store(tmp_path, [600, 700], seed=2)
    (second,) = (path.name for path in (tmp_path / "data" / "versions").iterdir() if path.name != first)
    upload(s3_url, tmp_path, key)
    assert TokenDataset(f"{url}@latest", seq_len=_T, cache=cache).manifest["version"] == second
    state = loader_of(old).state_dict()
    store = LocalStore(str(tmp_path / "data"))
    move(store, "latest", first, newest_number(store, "latest"), "rolled back")
    upload(s3_url, tmp_path, key)
    data = TokenDataset(f"{url}@latest", seq_len=_T, cache=cache)
    assert (data.manifest["version"], data.reference) == (first, f"{url}@{first}")
    again = TokenLoader.from_state(f"s3://{BUCKET}/{key}", state, _BATCH, num_epochs=1, dataset={"cache": cache})
    local = TokenDataset(f"{tmp_path}/data@{first}", seq_len=_T)
    for batch, other in zip(again, TokenLoader(local, _BATCH, seed=3, num_epochs=1), strict=True):
        assert_same(batch, other)
    with pytest.raises(StoreError, match="none"):
        TokenDataset(f"{url}@none", seq_len=_T)
    assert np.array_equal(data.counts, local.counts)
