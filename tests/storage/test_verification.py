"""Verification: an undamaged version passes, and exactly the damaged files are named."""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders.damaging import Damager, Made, make_version, restored
from tests.builders.datasets import build, lines_spec
from tests.builders.masks import give_masks
from tests.counts import SUMMARY, count
from tokenloom.errors import StoreError
from tokenloom.flows.verify_steps import verify_directly


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A version with every kind of file in it."""
    return make_version(tmp_path_factory.mktemp("verified"))


def verified(reference: str, deep: bool = False) -> dict[str, Any]:
    return verify_directly(reference, deep, None, 0)


def damaged(reference: str) -> set[str]:
    return {row["file"] for row in verified(reference)["damages"]}


def test_an_undamaged_version_passes(made: Made) -> None:
    for reference in (made.reference, f"{made.spec.store}/data@prod", f"{made.spec.store}/data@{made.version}"):
        result = verified(reference, deep=True)
        assert (result["damages"], result["warnings"]) == ([], [])
        assert result["reference"] == f"{made.store.root}@{made.version}"
        assert result["version"] == made.version
        num_documents = made.manifest["rows"]["kept"]
        assert result["documents_encoded_again"] == min(1000, num_documents) == num_documents
    names = [name for name in made.files if name.startswith("versions/")]
    assert result["files"] == len(names)
    sizes = {name: made.store.local(name).stat().st_size for name in names}
    assert result["bytes"] == sum(sizes.values()) - sizes[f"versions/{made.version}/manifest.json"]


@pytest.mark.parametrize("fields", [{"documents": {"deduplicate": False}, "seed": 7}, {"limit": 30, "shard_tokens": 5}])
def test_other_undamaged_versions_pass(tmp_path: Path, fields: dict[str, Any]) -> None:
    spec = lines_spec(tmp_path, [f"text {i % 40}" for i in range(60)], **fields)
    result = verified(f"{spec.store}/data@{build(spec).version}", deep=True)
    assert (result["damages"], result["warnings"]) == ([], [])
    assert result["documents_encoded_again"] >= 30


def test_each_single_damage_is_reported_for_exactly_the_files_it_affects(made: Made) -> None:
    num_damages = 0
    damager = Damager(made, seed=20261121)
    for label, files, apply in damager.damages(count(120, 1000)):
        with restored(made):
            apply()
            assert damaged(made.reference) == files, label
        num_damages += 1
    assert damaged(made.reference) == set()
    SUMMARY.append(f"verify: {num_damages:,} single damages, each named by its files alone")


def test_each_single_damage_to_a_version_with_masks_is_reported(tmp_path: Path) -> None:
    made = make_version(tmp_path)
    give_masks(made)
    result = verified(made.reference, deep=True)
    assert (result["damages"], result["warnings"]) == ([], [])
    assert result["documents_encoded_again"] > 200
    for label, files, apply in Damager(made, seed=20261126).damages(count(30, 300)):
        with restored(made):
            apply()
            assert damaged(made.reference) == files, label


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EMFILE])
def test_a_lost_mount_ends_the_verification_and_is_not_damage(
    made: Made, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("tokenloom.storage.stores.local.open_regular", failing(number))
    next_step = "raise the limit" if number == errno.EMFILE else "check that its file system is mounted"
    with pytest.raises(StoreError, match=f"can't be read: {os.strerror(number)}; {next_step}") as caught:
        verified(made.reference)
    assert caught.value.exit_code == 1


def test_a_file_that_the_disk_cannot_read_is_damaged(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.storage.stores.local.open_regular", failing(errno.EIO))
    found = {row["what"] for row in verified(made.reference)["damages"]}
    assert found == {"can't be read: Input/output error; correct the cause"}


def failing(number: int) -> Callable[[Path], io.BufferedReader]:
    """Return what opens files that can be read as a whole, but not in blocks."""

    class Failing(io.BufferedReader):
        def readinto(self, buffer: object, /) -> int:
            raise OSError(number, os.strerror(number))

    return lambda path: Failing(io.FileIO(path))


def test_the_suggested_next_step_repairs_a_damaged_file(tmp_path: Path) -> None:
    made = make_version(tmp_path)
    before = {name: made.store.local(name).read_bytes() for name in made.files}
    shutil.rmtree(made.store.local("work"))
    manifest = f"versions/{made.version}/manifest.json"
    of_each_kind = {Path(name).suffix + Path(name).stem[:3]: name for name in made.files if "versions/" in name}
    assert len(of_each_kind) == 7
    for name in of_each_kind.values():
        data = before[name]
        made.store.local(name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        (row,) = verified(made.reference)["damages"]
        assert row["file"] == name
        what = "delete it" if name == manifest else "delete it and the manifest.json of its version"
        assert f"{what} and build again from the same inputs, which makes the same bytes" in row["next_step"]
        for path in {name, manifest}:
            made.store.local(path).unlink()
        assert build(made.spec).version == made.version
        assert {name: made.store.local(name).read_bytes() for name in made.files} == before
