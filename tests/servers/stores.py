"""What sources read: a folder, and a server for each protocol that a source may name, with files for each test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import fsspec
import pytest

from tests.servers.azure_server import CONTAINER, azure_server, azurite, connection_string
from tests.servers.google_server import google_server
from tests.servers.s3_server import BUCKET, S3_ENVIRONMENT
from tests.servers.web_server import web_server
from tokenloom.storage.stores.remote import RemoteStore

Files = Mapping[str, bytes]
_WRITTEN = 1_700_000_000  # the second in which all files of a folder were written


class Place(NamedTuple):
    """Where sources read.

    Attributes:
        root: a folder or URL.
        publish: writes files below `root`, and returns their own root there.
    """

    root: str
    publish: Callable[[Files], str]


def write_files(folder: Path, files: Files) -> str:
    """Write files in one second into an unused folder; return its name."""
    name = uuid.uuid4().hex
    for path, content in files.items():
        file = folder / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        os.utime(file, (_WRITTEN, _WRITTEN))
    return name


def folder_of(folder: Path) -> Place:
    """Return a local folder."""
    return Place(str(folder), lambda files: f"{folder}/{write_files(folder, files)}")


@contextmanager
def web_place(folder: Path, etag: str) -> Iterator[Place]:
    """Serve a folder over http, with such ETags."""
    with web_server(folder, etag=etag) as (url, _):
        yield Place(url, lambda files: f"{url}/{write_files(folder, files)}")


def _objects(root: str) -> Place:
    def publish(files: Files) -> str:
        store = RemoteStore(f"{root}/{uuid.uuid4().hex}")
        for path, content in files.items():
            store.replace(path, content)
        return store.root

    return Place(root, publish)


def s3_place(url: str, patch: pytest.MonkeyPatch) -> Place:
    """Return a bucket of the S3 server, or a proxy before it, at `url`."""
    for name, value in {**S3_ENVIRONMENT, "AWS_ENDPOINT_URL": url}.items():
        patch.setenv(name, value)
    return _objects(f"s3://{BUCKET}/inputs")


@contextmanager
def google_place(patch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Run Google's store; skip without its emulator."""
    patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # it would look for Google's own servers
    pytest.importorskip("gcsfs")  # reads that as it is imported
    pytest.importorskip("gcp_storage_emulator")
    with google_server() as url:
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        yield _objects("gs://corpora/inputs")


@contextmanager
def azure_place(patch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Run Azure's store; skip without Azurite."""
    pytest.importorskip("adlfs")
    program = azurite()
    if program is None:
        pytest.skip("needs Azurite: npm install --prefix .azurite azurite")
    with azure_server(program) as url:
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(url))
        patch.setenv("NO_PROXY", "127.0.0.1")
        fsspec.filesystem("abfs", skip_instance_cache=True).mkdir(CONTAINER, exist_ok=True)
        yield _objects(f"abfs://{CONTAINER}/inputs")
