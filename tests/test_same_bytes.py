"""The same inputs and spec give the same bytes, whoever does the work and in how many processes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from tests.support import build, listed_files, make_spec, write_parquet
from tokenloom.flows.build_dataset import build_dataset
from tokenloom.spec import BuildSpec

pytestmark = pytest.mark.timeout(400)


def _news(folder: Path) -> str:
    """Return a glob of parquet files of unequal row groups: real news where there are some, else made-up words."""
    data = os.environ.get("TOKENLOOM_TEST_DATA")
    if data and (Path(data) / "ag_news").is_dir():
        return str(Path(data) / "ag_news" / "*.parquet")
    generator = random.Random(3)
    words = [f"{generator.getrandbits(24):x}" for _ in range(3000)]
    for number in range(4):
        texts = [" ".join(generator.choices(words, k=generator.randrange(60))) for _ in range(2000 + 700 * number)]
        write_parquet(folder / f"{number}.parquet", texts, group_rows=500 + 300 * number)
    return str(folder / "*.parquet")


class _Reference:
    """A build in one process: its spec and the bytes of all listed files."""

    def __init__(self, folder: Path) -> None:
        (folder / "notes").mkdir()
        for number in range(3):
            (folder / "notes" / f"{number}.txt").write_text(f"note {number}\n" + "repeated line\n" * number)
        sources: list[dict[str, Any]] = [
            {"kind": "parquet", "path": _news(folder), "name": "news"},
            {"kind": "text", "path": str(folder / "notes" / "*.txt"), "name": "notes"},
        ]
        splits = {"train": 0.9, "validation": 0.05, "test": 0.05}
        self.spec = make_spec(folder / "store", sources, shard_tokens=700_000, splits=splits)
        self.hashes = listed_files(self.spec, build(self.spec).version)

    def elsewhere(self, folder: Path) -> BuildSpec:
        """The same spec with an empty store."""
        return self.spec.model_copy(update={"store": str(folder / "another")})


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> _Reference:
    return _Reference(tmp_path_factory.mktemp("same"))


@pytest.fixture(scope="module")
def prefect_server() -> Iterator[None]:
    """A Prefect server for this module's flows."""
    with (
        prefect_test_harness(server_startup_timeout=120),
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
    ):
        yield


def test_reference_build_is_worth_comparing(reference: _Reference) -> None:
    suffixes = {name.rpartition(".")[2] for name in reference.hashes}
    assert suffixes == {"tok", "docs", "json"}
    assert sum(name.startswith("train/") and name.endswith(".tok") for name in reference.hashes) > 2


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_number_of_workers_changes_no_byte(reference: _Reference, tmp_path: Path, num_workers: int) -> None:
    spec = reference.elsewhere(tmp_path)
    assert listed_files(spec, build(spec, num_workers).version) == reference.hashes


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_prefect_changes_no_byte(reference: _Reference, tmp_path: Path, num_workers: int) -> None:
    spec = reference.elsewhere(tmp_path)
    assert listed_files(spec, build_dataset(spec, num_workers)["version"]) == reference.hashes
