"""Links and pipes in a store: nothing outside of it is written, deleted or waited for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.builders.datasets import build, listed_files, make_spec, write_jsonl
from tokenloom import TokenDataset
from tokenloom.cli.main import main
from tokenloom.errors import FormatError, StoreError, TokenloomError
from tokenloom.flows.verify_steps import verify_directly
from tokenloom.storage.versions.published import read_listed
from tokenloom.storage.versions.references import parse_reference, resolve

pytestmark = pytest.mark.timeout(60)  # who opens a pipe would wait for ever

_TEXTS = [f"document {i} " * 5 for i in range(40)]


class _Project:
    """A spec, its dataset's folder, the files of its version built elsewhere, and a folder of others' files.

    Args:
        folder: for the dataset, and the files of others.
        made: has the input, and an undisturbed build of it.
    """

    def __init__(self, folder: Path, made: Path) -> None:
        source = {"kind": "jsonl", "path": str(made / "a.jsonl")}
        self.spec = make_spec(folder / "store", [source], shard_tokens=1000)
        self.alone = Path(shutil.copytree(made / "store" / "data", folder / "alone" / "data"))
        (self.version,) = (path.name for path in (self.alone / "versions").iterdir())
        self.hashes = listed_files(self.spec.model_copy(update={"store": str(folder / "alone")}), self.version)
        assert {"train/000000.tok", "train/000001.docs", "validation/000000.tok"} <= set(self.hashes)
        self.dataset = folder / "store" / "data"
        self.outside = folder / "outside"
        for name in ("precious", "000000.tok", "manifest.json", "00000001.json"):
            path = self.outside / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"precious {name}")
            os.utime(path, (1, 1))  # so old that a temporary would be stale

    def assert_outside_is_untouched(self) -> None:
        """Assert that no file there was added, changed or removed."""
        found = {path.name: path.read_text() for path in self.outside.iterdir()}
        assert found == {name: f"precious {name}" for name in found}
        assert len(found) == 4

    def assert_builds(self) -> None:
        """Assert that the build makes the expected version and bytes."""
        assert build(self.spec).version == self.version
        assert listed_files(self.spec, self.version) == self.hashes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an input, and a build of it."""
    folder = tmp_path_factory.mktemp("made")
    source = {"kind": "jsonl", "path": str(write_jsonl(folder / "a.jsonl", _TEXTS))}
    build(make_spec(folder / "store", [source], shard_tokens=1000))
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path) -> _Project:
    return _Project(tmp_path, made)


def _read_all(reference: str) -> int:
    data = TokenDataset(reference, seq_len=16)
    return sum(int(data[i]["input_ids"].sum()) for i in range(len(data)))


@pytest.mark.parametrize("place", ["store", "store/data"])
def test_a_store_or_dataset_that_is_a_link_is_written_and_read(project: _Project, place: str, tmp_path: Path) -> None:
    there = tmp_path / "another disk"
    there.mkdir()
    link = tmp_path / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(there, target_is_directory=True)
    project.assert_builds()
    assert link.is_symlink()
    assert list(there.rglob("manifest.json"))
    assert _read_all(str(project.dataset)) == _read_all(str(project.alone))


@pytest.mark.parametrize(
    "name", ["train/000000.tok", "train/000001.docs", "validation/000000.tok", "inputs.json", "build.json"]
)
@pytest.mark.parametrize("target", ["precious", "nothing"])
def test_links_in_place_of_version_files_are_replaced_and_not_followed(
    project: _Project, name: str, target: str
) -> None:
    path = project.dataset / "versions" / project.version / name
    path.parent.mkdir(parents=True)
    path.symlink_to(project.outside / target)
    project.assert_builds()
    assert not path.is_symlink()
    project.assert_outside_is_untouched()


