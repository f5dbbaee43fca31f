"""Fingerprints of input files: computed from content, and remembered only where that is safe."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import xxhash

from tokenloom.errors import InputError
from tokenloom.storage.stores.local import LocalStore
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
    hash_file = fingerprints._hash_file

    def counting(path: str) -> str:
        paths.append(path)
        return hash_file(path)

    monkeypatch.setattr(fingerprints, "_hash_file", counting)
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


def test_the_fingerprint_does_not_depend_on_the_path(store: LocalStore, tmp_path: Path) -> None:
    paths = [write(tmp_path / name, b"same") for name in ("a.txt", "b/c.jsonl")]
    other = write(tmp_path / "d.txt", b"other")
    first, second, third = take(store, *paths, other)
    assert first == second != third


@pytest.mark.usefixtures("later")
def test_unchanged_file_is_not_read_again(store: LocalStore, tmp_path: Path, hashed: list[str]) -> None:
    path = write(tmp_path / "a.txt", b"text")
    first = take(store, path, path)
    assert hashed == [path]
    assert take(store, path) == first[:1]
    assert hashed == [path]


@pytest.mark.usefixtures("later")
def test_changed_file_is_read_again(store: LocalStore, tmp_path: Path, hashed: list[str]) -> None:
    path = write(tmp_path / "a.txt", b"text")
    first = take(store, path)
    write(tmp_path / "a.txt", b"text, longer")
    assert take(store, path) != first
    assert hashed == [path, path]


@pytest.mark.usefixtures("later")
def test_a_change_that_keeps_length_and_mtime_is_noticed(store: LocalStore, tmp_path: Path, hashed: list[str]) -> None:
    # cp -p and rsync can leave both; ctime and inode show it.
    path = write(tmp_path / "a.txt", b"text")
    status = os.stat(path)
    first = take(store, path)
    time.sleep(0.02)  # above the step of the file system's clock
    write(tmp_path / "a.txt", b"TEXT")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (os.stat(path).st_size, os.stat(path).st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert take(store, path) != first
    assert hashed == [path, path]


@pytest.mark.usefixtures("later")
def test_a_file_that_replaces_another_is_read(store: LocalStore, tmp_path: Path, hashed: list[str]) -> None:
    path = write(tmp_path / "a.txt", b"text")
    first = take(store, path)
    os.replace(write(tmp_path / "b.txt", b"TEXT"), path)
    assert take(store, path) != first
    assert hashed == [path, path]


@pytest.mark.usefixtures("later")
def test_moved_file_is_read_and_keeps_its_fingerprint(store: LocalStore, tmp_path: Path, hashed: list[str]) -> None:
    path = write(tmp_path / "a.txt", b"text")
    first = take(store, path)
    os.replace(path, tmp_path / "b.txt")
    assert take(store, str(tmp_path / "b.txt")) == first
    assert hashed == [path, str(tmp_path / "b.txt")]


def test_racy_file_is_not_remembered(store: LocalStore, tmp_path: Path, hashed: list[str]) -> None:
    path = write(tmp_path / "a.txt", b"text")
    assert take(store, path) == take(store, path)
    assert hashed == [path, path]
    assert not store.exists(PATH)


def test_a_file_with_a_time_in_the_future_is_not_remembered(
    store: LocalStore, tmp_path: Path, hashed: list[str]
) -> None:
    path = write(tmp_path / "a.txt", b"text")
    os.utime(path, (time.time() + 86400,) * 2)
    take(store, path)
    take(store, path)
    assert hashed == [path, path]


def test_file_that_changes_while_it_is_read_is_refused(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.txt", b"text")
    hash_file = fingerprints._hash_file

    def grow(path: str) -> str:
        result = hash_file(path)
        with Path(path).open("ab") as file:
            file.write(b" and more")
        return result

    monkeypatch.setattr(fingerprints, "_hash_file", grow)
    with pytest.raises(InputError, match=r"a\.txt: it changed while it was read"):
        take(store, path)


@pytest.mark.usefixtures("later")
def test_a_damaged_fingerprint_file_counts_as_empty(store: LocalStore, tmp_path: Path, hashed: list[str]) -> None:
    path = write(tmp_path / "a.txt", b"text")
    first = take(store, path)
    good = store.read(PATH)
    damaged = [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"files":5}',
        b"\xff",
        good[:-1],
        good.replace(first[0][-4:].encode(), b"0000"),
    ]
    for data in damaged:
        assert data != good
        store.replace(PATH, data)
        hashed.clear()
        assert take(store, path) == first
        assert hashed == [path]
    assert store.read(PATH) == good


@pytest.mark.usefixtures("later")
def test_nothing_is_written_without_new_fingerprints(store: LocalStore, tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"text")
    take(store, path)
    before = store.local(PATH).stat()
    take(store, path)
    assert store.local(PATH).stat().st_ino == before.st_ino
    assert FingerprintMemory(store).save() is None  # type: ignore[func-returns-value]


def test_missing_file_is_an_error(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt: can't be read"):
        take(store, str(tmp_path / "none.txt"))


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


def test_an_object_without_identifying_metadata_is_refused() -> None:
    with pytest.raises(InputError, match="memory://a"):
        remote_fingerprint({"size": 7, "ETag": ""}, "memory://a")
