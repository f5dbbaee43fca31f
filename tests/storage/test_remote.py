"""Published versions read from an S3 store, including one that fails, stalls or returns wrong data."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import fsspec
import pytest

from tests.builders.memory_objects import SCHEME
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, put
from tokenloom.errors import StoreError
from tokenloom.storage import stores
from tokenloom.storage.stores import local_files, open_store, remote_calls, remote_errors
from tokenloom.storage.stores.remote import RemoteStore
from tokenloom.wording import redacted


def test_google_without_credentials_is_named_after_one_round_of_attempts(tmp_path: Path) -> None:
    """Runs in a new process, because the library caches what it found; names do not resolve, as without a network."""
    program = """
import asyncio, socket
lookups, sleep = [], asyncio.sleep
def nowhere(host, *arguments, **options):
    lookups.append(host)
    raise socket.gaierror(-2, "Name or service not known")
socket.getaddrinfo = nowhere
asyncio.sleep = lambda seconds, *result: sleep(0)  # between the library's attempts, half a minute in all
from tokenloom.cli.main import main
print(main(["ls", "gs://some-bucket/store", "--json"]), lookups.count("storage.googleapis.com"))
"""
    dropped = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "FSSPEC_GS", "FSSPEC_GCS")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment |= {"HOME": str(tmp_path), "GCE_METADATA_IP": "127.0.0.1:9", "CLOUDSDK_CONFIG": str(tmp_path)}
    environment["GCE_METADATA_DETECT_RETRIES"] = "1"  # a second each
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    error, _, logged = done.stdout.partition("\n")
    assert "and the credentials (GOOGLE_APPLICATION_CREDENTIALS)" in json.loads(error)["error"]["message"]
    assert logged.split() == ["1", "6"]  # the library makes six attempts, and nobody repeats them
    assert "Traceback" not in done.stderr


@pytest.fixture
def store(s3_url: str, s3_proxy: FaultyProxy) -> RemoteStore:
    """A fresh folder with a file of 1000 bytes in it."""
    key = f"some/{uuid.uuid4().hex}"
    put(s3_url, f"{key}/a/file", bytes(range(250)) * 4)
    return RemoteStore(f"s3://{BUCKET}/{key}")


def test_the_marker_object_of_a_folder_is_not_listed(store: RemoteStore, s3_url: str) -> None:
    for name in ("", "of another writer"):
        assert store.names("a") == ["file"]
        assert store.names("") == ["a"]
        put(s3_url, f"{store.root.removeprefix(f's3://{BUCKET}/')}/a/{name}")
    assert store.names("a") == ["file", "of another writer"]


def test_a_store_that_is_a_whole_bucket_is_listed(store: RemoteStore) -> None:
    whole = RemoteStore(f"s3://{BUCKET}")
    path = store.root.removeprefix(f"s3://{BUCKET}/")
    assert path.partition("/")[0] in whole.names("")
    assert f"{path}/a/file" in whole.files_below("")


@pytest.mark.parametrize("fault", ["503", "429", "cut", "drop"])
def test_transient_errors_are_retried(fault: str, store: RemoteStore, s3_proxy: FaultyProxy) -> None:
    s3_proxy.plan(fault, fault, fault)
    assert store.read("a/file") == bytes(range(250)) * 4
    s3_proxy.plan(fault, method="HEAD")
    assert store.num_bytes("a/file") == 1000


_PAGES = {
    "<!doctype html><p>Sign in": "text/html",
    "<html><body>Sign in</body></html>": "text/html; charset=utf-8",  # also XML
    "running": "text/plain",
}


@pytest.mark.parametrize("page", _PAGES)
def test_a_web_page_in_place_of_an_answer_is_named(page: str, store: RemoteStore, s3_proxy: FaultyProxy) -> None:
    s3_proxy.web_page, s3_proxy.web_type = page.encode(), _PAGES[page]
    what = "a web page" if "html" in page else "an answer of type text/plain"
    calls: dict[str, Callable[[], Any]] = {
        "GET": lambda: store.read("a/file"),
        "HEAD": lambda: store.num_bytes("a/file"),
        "PUT": lambda: store.replace("a/other", b"data"),
        "LIST": lambda: store.names("a"),
    }
    for method, call in calls.items():
        call()
        s3_proxy.plan(*["page"] * 5, method=method)
        with pytest.raises(StoreError, match=rf"{store.root}.*{what} from .*AWS_ENDPOINT_URL is {s3_proxy.url}"):
            call()


def test_a_persistent_error_is_raised_after_the_last_attempt(store: RemoteStore, s3_proxy: FaultyProxy) -> None:
    s3_proxy.always = "503"
    with pytest.raises(StoreError, match=r"file: the store did not answer correctly, although.*run the same command"):
        store.read("a/file")
    num_tries = stores.remote_kind(store.root).tries
    assert len([1 for method, path, _ in s3_proxy.seen if method == "GET" and path.endswith("file")]) == num_tries


@pytest.mark.parametrize("limits", [{"tries": 2, "read_seconds": 0.3}, {"total_seconds": 0.5}])
def test_a_stalled_server_is_an_error(
    limits: dict[str, Any], store: RemoteStore, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_proxy.always = "hold"  # for as long as this test runs
    monkeypatch.setattr(stores, "KINDS", tuple(kind._replace(**limits) for kind in stores.KINDS))
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"a/file: the store did not answer correctly, although .*[Tt]ime"):
        store.read("a/file")
    assert time.monotonic() - began < 30


def test_an_unreachable_server_is_an_error_that_names_the_address(
    store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9/hunter22")
    monkeypatch.setenv("SOME_PASSWORD", "hunter22")
    with pytest.raises(StoreError, match=f"{store.root}/a/file: the store did not answer") as caught:
        RemoteStore(store.root).read("a/file")
    assert "the endpoint (AWS_ENDPOINT_URL is http://127.0.0.1:9/***)" in str(caught.value)
    assert "hunter22" not in str(caught.value)
    assert caught.value.__cause__ is None  # its text contains the password


def test_an_endpoint_without_a_scheme_is_named(store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
    with pytest.raises(StoreError, match=r"can't be read .*; check the URL and .*AWS_ENDPOINT_URL is localhost:9000"):
        RemoteStore(store.root).read("a/file")


@pytest.mark.parametrize("fault", ["400", "403", "400 ExpiredToken", "400 InvalidToken", "400 TokenRefreshRequired"])
def test_a_refusal_names_the_credentials_and_is_not_retried(
    store: RemoteStore, s3_proxy: FaultyProxy, fault: str
) -> None:
    message = r"a/file: no permission to .*, or no credentials, or they .* have expired, .*clock.*AWS_ACCESS_KEY_ID"
    requests: dict[str, Callable[[], object]] = {
        "HEAD": lambda: store.num_bytes("a/file"),
        "GET": lambda: store.read_range("a/file", 3, 9),
        "PUT": lambda: store.replace("a/file", b"data"),
    }
    for method in requests if fault in ("400", "403") else ["PUT"]:
        s3_proxy.seen.clear()
        s3_proxy.plan(*[fault] * 3, method=method)
        with pytest.raises(StoreError, match=message) as caught:
            requests[method]()
        s3_proxy.faults[method].clear()
        assert "a-secret-access-key" not in str(caught.value)
        assert [seen[0] for seen in s3_proxy.seen].count(method) <= 2  # botocore asks again, for the bucket's region


def test_missing_credentials_are_named(store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreError, match=r"no permission to read it, or no credentials.*in the environment"):
        RemoteStore(store.root).read("a/file")


def test_a_missing_package_is_named() -> None:
    program = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from tokenloom.storage.stores import open_store\n"
        "open_store('s3://bucket/store/data').read('file')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "StoreError: store s3://: the package that reads it is not installed" in done.stderr
    assert "pip install 'tokenloom[s3]'" in done.stderr


def test_options_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"config_kwargs": {"s3": {"addressing_style": "path"}, "read_timeout": 1}}
    monkeypatch.setitem(fsspec.config.conf, "s3a", conf)
    system = remote_calls.system_of("s3://bucket/store")
    assert system.config_kwargs["s3"] == {"addressing_style": "path"}
    assert system.config_kwargs["read_timeout"] == 30
    assert remote_calls.system_of("s3://other/store") is system
    monkeypatch.setitem(fsspec.config.conf, "s3a", {})
    assert remote_calls.system_of("s3://bucket/store") is not system


_KINDS = "a store is a local folder, or a URL .*extra .gcs.*az://"
_REFUSED = dict.fromkeys(["simplecache::s3://bucket/store", "sftp://host/store", "https://host/store"], _KINDS)
_REFUSED |= dict.fromkeys(
    ["s3:///store", "s3://a bucket/store", "s3://bucket/a/../b"], "write it as s3://BUCKET/FOLDER"
)


@pytest.mark.parametrize("url", _REFUSED)
def test_a_url_of_another_kind_or_with_odd_parts_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match=f"^store {re.escape(url)}: {_REFUSED[url]}"):
        open_store(url)


def test_values_of_secret_variables_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "abc/def+ghi==")
    assert redacted("the token abc/def+ghi== is old") == "the token *** is old"
    assert remote_errors.reason_of(ValueError("line\nline")) == "ValueError: line line"
    monkeypatch.setenv("TOKENLOOM_HOME", "/home/you/corpus")
    assert redacted("/home/you/corpus/a.jsonl") == "/home/you/corpus/a.jsonl"
    monkeypatch.setitem(fsspec.config.conf, "s3", {"key": "an-access-key", "endpoint_url": "http://there:9000"})
    assert redacted("an-access-key at http://there:9000") == "*** at http://there:9000"


def test_a_store_works_after_a_fork_and_pickles_small(store: RemoteStore) -> None:
    store.read("a/file")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if store.read("a/file") == bytes(range(250)) * 4 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.read("a/file") == bytes(range(250)) * 4
    sent = pickle.dumps(store)
    assert len(sent) < 500
    assert pickle.loads(sent).read("a/file") == store.read("a/file")  # noqa: S301  (our own bytes)


@pytest.fixture
def memory() -> RemoteStore:
    """A fresh folder in memory with a file of 4 bytes in it."""
    store = RemoteStore(f"{SCHEME}://{uuid.uuid4().hex}")
    store.replace("a/file", b"data")
    return store


# ---- TMPDIR, where uploads are written first


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TMPDIR that only this test uses."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_full_tmpdir_is_named_and_nothing_is_left(
    memory: RemoteStore, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: IO[bytes], data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local_files, "write_all", fail)
    with pytest.raises(StoreError, match=f"^{temporary}: .*No space left.*free space on that .*, or set TMPDIR to"):
        memory.replace("a/other", b"other")
    assert list(temporary.iterdir()) == []


def test_an_error_of_the_writer_is_not_an_error_of_tmpdir(memory: RemoteStore, temporary: Path) -> None:
    with pytest.raises(FileNotFoundError, match="input"), memory.writing("a/other"):
        assert list(temporary.iterdir()) == []  # a killed process leaves nothing
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "input")
    assert memory.names("a") == ["file"]