@pytest.mark.parametrize("target", ["manifest.json", "nothing"])
@pytest.mark.parametrize("name", ["versions/{}/manifest.json", "tags/latest/00000001.json"])
def test_a_link_in_place_of_a_file_created_exclusively_is_an_error_and_not_followed(
    project: _Project, name: str, target: str
) -> None:
    path = project.dataset / name.format(project.version)
    path.parent.mkdir(parents=True)
    path.symlink_to(project.outside / target)
    with pytest.raises(TokenloomError, match=project.version if "versions" in name else "tags/latest"):
        build(project.spec)
    project.assert_outside_is_untouched()
    path.unlink()
    project.assert_builds()


def test_links_among_the_work_files_are_replaced_and_not_followed(project: _Project) -> None:
    build(project.spec)
    for path in [*(project.dataset / "work").rglob("*.*")]:
        path.unlink()
        path.symlink_to(project.outside / "precious")
    (project.dataset / "versions" / project.version / "manifest.json").unlink()
    project.assert_builds()
    project.assert_outside_is_untouched()


@pytest.mark.parametrize(
    "name", ["versions", "versions/{}", "versions/{}/train", "tags", "tags/latest", "work", "work/tmp", "work/spills"]
)
def test_a_folder_that_links_out_of_the_dataset_is_refused(project: _Project, name: str) -> None:
    link = project.dataset / name.format(project.version)
    link.parent.mkdir(parents=True, exist_ok=True)
    if name in ("tags", "tags/latest"):  # otherwise the existing file would not be a tag
        (project.outside / "00000001.json").rename(project.outside / "other.json")
        (project.outside / "other.json").write_text("precious other.json")
    link.symlink_to(project.outside, target_is_directory=True)
    with pytest.raises(TokenloomError) as caught:
        build(project.spec)
    if name not in ("versions/{}",):  # a manifest seems to be there, which is damaged
        assert isinstance(caught.value, StoreError)
        assert "leads out of it" in str(caught.value)
    assert str(link) in str(caught.value)
    project.assert_outside_is_untouched()
    link.unlink()
    project.assert_builds()


def test_version_files_can_be_links_to_files_elsewhere(project: _Project, tmp_path: Path) -> None:
    """git-annex and DVC store files so. Reading follows links, because their targets must match the manifest."""
    kept = tmp_path / "kept"
    kept.mkdir()
    for number, path in enumerate(sorted(project.alone.glob("versions/*/**/*.*"))):
        shutil.move(path, kept / str(number))
        path.symlink_to(kept / str(number))
    assert _read_all(str(project.alone)) > 0
    assert main(["peek", str(project.alone)]) == 0


def _damage(path: Path, how: str, outside: Path) -> None:
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    else:
        path.symlink_to({"a device": Path("/dev/zero"), "another file": outside, "itself": path}[how])


@pytest.mark.parametrize("how", ["pipe", "folder", "a device", "another file", "itself"])
@pytest.mark.parametrize("file", ["", "manifest.json", "inputs.json", "train/000000.tok"])
def test_special_files_in_a_version_are_named_without_blocking(project: _Project, file: str, how: str) -> None:
    path = project.alone / (f"versions/{project.version}/{file}" if file else "tags/latest/00000001.json")
    _damage(path, how, project.outside / "precious")
    with pytest.raises((StoreError, FormatError)) as caught:
        _read_all(str(project.alone))
        resolved = resolve(parse_reference(str(project.alone)))
        read_listed(*resolved, "inputs.json")
    assert str(path) in str(caught.value)
    assert "precious" not in str(caught.value).replace(str(project.outside), "")


@pytest.mark.parametrize("how", ["pipe", "folder", "a device", "another file", "itself"])
def test_a_document_table_that_is_a_special_file_is_named(project: _Project, how: str) -> None:
    path = project.alone / "versions" / project.version / "train" / "000000.docs"
    _damage(path, how, project.outside / "precious")
    damages = verify_directly(str(project.alone), False, None, 0)["damages"]
    assert [damage["file"].rpartition("/")[2] for damage in damages] == ["000000.docs"]
