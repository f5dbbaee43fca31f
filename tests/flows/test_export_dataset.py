"""The flow export-dataset: it writes what `tokenloom export` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.exported import READERS, Exportable
from tokenloom.flows.version_flows import export_dataset

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]


def test_a_run_exports_each_version_into_a_folder_of_its_own(tmp_path: Path) -> None:
    made = Exportable(tmp_path, 50_000)
    result = export_dataset(made.reference, "megatron", f"{tmp_path}/{{version}}", splits="train")
    folder = tmp_path / result["version"]
    assert READERS["megatron"](folder, "train", 50_000)[0] == made.documents["train"]
    assert sorted(path.name for path in folder.glob("*.bin")) == ["train.bin"]
    assert not result["existed"]
    again = export_dataset(made.reference, "megatron", f"{tmp_path}/{{version}}", splits="train")
    assert again == result | {"existed": True}
