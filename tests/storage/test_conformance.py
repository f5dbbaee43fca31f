"""Every kind of store passes the same tests: a local folder, S3 (moto), Azure (Azurite), Google's (an emulator)."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pytest

from tests.servers.azure_server import CONTAINER, azure_server, azurite, connection_string
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.google_server import google_server
from tests.servers.s3_server import BUCKET
from tests.storage.conformance import MIB, StoreConformance
from tokenloom.errors import StoreError
from tokenloom.storage.stores import remote, s3
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.stores.remote import RemoteStore
from tokenloom.storage.stores.remote_calls import call
from tokenloom.tasks.sources.listing import find_files

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # adlfs and gcsfs do


def fresh(bucket: str) -> RemoteStore:
    """Return an unused folder of a bucket."""
    return RemoteStore(f"{bucket}/conformance/{uuid.uuid4().hex}")


class TestLocal(StoreConformance):
    """A local folder."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        """A fresh folder."""
        return LocalStore(tmp_path)

    @pytest.fixture
    def read_only(self, store: LocalStore) -> Iterator[LocalStore]:
        """A store that this user can only read."""
        if os.geteuid() == 0:
            pytest.skip("root can write everywhere")
        store.replace("a/file", b"data")
        store.root.chmod(0o555)
        yield store
        store.root.chmod(0o755)


class ObjectStoreConformance(StoreConformance):
    """The further tests of object stores."""

    def test_a_pattern_of_inputs_matches_all_its_objects(self, store: RemoteStore) -> None:
        for name in ("in", "in/a/x.txt", "in/a/b/x.txt", "in/b/x.txt", "in/c/x.csv", "in2/a/x.txt"):
            store.replace(name, b"data")
        for pattern, paths in {
            "in/*/x.txt": ["a/x.txt", "b/x.txt"],
            "in/**/*.txt": ["a/b/x.txt", "a/x.txt", "b/x.txt"],
            "in/a/*": ["x.txt"],
            "in*/a/x*": ["in/a/x.txt", "in2/a/x.txt"],
            "*": ["in"],
        }.items():
            assert [file.path for file in find_files(store.place(pattern))] == paths

    def test_a_browser_shows_a_page_and_does_not_save_it(
        self, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(s3, "PART_BYTES", 5 * MIB)
        for name, num_bytes in {"small": 100, "in parts": 6 * MIB}.items():
            store.replace(f"reports/{name}.html", bytes(num_bytes))
            assert content_type(store, f"reports/{name}.html") == "text/html"


def content_type(store: RemoteStore, path: str) -> str | None:
    """Return the content type that a browser gets for an object."""
    info: dict[str, Any] = call(store.root, "info", store.place(path))
    return info.get("ContentType") or info.get("contentType") or str(info["content_settings"]["content_type"])


class TestS3(ObjectStoreConformance):
    """Amazon's store, and those with its protocol."""

    @pytest.fixture
    def store(self, s3_proxy: FaultyProxy) -> RemoteStore:
        """A fresh folder."""
        return fresh(f"s3://{BUCKET}")

    @pytest.fixture
    def read_only(self, store: RemoteStore, s3_proxy: FaultyProxy) -> RemoteStore:
        """A store that this user can only read."""
        store.replace("a/file", b"data")
        s3_proxy.refused = "PUT"
        return store

    def test_a_file_larger_than_the_most_parts_has_larger_ones(
        self, store: RemoteStore, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With parts of 32 MiB, S3's limit of 10,000 parts is reached at 336 GB; one request ends at 5 GB."""
        monkeypatch.setattr(s3, "PART_BYTES", 5 * MIB)
        monkeypatch.setattr(s3, "_MAX_PARTS", 2)
        data = random.Random(1).randbytes(12 * MIB + 1)
        store.replace("a/large", data)
        assert [method for method, path, _ in s3_proxy.seen if path.endswith("a/large") and method != "GET"] == [
            *("POST", "PUT", "PUT", "POST")
        ]
        assert store.read("a/large") == data

    def test_an_upload_that_fails_leaves_no_parts(
        self, store: RemoteStore, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(s3, "PART_BYTES", 5 * MIB)
        s3_proxy.refused = "PUT"  # parts are; beginning and giving up are not
        with pytest.raises(StoreError, match=r"large: no permission to write it"):
            store.replace("a/large", bytes(11 * MIB))
        s3_proxy.refused = ""
        assert unfinished(store) == []
        assert store.names("a") == []

    def test_uploads_of_killed_processes_are_deleted_after_a_day(
        self, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket, _, key = store.place("a/large").removeprefix("s3://").partition("/")
        with closing(boto3.client("s3")) as client:
            client.create_multipart_upload(Bucket=bucket, Key=key)
        with monkeypatch.context() as patch:
            # this server reports 2010 as the start of every upload
            patch.setattr(remote, "STALE_SECONDS", 100 * 365 * 24 * 3600)
            store.remove_stale_temporaries()
        assert unfinished(store) == [key]
        store.remove_stale_temporaries()
        assert unfinished(store) == []

    def test_a_lost_response_is_not_mistaken_for_another_writer(
        self, store: RemoteStore, s3_proxy: FaultyProxy
    ) -> None:
        for fault in ("lost", "drop", "503"):
            s3_proxy.faults["PUT"].append(fault)
            store.create(f"tags/{fault}", b"mine")
            assert store.read(f"tags/{fault}") == b"mine"
        store.create("tags/theirs", b"the same")
        for fault in ("ok", "lost", "503"):
            s3_proxy.faults["PUT"].append(fault)
            with pytest.raises(FileExistsError):
                store.create("tags/theirs", b"the same")

    @pytest.mark.parametrize("code", ["BadDigest", "XAmzContentSHA256Mismatch"])
    def test_a_body_that_arrives_damaged_is_sent_again(
        self, store: RemoteStore, s3_proxy: FaultyProxy, code: str
    ) -> None:
        s3_proxy.plan(*[f"400 {code}"] * 3, method="PUT")
        store.replace("a/file", b"data")
        s3_proxy.plan(f"400 {code}", method="PUT")
        store.create("a/other", b"other")
        assert (store.read("a/file"), store.read("a/other")) == (b"data", b"other")

    @pytest.mark.parametrize(("num_bytes", "num_damaged"), [(1000, 3), (11 * MIB, 1)])
    def test_an_object_that_a_server_stores_damaged_is_found_and_sent_again(
        self, store: RemoteStore, num_bytes: int, num_damaged: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(s3, "PART_BYTES", 5 * MIB)
        left = [num_damaged]

        def put(place: str, method: str, data: bytes, **options: Any) -> dict[str, Any]:
            """Damage the first bytes of the file, as a server that compares no checksum would store them."""
            if data[:1] == b"x" and left[0]:
                left[0] -= 1
                data = b"y" + data[1:]
            return whole(place, method, data, **options)

        whole = s3._put
        monkeypatch.setattr(s3, "_put", put)
        data = b"x" + bytes(num_bytes - 1)
        if num_damaged == 3:
            with pytest.raises(StoreError, match="a/file: it arrived damaged 3 times"):
                store.replace("a/file", data)
        else:
            store.replace("a/file", data)
            assert store.read("a/file") == data

    def test_a_bucket_that_is_missing_is_named(self, s3_proxy: FaultyProxy) -> None:
        store = RemoteStore("s3://nothing/store/data")
        calls: list[Callable[[], object]] = [
            lambda: store.replace("a", b"data"),
            lambda: store.create("a", b"data"),
            lambda: store.read("a"),
            lambda: store.names("tags"),
            lambda: store.exists("a"),
        ]
        store.remove_stale_temporaries()
        for use in calls:
            with pytest.raises(StoreError, match=r"^s3://nothing: no such bucket .* the URL s3://nothing/store/data"):
                use()


def unfinished(store: RemoteStore) -> list[str]:
    """Return the keys of uploads to an S3 store that are unfinished."""
    bucket, _, prefix = store.root.removeprefix("s3://").partition("/")
    with closing(boto3.client("s3")) as client:
        found = client.list_multipart_uploads(Bucket=bucket, Prefix=prefix)
    return [begun["Key"] for begun in found.get("Uploads", [])]


@pytest.fixture(scope="module")
def azurite_url() -> Iterator[str]:
    """The URL of Azurite."""
    pytest.importorskip("adlfs")
    if (program := azurite()) is None:
        pytest.skip("needs Azurite: npm install --prefix .azurite azurite")
    with azure_server(program) as url:
        yield url


class TestAzure(ObjectStoreConformance):
    """Microsoft's store."""

    @pytest.fixture
    def proxy(self, azurite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
        """A proxy before the server."""
        with FaultyProxy(azurite_url) as proxy:
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(proxy.url))
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            fsspec.filesystem("abfs", skip_instance_cache=True).mkdir(CONTAINER, exist_ok=True)
            yield proxy

    @pytest.fixture
    def store(self, proxy: FaultyProxy) -> RemoteStore:
        """A fresh folder."""
        return fresh(f"abfs://{CONTAINER}")

    @pytest.fixture
    def read_only(self, store: RemoteStore, proxy: FaultyProxy) -> RemoteStore:
        """A store that this user can only read."""
        store.replace("a/file", b"data")
        proxy.refused = "PUT"
        return store

    def test_a_lost_response_is_not_mistaken_for_another_writer(self, store: RemoteStore, proxy: FaultyProxy) -> None:
        store.create("tags/first", b"")  # over a kept connection, the retry follows immediately
        proxy.plan("lost", method="PUT")
        store.create("tags/mine", b"the same")
        with pytest.raises(FileExistsError):
            store.create("tags/mine", b"the same")


@pytest.mark.slow
class TestGoogle(ObjectStoreConformance):
    """Google's store, by an emulator without conditional writes."""

    excludes = False
    names_not_known = ("x;y,z",)

    @pytest.fixture
    def store(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteStore]:
        """A fresh folder."""
        monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # it would look for Google's own servers
        pytest.importorskip("gcsfs")
        pytest.importorskip("gcp_storage_emulator")
        with google_server() as url, FaultyProxy(url) as self.proxy:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", self.proxy.url)
            yield fresh("gs://corpora")

    @pytest.fixture
    def read_only(self) -> None:
        """Skip: the emulator has no permissions."""
        pytest.skip("this server has no permissions")

    def test_a_store_without_exclusive_create_is_reported(self, store: RemoteStore) -> None:
        assert not store.creates_exclusively()
        assert store.names("work/tmp") == ["exclusive"]

    def test_a_lost_response_is_not_mistaken_for_another_writer(self, store: RemoteStore) -> None:
        self.proxy.plan("lost", "412", method="POST")  # Google's own store answers the library's retry with 412
        store.create("tags/mine", b"the same")
        self.proxy.plan("412", method="POST")
        with pytest.raises(FileExistsError):
            store.create("tags/mine", b"the same")
