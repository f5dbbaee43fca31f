"""The shard cache downloads once, keeps its limit, and removes only its own files."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import subprocess
import sys
import time
import uuid
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.processes import wait_until
from tests.servers.s3_server import BUCKET, put
from tokenloom.errors import StoreError
from tokenloom.storage.cache import cache_files, partial_shard
from tokenloom.storage.cache.cache_files import CacheFiles
from tokenloom.storage.cache.partial_shard import ShardRequest
from tokenloom.storage.cache.shard_cache import ShardCache
from tokenloom.storage.formats.blocks import BlockHasher, ShardBlocks, blocks_name, encode_blocks
from tokenloom.storage.formats.records import sha256_of_bytes
from tokenloom.storage.formats.shard import ShardHeader, pack_header
from tokenloom.storage.stores import open_store

FILE_BYTES = 100_000
NUM_FILES = 6
_BLOCK_BYTES = 20_000


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several requests per file."""
    monkeypatch.setattr(partial_shard, "REQUEST_BYTES", _BLOCK_BYTES)


@pytest.fixture
def files(s3_url: str, s3_proxy: FaultyProxy) -> list[ShardRequest]:
    """Files of FILE_BYTES, and their `.blocks`, in a fresh folder of the S3 store."""
    key = f"cached/{uuid.uuid4().hex}"
    store = open_store(f"s3://{BUCKET}/{key}")
    requests = []
    for i in range(NUM_FILES):
        data = os.urandom(FILE_BYTES)
        path, blocks = f"train/{i}.tok", blocks_of(data)
        put(s3_url, f"{key}/{path}", data)
        put(s3_url, f"{key}/{blocks_name(path)}", blocks)
        requests.append(ShardRequest(store, path, sha256_of_bytes(data), len(data), sha256_of_bytes(blocks)))
    return requests


def blocks_of(data: bytes) -> bytes:
    """Return the bytes of the `.blocks` file of a shard."""
    hasher = BlockHasher(_BLOCK_BYTES)
    hasher.update(memoryview(data))
    header = pack_header(ShardHeader(2, 0, 0, 4096, 4096, 4104, bytes(16), bytes(16), {}))  # nobody reads the tokens
    return encode_blocks(ShardBlocks(sha256_of_bytes(data), len(data), hasher.block_bytes, header, hasher.finish()))


