"""The conformance class of stores: the test class of each kind derives from StoreConformance."""

from __future__ import annotations

import errno
import os
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from tests.counts import count
from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.stores import s3
from tokenloom.storage.stores.store import Store, StoreFile

MIB = 2**20
ODD_NAMES = ["a b", "ä ü", "%41", "a+b", "a&b=c", "x;y,z", "~!@$^()", "it's", "a..b", "x" * 200, "[0-9]", "日本"]


class StoreConformance:
    """Tests of a store; a subclass provides the fixture `store`, a fresh and empty folder, and its limits."""

    excludes = True  # the second create of a name fails
    names_not_known: tuple[str, ...] = ()  # names that an emulator mistakes for others

    # ---- capabilities

    def test_the_capabilities_agree_with_each_other(self, store: Store) -> None:
        assert store.free_bytes() is None or store.is_local
        assert (store.local("a/file") is not None) == store.is_local
        assert store.place("a/file") == f"{store.root}/a/file"
        assert str(store.local("a/file") or f"{store.root}/a/file") == store.place("a/file")
        assert store.place("") == str(store.root)

    def test_its_check_reports_whether_it_creates_exclusively(self, store: Store) -> None:
        assert [store.creates_exclusively() for _ in range(2)] == [self.excludes] * 2
        assert list(store.files_below("")) == [] if store.is_local else ["work/tmp/exclusive"]

    def test_a_lost_connection_or_a_missing_permission_is_not_damage(self, store: Store) -> None:
        for number in (errno.EACCES, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE):
            assert not store.is_damage(OSError(number, os.strerror(number)))

    # ---- writing

    def test_a_name_is_created_once(self, store: Store) -> None:
        if not self.excludes:
            pytest.skip("this server lets two writers create one name")
        store.create("tags/latest/00000001.json", b"first")
        with pytest.raises(FileExistsError):
            store.create("tags/latest/00000001.json", b"second")
        assert store.read("tags/latest/00000001.json") == b"first"

    def test_exactly_one_of_racing_writers_succeeds(self, store: Store) -> None:
        if not self.excludes:
            pytest.skip("this server lets two writers create one name")
        for number in range(count(4, 30)):
            with ThreadPoolExecutor(8) as threads:
                won = list(threads.map(lambda i, name=f"race/{number}": creates(store, name, b"%d" % i), range(8)))
                equal = list(threads.map(lambda _, name=f"equal/{number}": creates(store, name, b"same"), range(8)))
            assert won.count(True) == 1
            assert store.read(f"race/{number}") == b"%d" % won.index(True)
            assert equal.count(True) == 1

    def test_a_file_is_visible_only_when_complete(self, store: Store) -> None:
        with store.writing("versions/v/train/000000.tok") as file:
            file.write(b"half")
            file.flush()
            assert not store.exists("versions/v/train/000000.tok")
            assert store.names("versions/v/train") == []
            file.write(b" and half")
        assert store.read("versions/v/train/000000.tok") == b"half and half"

    def test_a_write_that_fails_leaves_the_old_file(self, store: Store) -> None:
        store.replace("a/file", b"old")
        for path in ("a/file", "a/new"):
            with pytest.raises(KeyboardInterrupt), store.writing(path) as file:
                file.write(b"half")
                raise KeyboardInterrupt
        assert list(store.files_below("")) == ["a/file"]
        assert store.read("a/file") == b"old"

    def test_a_file_is_replaced_and_removed(self, store: Store) -> None:
        for data in (b"old", b"", b"new" * 1000):
            store.replace("a/file", data)
            assert store.read("a/file") == data
            assert store.num_bytes("a/file") == len(data)
        store.remove("a/file")
        store.remove("a/file")
        assert not store.exists("a/file")

    def test_an_open_file_can_be_read_and_changed(self, store: Store) -> None:
        with store.writing("a/file") as file:
            file.write(b"0123456789")
            file.seek(0)
            assert file.read(3) == b"012"
            file.seek(1)
            file.write(b"x")
        assert store.read("a/file") == b"0x23456789"

    def test_files_larger_than_a_part_arrive_whole(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(s3, "PART_BYTES", 5 * MIB)  # the least that S3 takes
        for num_bytes in (5 * MIB, 5 * MIB + 1, 11 * MIB + 3):
            data = random.Random(num_bytes).randbytes(num_bytes)
            store.replace("a/large", data)
            assert store.num_bytes("a/large") == num_bytes
            assert b"".join(map(bytes, store.blocks("a/large"))) == data

    def test_a_read_only_store_raises_and_stays_readable(self, read_only: Store) -> None:
        with pytest.raises(StoreError, match=r"permission|read-only"):
            read_only.replace("b/file", b"data")
        with pytest.raises(StoreError, match=r"permission|read-only"):
            read_only.create("b/file", b"data")
        assert read_only.names("b") == []
        assert read_only.read("a/file") == b"data"

    # ---- listing

    def test_a_written_file_is_listed_at_once(self, store: Store) -> None:
        assert store.names("tags") == []
        assert store.lengths("tags") == {}
        for number in range(1, 12):
            store.create(f"tags/latest/{number:08d}.json", b"x" * number)
            assert store.lengths("tags/latest") == {f"{n:08d}.json": n for n in range(1, number + 1)}
        assert store.names("tags") == ["latest"]
        assert store.lengths("tags") == {}  # a folder is not a file
        store.remove("tags/latest/00000011.json")
        assert len(store.names("tags/latest")) == 10

    def test_more_than_a_page_of_names_is_listed(self, store: Store) -> None:
        names = [f"{number:06d}" for number in range(count(40, 1100))]  # S3 lists a thousand at a time
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda name: store.create(f"many/{name}", name.encode()), names))
        assert store.names("many") == names
        assert store.lengths("many") == dict.fromkeys(names, 6)
        found = store.read_all([f"many/{name}" for name in [*names[:20], "none"]])
        assert found == [*(name.encode() for name in names[:20]), None]

    def test_odd_names_are_written_read_and_listed(self, store: Store) -> None:
        names = {*ODD_NAMES} - {*self.names_not_known}
        for name in names:
            store.create(f"odd {name}/{name}", b"data")
            assert store.names(f"odd {name}") == [name]
            assert store.read_range(f"odd {name}/{name}", 1, 3) == b"at"
            store.replace(f"odd {name}/{name}", b"other")
            assert store.read(f"odd {name}/{name}") == b"other"
            assert not store.exists(f"odd {name}/{name[:-1]}")
        assert {*store.names("")} - {"work"} == {f"odd {name}" for name in names}

    def test_names_that_would_leave_the_store_are_refused(self, store: Store) -> None:
        uses: list[Callable[[str], object]] = [store.read, store.exists, store.names, store.remove]
        uses += [lambda name: store.create(name, b""), lambda name: store.replace(name, b"")]
        for use, name in product(uses, ["..", "../file", "a/../../file", "/file", "//file", "a/.."]):
            with pytest.raises(StoreError, match="would leave the store"):
                use(name)
        assert store.names("") == []

    def test_files_below_a_folder_are_listed_with_length_and_time(self, store: Store) -> None:
        assert store.files_below("a") == {}
        for path in ("a/b/c/deep", "a/top", "a2/other", "z"):
            store.replace(path, path.encode())
        found = store.files_below("a")
        assert {path: file.num_bytes for path, file in found.items()} == {"a/b/c/deep": 10, "a/top": 5}
        everything = store.files_below("")
        assert [path for path in everything if not path.startswith("work")] == ["a/b/c/deep", "a/top", "a2/other", "z"]
        assert found == {path: store.status(path) for path in found}
        assert (store.status("a"), store.status("a/none")) == (None, None)

    def test_files_and_the_folders_they_leave_empty_are_removed(self, store: Store) -> None:
        paths = [f"v/{number % 3}/{number}" for number in range(count(12, 1100))]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda path: store.replace(path, b"data", durable=False), [*paths, "v/other", "w/file"]))
        store.remove_files([*paths, "v/none", "none/none"])
        store.remove_empty_folders("v")
        assert list(store.files_below("v")) == ["v/other"]
        store.remove_files(["v/other"])
        store.remove_empty_folders("v")
        store.remove_empty_folders("v")
        assert not store.exists("v")
        assert store.read("w/file") == b"data"

    # ---- reading

    def test_blocks_are_the_file_and_multiples_of_8_bytes(self, store: Store) -> None:
        data = random.Random(3).randbytes(9 * MIB + 3)
        store.replace("a/file", data)
        blocks = [bytes(block) for block in store.blocks("a/file")]
        assert b"".join(blocks) == data
        assert len(blocks) > 1
        assert all(len(block) % 8 == 0 for block in blocks[:-1])

    def test_any_range_is_a_slice_of_the_file(self, store: Store) -> None:
        data = random.Random(0).randbytes(50_000)
        store.replace("a/file", data)
        numbers = random.Random(1)
        for _ in range(30):
            start, end = sorted(numbers.randint(0, len(data)) for _ in range(2))
            assert store.read_range("a/file", start, end) == data[start:end]
        with pytest.raises(FormatError, match=r"cut short|shorter"):
            store.read_range("a/file", 49_999, 50_001)
        with pytest.raises(FormatError, match=r"cut short|shorter"):
            store.read_range("a/file", 60_000, 60_001)

    def test_missing_files_differ_from_folders_and_empty_files(self, store: Store) -> None:
        store.replace("a/file", b"data")
        assert [store.exists(path) for path in ("a", "a/file", "a/none", "b")] == [True, True, False, False]
        assert store.num_bytes("a") is None
        assert store.num_bytes("a/none") is None
        for use in (store.read, lambda path: list(store.blocks(path)), lambda path: store.read_range(path, 0, 1)):
            with pytest.raises(FileNotFoundError):
                use("a/none")

    def test_a_file_of_the_store_reads_as_a_local_one(self, store: Store) -> None:
        data = random.Random(0).randbytes(30_000)
        store.replace("a/file", data)
        file, position, numbers = StoreFile(store, "a/file", 4096), 0, random.Random(2)
        file.announce([(5000, 20_000)])
        for _ in range(200):
            if numbers.random() < 0.3:
                position = file.seek(numbers.randint(0, len(data) + 10))
            num_bytes = numbers.choice([0, 1, 100, 7000])
            assert file.read(num_bytes) == data[position : position + num_bytes]
            position = file.tell()
        file.seek(0)
        assert file.read() == data

    def test_it_can_be_pickled(self, store: Store) -> None:
        store.replace("a/file", b"data")
        assert pickle.loads(pickle.dumps(store)).read("a/file") == b"data"  # noqa: S301  (our own bytes)


def creates(store: Store, name: str, data: bytes) -> bool:
    """Return whether the store lets this writer create a name."""
    try:
        store.create(name, data)
    except FileExistsError:
        return False
    return True
