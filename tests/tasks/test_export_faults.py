"""Exports to full and read-only disks, and of versions that are damaged meanwhile: one line, nothing lost."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.builders.damaging import at_write, flip_bit
from tests.builders.exported import READERS, Exportable, small_parts
from tests.builders.mounting import mounted_memory
from tokenloom.cli.main import main
from tokenloom.errors import FormatError, StoreError
from tokenloom.flows.export_steps import export_directly
from tokenloom.tasks.exporting.base import ExportOptions

_ALL = ExportOptions([])


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Exportable:
    """A version with masks, and a document of 3 MB."""
    return Exportable(tmp_path_factory.mktemp("version"), 50_000, with_masks=True, long_tokens=1_500_000)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory of 300 KB."""
    yield from mounted_memory(tmp_path / "mounted", "size=300k")


def _remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


@pytest.mark.parametrize("name", ["megatron", "mds", "parquet"])
def test_a_full_disk_is_one_line_and_the_same_command_finishes(
    name: str, version: Exportable, mounted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", version.reference, name, str(mounted / "out"), "--workers", "0"]
    assert main(command) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device" in last and f"file system {mounted}, " in last
    assert not (mounted / "out").exists()
    _remount(mounted, "size=64m")
    assert main(command) == 0
    assert READERS[name](mounted / "out", "train", version.vocab_size)[0] == version.documents["train"]


def test_a_read_only_disk_is_one_line(version: Exportable, mounted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _remount(mounted, "ro")
    assert main(["export", version.reference, "olmo", str(mounted / "out"), "--workers", "0"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "Read-only file system" in last and f"{mounted}" in last


def test_a_place_where_even_root_can_create_nothing_is_one_line(
    version: Exportable, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", version.reference, "olmo", "/proc/self/ns/out", "--workers", "0"]) == 1
    assert "/proc/self/ns/out.tmp" in capsys.readouterr().err.splitlines()[-1]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10_000])


def _overwrite(path: Path) -> None:
    flip_bit(path, path.stat().st_size - 100)


@pytest.mark.parametrize(("name", "damage"), [("datatrove", _cut), ("mds", _overwrite), ("parquet", Path.unlink)])
def test_a_shard_that_is_damaged_meanwhile_is_named_and_the_same_command_finishes(
    name: str, damage: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Exportable(tmp_path, 50_000, long_tokens=20_000)
    small_parts(monkeypatch)
    export_directly(made.reference, name, str(tmp_path / "whole"), _ALL, 0)
    shard = made.shard("validation", 1)
    content = shard.read_bytes()
    with monkeypatch.context() as patch, pytest.raises((FormatError, StoreError), match=r"validation/000001\.tok: "):
        at_write(patch, 8, lambda: damage(shard))
        export_directly(made.reference, name, str(tmp_path / "out"), _ALL, 0)
    assert not (tmp_path / "out").exists()
    shard.write_bytes(content)
    export_directly(made.reference, name, str(tmp_path / "out"), _ALL, 0)
    for path in (tmp_path / "whole").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "out" / path.relative_to(tmp_path / "whole")).read_bytes()
