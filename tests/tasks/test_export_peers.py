"""Exports read by the released readers themselves: TOKENLOOM_PEERS=1, in environments that are made for each."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.builders.exported import Exportable
from tokenloom.flows.direct import export_directly
from tokenloom.tasks.exporting.formats import datatrove
from tokenloom.tasks.exporting.formats.base import ExportOptions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("TOKENLOOM_PEERS") != "1", reason="needs released readers: set TOKENLOOM_PEERS=1"
    ),
]

#: Writes with megatron-core's own builder, and reads ours with its own reader. The rest of megatron.core needs a GPU's
#: libraries, so the modules that indexed_dataset imports of it are loaded without its __init__.
_MEGATRON = """
import json, sys, types
from pathlib import Path
root, ours, theirs, width = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
for name in ("megatron", "megatron.core", "megatron.core.datasets"):
    package = types.ModuleType(name)
    package.__path__ = [str(root.joinpath(*name.split(".")))]
    sys.modules[name] = package
utils = types.ModuleType("megatron.core.utils")
utils.log_single_rank = lambda *_: None
sys.modules["megatron.core.utils"] = utils
import numpy
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
documents = json.load(sys.stdin)
builder = IndexedDatasetBuilder(theirs + ".bin", dtype={"1": numpy.uint8, "2": numpy.uint16, "4": numpy.int32}[width])
for document in documents:
    builder.add_document(numpy.array(document), [len(document)])
builder.finalize(theirs + ".idx")
found = IndexedDataset(ours)
assert len(found) == len(documents)
assert all(found[i].tolist() == document for i, document in enumerate(documents))
assert found.document_indices.tolist() == list(range(len(documents) + 1))
"""
_DATATROVE = """
import json, sys
from pathlib import Path
from unittest.mock import MagicMock
sys.path.insert(0, sys.argv[1])
sys.modules["loguru"] = MagicMock()  # all that it lacks here
from datatrove.utils.dataset import DatatroveFileDataset
files = sorted(Path(sys.argv[2]).glob("*.ds"))
ids = []
for path in files:
    found = DatatroveFileDataset(str(path), 0, token_size=int(sys.argv[3]))
    ids += [found[i]["input_ids"].item() for i in range(len(found))]
json.dump(ids, sys.stdout)
"""


def _wheel(folder: Path, requirement: str) -> Path:
    """Download a wheel without what it needs, and unpack it."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), requirement]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def _run(program: str, *arguments: object, given: str = "") -> str:
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("vocab_size", "width"), [(256, 1), (50_000, 2), (150_000, 4)])
def test_megatron_files_are_those_of_its_own_builder(vocab_size: int, width: int, tmp_path: Path) -> None:
    made = Exportable(tmp_path, vocab_size, long_tokens=1_500_000)
    package = _wheel(tmp_path / "wheel", "megatron-core==0.16.1")
    export_directly(made.reference, "megatron", str(tmp_path / "out"), ExportOptions([]), 0)
    for split in ("train", "validation"):
        ours, theirs = tmp_path / "out" / split, tmp_path / f"theirs-{split}"
        _run(_MEGATRON, package, ours, theirs, width, given=str(made.documents[split]))
        for suffix in (".bin", ".idx"):
            hashes = [hashlib.sha256(Path(f"{path}{suffix}").read_bytes()).hexdigest() for path in (ours, theirs)]
            assert hashes[0] == hashes[1]


@pytest.mark.parametrize("vocab_size", [256, 50_000, 150_000])
def test_datatrove_reads_the_same_ids(vocab_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datatrove, "_PART_BYTES", 4000)
    made = Exportable(tmp_path, vocab_size)
    package = _wheel(tmp_path / "wheel", "datatrove==0.10.1")
    export_directly(made.reference, "datatrove", str(tmp_path / "out"), ExportOptions([]), 0)
    found = _run(_DATATROVE, package, tmp_path / "out" / "train", 4 if vocab_size > 2**16 else 2)
    assert found == str([token for document in made.documents["train"] for token in document])
