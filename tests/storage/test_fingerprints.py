"""Fingerprints of input files: computed from content, and remembered only where that is safe."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from io import BufferedReader
from pathlib import Path
from types import SimpleNamespace
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


_MD5 = hashlib.md5(b"a text").digest()
_AZURE = SimpleNamespace(content_md5=bytearray(_MD5))
_LFS = {"sha256": "5f2b", "size": 7, "pointer_size": 130}


@pytest.mark.parametrize(
    ("info", "digest"),
    [
        ({"md5Hash": base64.b64encode(_MD5).decode(), "crc32c": "kg==", "etag": "CK0="}, f"md5:{_MD5.hex()}"),
        ({"content_settings": _AZURE, "etag": '"0x8D"'}, f"md5:{_MD5.hex()}"),
        ({"blob_id": "0f1e", "lfs": None}, "blob_id:0f1e"),
        ({"blob_id": "0f1e", "lfs": _LFS}, "sha256:5f2b"),
    ],
    ids=["gs", "az", "hub", "hub lfs"],
)
def test_a_remote_file_is_known_by_its_content_wherever_it_is(info: dict[str, object], digest: str) -> None:
    for url in ("gs://bucket/a", "https://host/b"):
        assert remote_fingerprint({**info, "size": 7}, url) == f"{digest}:7"


def test_an_object_of_s3_is_known_by_its_etag() -> None:
    for url in ("s3://bucket/a", "s3a://other/b"):
        assert remote_fingerprint({"ETag": '"9b2"', "size": 7}, url) == "etag:9b2:7"


_WITHOUT_A_HASH: list[dict[str, object]] = [
    {"ETag": '"9b2"'},
    {"ETag": 'W/"9b2"'},
    {"etag": '"0x8D"', "content_settings": SimpleNamespace(content_md5=None)},
    {"crc32c": "kg==", "etag": "CK0="},
]


@pytest.mark.parametrize("info", _WITHOUT_A_HASH, ids=str)
def test_what_is_not_a_hash_of_the_content_vouches_for_its_own_url_alone(info: dict[str, object]) -> None:
    first, again, other = (remote_fingerprint({**info, "size": 7}, f"https://host/get?key={name}") for name in "aab")
    assert first == again
    assert first != other
    assert first != remote_fingerprint({**info, "size": 8}, "https://host/get?key=a")
    assert "host" not in first


@pytest.mark.parametrize("info", [{}, {"ETag": ""}, {"ETag": '""'}, {"etag": None}], ids=str)
def test_a_remote_file_without_hash_and_etag_is_refused(info: dict[str, object]) -> None:
    for url in ("https://host/a", "s3://bucket/a"):
        with pytest.raises(InputError, match=f"^{url}: its server gives neither a hash"):
            remote_fingerprint({**info, "size": 7}, url)
