"""Stores that can't be written: a file in the way, missing permission, a full disk."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.builders.datasets import build, make_spec, write_parquet
from tests.builders.refusals import TEXTS, assert_builds, assert_nothing_visible, assert_refused
from tokenloom.errors import StoreError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores import local_files
from tokenloom.storage.stores.local import LocalStore

BIG_TEXTS = [f"{i} " + "0123456789" * 1000 for i in range(300)]  # 3 MB


def spec_at(store: Path, folder: Path, texts: list[str]) -> BuildSpec:
    """Return a spec of one parquet file in `folder` with a store elsewhere."""
    path = write_parquet(folder / "data" / "a.parquet", texts)
    return make_spec(store, [{"kind": "parquet", "path": str(path)}])


def mount_memory(folder: Path, options: str) -> None:
    """Mount a file system in memory on `folder`; skips the test where this is not allowed."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        done = False
    if not done:
        pytest.skip("needs the right to mount a file system")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A folder to mount on, unmounted after the test."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    yield folder
    if folder.is_mount():
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("file", ["store", "store/data"])
def test_a_store_or_dataset_that_is_a_file_is_refused(file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("in the way")
    spec = spec_at(tmp_path / "store", tmp_path, TEXTS)
    assert_refused(spec, str(path), "a file is in the place of a folder", error=StoreError)
    assert path.read_text() == "in the way"
    path.unlink()
    assert_builds(spec, TEXTS)


def test_a_store_without_write_permission_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    spec = spec_at(store, tmp_path, TEXTS)
    store.chmod(0o500)
    if os.access(store, os.W_OK):
        store = Path("/proc/self/ns")  # even root makes no folder there, and its files stay the same
        spec = spec_at(store, tmp_path, TEXTS)
    assert_refused(spec, str(store), "can't be written", error=StoreError)


def test_a_read_only_file_system_is_refused_and_builds_when_writable(tmp_path: Path, mounted: Path) -> None:
    mount_memory(mounted, "size=16m,ro")
    spec = spec_at(mounted / "store", tmp_path, TEXTS)
    assert_refused(spec, str(mounted), "read-only", "choose another store", error=StoreError)
    subprocess.run(["mount", "-o", "remount,rw", str(mounted)], check=True)
    assert_builds(spec, TEXTS)


@pytest.mark.parametrize("size", ["64k", "1m", "4m", "5m"])
def test_the_same_command_continues_after_a_full_disk(
    size: str, tmp_path: Path, mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "free_bytes", lambda self: None)  # as if another program took the space meanwhile
    mount_memory(mounted, f"size={size}")
    spec = spec_at(mounted / "store", tmp_path, BIG_TEXTS)
    assert_refused(spec, str(mounted), "No space left", "free space", error=StoreError)
    subprocess.run(["mount", "-o", "remount,size=64m", str(mounted)], check=True)
    assert_builds(spec, BIG_TEXTS)


def test_no_space_at_any_write_leaves_nothing_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_at(tmp_path / "store", tmp_path, TEXTS)
    real_write = local_files.write_all
    left = 0

    def write_until_full(file: IO[bytes], data: bytes | memoryview) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real_write(file, data)

    monkeypatch.setattr(local_files, "write_all", write_until_full)
    failed = 0
    for num_writes in range(200):
        left = num_writes
        try:
            build(spec)
        except StoreError as error:
            assert "free space" in str(error)
            if "tags" not in str(error):  # published; only the tag could not be moved
                assert_nothing_visible(spec)
            failed += 1
        else:
            break
    assert failed > 3
    left = 10_000
    fresh = make_spec(tmp_path / "fresh", [{"kind": "parquet", "path": str(tmp_path / "data" / "a.parquet")}])
    assert build(spec).version == build(fresh).version
