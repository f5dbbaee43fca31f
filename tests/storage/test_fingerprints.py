"""Fingerprints of input files: computed from content, and remembered only where that is safe."""

from __future__ import annotations

import os
import time
from io import BufferedReader
from pathlib import Path
from typing import Any

import pytest
import xxhash

from tokenloom.errors import InputError
from tokenloom.storage.formats.records import sign
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.stores.local_files import open_regular
from tokenloom.storage.work import fingerprints
from tokenloom.storage.work.fingerprints import PATH, FingerprintMemory, remote_fingerprint

TEN_SECONDS = 10_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files that were read, in order."""
    paths: list[str] = []

    def counting(path: str) -> BufferedReader:
        paths.append(path)
        return open_regular(path)

    monkeypatch.setattr(fingerprints, "open_regular", counting)
    return paths


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock of the fingerprints ten seconds ahead, so that a file just written is old."""
    clock = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: clock() + TEN_SECONDS)


def write(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def take(store: LocalStore, *paths: str) -> list[str]:
    """Take fingerprints as a build does: load the memory, look up or read, save."""
    memory = FingerprintMemory(store)
    found = [memory.local(path)[0] for path in paths]
    memory.save()
    return found


@pytest.mark.parametrize("data", [b"", b"text\n", bytes(range(256)) * 40_000])
def test_fingerprint_is_the_hash_of_the_content(store: LocalStore, tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path / "a.txt", data)
    assert take(store, path) == [f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}"]


@pytest.mark.usefixtures("later")
def test_unchanged_file_is_not_read_again(store: LocalStore, tmp_path: Path, hashed: list[str]) -> None:
    path = write(tmp_path / "a.txt", b"text")
    first = take(store, path, path)
    before = store.local(PATH).stat()
    assert take(store, path) == first[:1]
    assert hashed == [path]
    assert store.local(PATH).stat().st_ino == before.st_ino  # nothing new: it is not written again


@pytest.mark.usefixtures("later")
def test_a_file_changed_as_rsync_can_is_read_again(store: LocalStore, tmp_path: Path, hashed: list[str]) -> None:
    path = write(tmp_path / "a.txt", b"text")
    first, status = take(store, path), os.stat(path)
    time.sleep(0.02)  # above the step of the file system's clock
    write(Path(path), b"TEXT")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # same length and time; ctime shows the change
    assert take(store, path) != first
    assert hashed == [path, path]


@pytest.mark.parametrize("seconds", [0, 86_400])
def test_a_file_of_this_moment_or_of_the_future_is_not_remembered(
    seconds: int, store: LocalStore, tmp_path: Path, hashed: list[str]
) -> None:
    path = write(tmp_path / "a.txt", b"text")
    os.utime(path, (time.time() + seconds,) * 2)
    assert take(store, path) == take(store, path)
    assert hashed == [path, path]
    assert not store.exists(PATH)


def test_file_that_changes_while_it_is_read_is_refused(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.txt", b"text")

    def grow(path: str) -> BufferedReader:
        file = open_regular(path)
        write(Path(path), b"text and more")
        return file

    monkeypatch.setattr(fingerprints, "open_regular", grow)
    with pytest.raises(InputError, match=r"a\.txt: it changed while it was read"):
        take(store, path)


@pytest.mark.usefixtures("later")
def test_a_damaged_fingerprint_file_counts_as_empty(store: LocalStore, tmp_path: Path, hashed: list[str]) -> None:
    path = write(tmp_path / "a.txt", b"text")
    first = take(store, path)
    good = store.read(PATH)
    shapes: list[dict[str, Any]] = [{}, {"files": []}, {"files": {"a": 1}}, {"files": {"a": [[1, 2], "x"]}}]
    damaged = [b"", b"[]", b"{}", b"null", b'{"files":5}', b"\xff"]
    damaged += [good[:-1], good.replace(first[0][-4:].encode(), b"0000"), *map(sign, shapes)]
    for data in damaged:
        assert data != good
        store.replace(PATH, data)
        hashed.clear()
        assert take(store, path) == first
        assert hashed == [path]
    assert store.read(PATH) == good


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"ETag": '"9b2"', "size": 7}, "etag:9b2:7"),
        ({"etag": "9b2", "size": 7}, "etag:9b2:7"),
        ({"generation": 1712, "size": 7}, "generation:1712:7"),
        ({"content_md5": "q1w2==", "size": 0}, "content_md5:q1w2==:0"),
    ],
)
def test_an_object_is_identified_by_metadata_of_its_store(info: dict[str, object], expected: str) -> None:
    assert remote_fingerprint(info, "s3://bucket/a") == expected
    with pytest.raises(InputError, match="s3://bucket/a"):
        remote_fingerprint({"size": 7, "ETag": ""}, "s3://bucket/a")
