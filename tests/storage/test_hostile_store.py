"""Stores that can't be written: a file in the way, missing permission, a full disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.datasets import make_spec, write_parquet
from tests.builders.mounting import mount_memory
from tests.builders.refusals import TEXTS, assert_builds, assert_refused
from tokenloom.errors import StoreError
from tokenloom.spec.build_spec import BuildSpec


def spec_at(store: Path, folder: Path, texts: list[str]) -> BuildSpec:
    """Return a spec of one parquet file in `folder` with a store elsewhere."""
    path = write_parquet(folder / "data" / "a.parquet", texts)
    return make_spec(store, [{"kind": "parquet", "path": str(path)}])


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