def cached(folder: Path) -> set[str]:
    """Return the SHA-256 in the names of complete files; check each against the file's bytes."""
    found = set()
    for path in (folder / "shards").glob("*.tok"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
        found.add(path.stem)
    return found


def partials(folder: Path) -> list[Path]:
    """Return the files of shards that are not complete."""
    return list((folder / "partial").glob("*.part"))


def test_a_file_is_downloaded_once_and_then_found(
    tmp_path: Path, files: list[ShardRequest], s3_proxy: FaultyProxy
) -> None:
    cache = ShardCache(tmp_path / "cache", 10 * FILE_BYTES)
    path = cache.fetch(files[0])
    assert path == tmp_path / "cache" / "shards" / f"{files[0].sha256}.tok"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == files[0].sha256
    assert cache.fetch(files[0]) == path
    assert ShardCache(tmp_path / "cache").fetch(files[0]) == path
    assert s3_proxy.bytes_sent(files[0].path) == FILE_BYTES
    assert partials(tmp_path / "cache") == []
    expected = {"hits": 1, "downloads": 1, "bytes_downloaded": FILE_BYTES, "evictions": 0, "failed_checks": 0}
    assert cache.stats() == expected
    assert (tmp_path / "cache" / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")


def test_the_limit_holds_at_all_times_with_several_processes(tmp_path: Path, files: list[ShardRequest]) -> None:
    limit = int(2.5 * FILE_BYTES)
    most, used = 0, CacheFiles(tmp_path, limit).used
    with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as pool:
        results = [pool.submit(fetch_all, tmp_path, limit, files[i:] + files[:i] + files[:2]) for i in range(3)]
        while not all(result.done() for result in results):
            most = max(most, used())
            time.sleep(0.01)
    found = [result.result() for result in results]
    assert FILE_BYTES < most <= limit
    assert all(one["hits"] + one["downloads"] == NUM_FILES + 2 for one in found)
    assert len(cached(tmp_path)) == 2


def fetch_all(folder: Path, limit: int, requests: list[ShardRequest]) -> dict[str, int]:
    """Fetch files in the order given; return what the cache counted."""
    cache = ShardCache(folder, limit)
    for request in requests:
        cache.fetch(request)
    return cache.stats()


def test_the_least_recently_used_file_is_removed_first(tmp_path: Path, files: list[ShardRequest]) -> None:
    cache = ShardCache(tmp_path, 3 * FILE_BYTES)
    for request in [*files[:3], files[0]]:
        cache.fetch(request)
    cache.fetch(files[3])
    assert cached(tmp_path) == {files[i].sha256 for i in (0, 2, 3)}
    cache.fetch(files[4])
    assert cached(tmp_path) == {files[i].sha256 for i in (0, 3, 4)}
    assert cache.stats()["evictions"] == 2


def test_each_job_keeps_to_its_own_limit(tmp_path: Path, files: list[ShardRequest]) -> None:
    for request in files[:4]:
        ShardCache(tmp_path).fetch(request)
    ShardCache(tmp_path, 2 * FILE_BYTES).fetch(files[0])
    assert len(cached(tmp_path)) == 4  # a hit needs no room
    ShardCache(tmp_path, 2 * FILE_BYTES).fetch(files[4])
    assert cached(tmp_path) == {files[0].sha256, files[4].sha256}


def test_a_file_over_the_limit_is_refused_and_nothing_is_removed(tmp_path: Path, files: list[ShardRequest]) -> None:
    cache = ShardCache(tmp_path, FILE_BYTES)
    cache.fetch(files[0])
    small = ShardCache(tmp_path, FILE_BYTES - 1)
    with pytest.raises(
        StoreError, match=r"no room for a shard of 100,000 bytes.*: TOKENLOOM_CACHE_LIMIT.*: 99,999 bytes"
    ):
        small.fetch(files[1])
    assert cached(tmp_path) == {files[0].sha256}


def test_only_files_of_the_cache_are_removed(tmp_path: Path, files: list[ShardRequest]) -> None:
    cache = ShardCache(tmp_path / "cache", FILE_BYTES)
    cache.fetch(files[0])
    name = "ab" * 32
    names = ["notes.txt", f"{name}.tok", f"shards/{name}.tok.bak", f"shards/{name.upper()}.tok", f"partial/{name}.tok"]
    planted = [tmp_path / "cache" / each for each in names]
    for path in planted:
        path.write_bytes(b"mine")
        os.utime(path, (0, 0))
    (tmp_path / "cache" / "shards" / f"{name}.tok").symlink_to(planted[0])
    (tmp_path / "cache" / "partial" / f"{name}.part").symlink_to(planted[0])
    (folder := tmp_path / "cache" / "shards" / f"{'cd' * 32}.tok").mkdir()
    for request in files:
        cache.fetch(request)
    assert {path.read_bytes() for path in planted} == {b"mine"}
    assert (tmp_path / "cache" / "partial" / f"{name}.part").is_symlink() and folder.is_dir()
    found = {path.stem for path in (tmp_path / "cache" / "shards").glob("*.tok")}
    assert found == {files[-1].sha256, name, name.upper(), folder.stem}


def test_an_error_ahead_is_raised_by_the_fetch_that_needs_the_file(
    tmp_path: Path, files: list[ShardRequest], s3_proxy: FaultyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    s3_proxy.always = "403"
    cache = ShardCache(tmp_path)
    for request in files:
        cache.ahead([request])
        wait_until(lambda: cache._process().num_threads == 0)
    with pytest.raises(StoreError, match="no permission to read it"):
        cache.fetch(files[0])
    assert caplog.text.count("ahead of use") == 1  # one cause, one line a minute
    s3_proxy.always = "ok"
    cache.fetch(files[0])


def test_a_program_exits_while_downloads_are_queued(
    tmp_path: Path, files: list[ShardRequest], s3_proxy: FaultyProxy
) -> None:
    s3_proxy.always = "hold"
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from tokenloom.storage.cache import partial_shard\n"
        "from tokenloom.storage.stores import open_store\n"
        "from tokenloom.storage.cache.partial_shard import ShardRequest\n"
        "from tokenloom.storage.cache.shard_cache import ShardCache\n"
        "partial_shard.REQUEST_BYTES = 20_000\n"
        f"store = open_store({files[0].store.root!r})\n"
        f"requests = [ShardRequest(store, *rest) for rest in {[list(request[1:]) for request in files]!r}]\n"
        f"ShardCache(Path({str(tmp_path)!r}), io_threads=1).ahead(requests)\n"
        "time.sleep(0.5)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert len(cached(tmp_path)) < 2, done.stderr  # it did not wait for the others, or for an answer that never comes


def test_a_read_only_cache_is_readable_and_named_in_errors(
    tmp_path: Path, files: list[ShardRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ShardCache(tmp_path)
    path = cache.fetch(files[0])

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in ("pathlib.Path.mkdir", "pathlib.Path.replace", "pathlib.Path.unlink", "os.utime"):
        monkeypatch.setattr(name, refuse)
    assert ShardCache(tmp_path).fetch(files[0]) == path
    with pytest.raises(StoreError, match=rf"{tmp_path}: .*Permission denied; give this user .*set TOKENLOOM_CACHE"):
        cache.fetch(files[1])


@pytest.mark.parametrize(
    ("text", "limit"),
    [("1", 1), ("50GB", 50 * 10**9), ("50 gib", 50 * 2**30), ("1.5TB", 1.5 * 10**12), ("2M", 2 * 10**6), ("7B", 7)],
)
def test_the_limit_is_read_from_the_environment(
    text: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path))
    monkeypatch.setenv("TOKENLOOM_CACHE_LIMIT", text)
    cache = ShardCache.default()
    assert (cache.folder, cache.limit_bytes) == (tmp_path, limit)
    assert list(tmp_path.iterdir()) == []
    with ThreadPoolExecutor(8) as threads:  # datasets that are opened side by side share its downloads ahead
        assert {*threads.map(lambda _: ShardCache.default(), range(50))} == {cache}


@pytest.mark.parametrize("text", ["much", "-1", "0", "5 apples", "1e9", "9" * 400])
def test_a_limit_that_is_not_a_size_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE_LIMIT", text)
    with pytest.raises(StoreError, match=r"TOKENLOOM_CACHE_LIMIT is '.*': write bytes, such as 100GB"):
        ShardCache.default()


def test_the_default_limit_leaves_part_of_the_disk_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENLOOM_CACHE_LIMIT", raising=False)
    free = 50 * 10**9
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": free}))
    assert cache_files.default_limit(tmp_path / "none" / "yet") == 40 * 10**9
    (tmp_path / "shards").mkdir()
    with (tmp_path / "shards" / f"{'ab' * 32}.tok").open("wb") as file:
        file.truncate(5 * 10**9)
    assert cache_files.default_limit(tmp_path) == 44 * 10**9  # the contents of the cache count as free
    free = 10**12
    assert cache_files.default_limit(tmp_path) == 100 * 10**9


@pytest.mark.parametrize("wrong", [{"limit_bytes": 0}, {"io_threads": 0}])
def test_numbers_below_one_are_refused(wrong: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be at least 1, not 0"):
        ShardCache(tmp_path, **wrong)
