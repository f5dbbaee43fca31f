"""Durable, atomic writes: a name has a complete file or none, and the file is on the device when the call returns."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.conformance import creates
from tokenloom.errors import StoreError
from tokenloom.process import has_ended, process_name
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.local import LocalStore, make_folder
from tokenloom.storage.stores.store import TMP, join_ranges

PATH = "versions/0123456789abcdef/train/000000.tok"
Writer = Callable[[LocalStore, str, bytes], None]


def write_by_block(store: LocalStore, path: str, data: bytes) -> None:
    with store.writing(path) as file:
        local_files.write_all(file, data)


WRITERS: list[Writer] = [LocalStore.create, LocalStore.replace, write_by_block]
WRITER_NAMES = ["create", "replace", "writing"]
each_writer = pytest.mark.parametrize("write", WRITERS, ids=WRITER_NAMES)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store" / "news")


def files(store: LocalStore) -> dict[str, bytes]:
    """Return every file under the store, temporaries included."""
    found = (path for path in store.root.rglob("*") if path.is_file())
    return {path.relative_to(store.root).as_posix(): path.read_bytes() for path in found}


FAILURES = [errno.ENOSPC, errno.EACCES]


@each_writer
@pytest.mark.parametrize("number", FAILURES)
@pytest.mark.parametrize("step", ["write", "rename"])
def test_a_write_that_fails_names_path_and_reason_and_leaves_nothing(
    store: LocalStore, write: Writer, step: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail_to_write(file: IO[bytes], data: bytes) -> None:
        calls.append(data)
        file.write(data[: len(data) // 2])
        raise OSError(number, os.strerror(number))

    def fail_to_rename(source: Path, target: Path) -> None:
        calls.append(b"")
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    if step == "write":
        monkeypatch.setattr(local_files, "write_all", fail_to_write)
    else:
        monkeypatch.setattr(os, "replace", fail_to_rename)
        monkeypatch.setattr(os, "link", fail_to_rename)
    with pytest.raises(StoreError) as caught:
        write(store, PATH, bytes(1000))
    assert len(calls) == 1
    assert_reported(caught.value, store, number)
    assert files(store) == {}


def _without_links(number: int) -> Callable[[Path, Path], None]:
    """Return an os.link of a file system that has none, or with EXDEV none between folders."""
    link = os.link

    def fail(source: Path, target: Path) -> None:
        if number != errno.EXDEV or source.parent != target.parent:
            raise OSError(number, os.strerror(number), str(source), None, str(target))
        link(source, target)

    return fail


def test_a_name_is_created_once_where_files_are_linked_only_within_a_folder(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", _without_links(errno.EXDEV))
    assert store.creates_exclusively()
    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(lambda i: creates(store, PATH, b"%d" % i), range(8)))
    assert won.count(True) == 1
    assert files(store) == {PATH: b"%d" % won.index(True)}


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_hard_links_is_refused_with_the_reason(
    store: LocalStore, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", _without_links(number))
    message = r"the file system has no hard links.*choose a store on another file system"
    for use in (store.creates_exclusively, lambda: store.create(PATH, b"data")):
        with pytest.raises(StoreError, match=message):
            use()
        assert files(store) == {}


def assert_reported(error: StoreError, store: LocalStore, number: int) -> None:
    assert str(store.local(PATH)) in str(error)
    assert os.strerror(number) in str(error)
    assert "same command again" in str(error)
    assert isinstance(error.__cause__, OSError)
    assert error.__cause__.errno == number
    assert number != errno.ENOSPC or "free space" in str(error)


@each_writer
@pytest.mark.parametrize("place", ["", "versions", "work", "versions/0123456789abcdef/train"])
def test_a_file_in_place_of_a_folder_is_not_mistaken_for_another_writer(
    store: LocalStore, write: Writer, place: str
) -> None:
    # Not FileExistsError, which the writer of a manifest or tag would interpret as "somebody else was first".
    blocker = store.local(place)
    blocker.parent.mkdir(parents=True, exist_ok=True)
    blocker.write_bytes(b"in the way")
    with pytest.raises(StoreError, match="Not a directory"):
        write(store, PATH, b"data")
    assert blocker.read_bytes() == b"in the way"


def test_only_stale_temporaries_are_removed(store: LocalStore) -> None:
    store.remove_stale_temporaries()
    assert not store.root.exists()
    ages = {"old": 25 * 3600, "a_month": 30 * 86400, "fresh": 0, "hours": 23 * 3600}
    for name, seconds in ages.items():
        store.replace(f"{TMP}/{name}", b"", durable=False)
        os.utime(store.local(f"{TMP}/{name}"), (time.time() - seconds,) * 2)
    store.remove_stale_temporaries()
    assert store.names(TMP) == ["fresh", "hours"]


def test_temporaries_of_ended_processes_are_removed_and_those_of_others_stay(
    store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    with subprocess.Popen(["sleep", "60"]) as living, subprocess.Popen(["sleep", "0"]) as ending:
        ended = process_name(ending.pid)
        ending.wait()
        names = {"living": process_name(living.pid), "own": process_name(os.getpid()), "ended": ended}
        boot, namespace, pid, start = names["living"].rsplit("-", 3)
        others = {
            "recycled": f"{boot}-{namespace}-{pid}-{int(start) + 1}",
            "machine": f"{boot[:-1]}{'1' if boot[-1] == '0' else '0'}-{namespace}-{ended.split('-', 6)[-1]}",
            "namespace": f"{boot}-{int(namespace) + 1}-{pid}-{start}",
            "unknown": "",
            "strange": "-",
        }
        for name, process in (names | others).items():
            store.replace(f"{TMP}/{name}.tok.{process}.0123", b"12345", durable=False)
        store.remove_stale_temporaries()
        left = {name.partition(".")[0] for name in store.names(TMP)}
        assert left == {"living", "own", "machine", "namespace", "unknown", "strange"}
        assert "removed 2 unfinished files of processes that ended: 10 bytes freed" in caplog.text
        for name in store.names(TMP):
            os.utime(store.local(f"{TMP}/{name}"), (time.time() - 25 * 3600,) * 2)
        store.remove_stale_temporaries()
        assert {name.partition(".")[0] for name in store.names(TMP)} == {"living", "own"}
        living.terminate()


def test_a_file_that_is_being_written_says_which_process_writes_it(store: LocalStore) -> None:
    with store.writing("versions/a/train/000000.tok") as file:
        file.write(b"1")
        (name,) = store.names(TMP)
        assert name.rsplit(".", 2)[:2] == ["000000.tok", process_name(os.getpid())]
        store.remove_stale_temporaries()
        assert store.names(TMP) == [name]
    assert store.names(TMP) == []


def test_a_process_has_no_name_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    name = process_name(os.getpid())
    assert len(name.split("-")) == 8
    monkeypatch.setattr(os, "readlink", lambda _: "1")  # /proc of another namespace of processes
    assert process_name(os.getpid()) == ""
    assert has_ended(name) is None


Events = list[tuple[str, int]]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """Record ("sync", inode) of every fsync, its buffer flushed, and ("name", inode) of every rename and link."""
    recorded: Events = []
    fsync, replace, link = os.fsync, os.replace, os.link

    def recording_fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        assert found.st_size or stat.S_ISDIR(found.st_mode)
        recorded.append(("sync", found.st_ino))
        fsync(descriptor)

    def recording_replace(source: Path, target: Path) -> None:
        recorded.append(("name", os.stat(source).st_ino))
        replace(source, target)

    def recording_link(source: Path, target: Path) -> None:
        recorded.append(("name", os.stat(source).st_ino))
        link(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    monkeypatch.setattr(os, "link", recording_link)
    return recorded


@each_writer
def test_a_durable_write_syncs_the_file_renames_it_and_syncs_the_folder(
    store: LocalStore, write: Writer, events: Events
) -> None:
    make_folder(store.local(PATH).parent)
    make_folder(store.local(TMP))
    events.clear()
    write(store, PATH, b"data")
    file, folder = store.local(PATH).stat().st_ino, store.local(PATH).parent.stat().st_ino
    assert events == [("sync", file), ("name", file), ("sync", folder)]
    assert files(store) == {PATH: b"data"}


def test_a_write_that_is_not_durable_syncs_nothing(store: LocalStore, events: Events) -> None:
    make_folder(store.local(PATH).parent)
    make_folder(store.local(TMP))
    events.clear()
    store.replace(PATH, b"data", durable=False)
    assert events == [("name", store.local(PATH).stat().st_ino)]


def test_new_folders_are_synced_into_the_folders_above(tmp_path: Path, events: Events) -> None:
    make_folder(tmp_path / "a" / "b")
    assert events == [("sync", tmp_path.stat().st_ino), ("sync", (tmp_path / "a").stat().st_ino)]


def test_path_through_a_file_is_missing(store: LocalStore) -> None:
    store.replace("a", b"")
    assert store.num_bytes("a/b") is None
    assert store.names("a") == []


def test_folder_in_place_of_a_file_is_an_error(store: LocalStore) -> None:
    store.replace("a/b", b"")
    with pytest.raises(StoreError, match="can't be read"):
        store.read("a")
    with pytest.raises(StoreError, match="can't be written"):
        store.replace("a", b"")
    assert files(store) == {"a/b": b""}


@given(
    ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair)))),
    max_gap=st.integers(0, 9),
    max_size=st.integers(1, 9),
)
def test_joined_ranges_hold_the_ranges_and_the_small_gaps_between_them(
    ranges: list[tuple[int, int]], max_gap: int, max_size: int
) -> None:
    ranges = sorted(each for each in ranges if each[0] < each[1])
    joined = join_ranges(ranges, max_gap, max_size)
    held = {i for start, end in ranges for i in range(start, end)}
    gaps = {i for a in held for b in held if 0 < b - a - 1 <= max_gap for i in range(a, b)}
    assert [i for start, end in joined for i in range(start, end)] == sorted(held | gaps)
    assert all(0 < end - start <= max_size for start, end in joined)
    assert all(a + max_size == b for (a, b), (after, _) in itertools.pairwise(joined) if b == after)
