"""Exports read by the released readers themselves."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.builders.exported import Exportable
from tests.peers.environments import run_in
from tokenloom.flows.direct import export_directly
from tokenloom.tasks.exporting.formats import datatrove
from tokenloom.tasks.exporting.formats.base import ExportOptions

#: Writes with megatron-core's own builder, and reads ours with its own reader.
_MEGATRON = """
import json, sys
ours, theirs, width = sys.argv[1:]
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
from datatrove.utils.dataset import DatatroveFileDataset
files = sorted(Path(sys.argv[1]).glob("*.ds"))
ids = []
for path in files:
    found = DatatroveFileDataset(str(path), 0, token_size=int(sys.argv[2]))
    ids += [found[i]["input_ids"].item() for i in range(len(found))]
json.dump(ids, sys.stdout)
"""


@pytest.mark.parametrize(("vocab_size", "width"), [(256, 1), (50_000, 2), (150_000, 4)])
def test_megatron_files_are_those_of_its_own_builder(vocab_size: int, width: int, tmp_path: Path) -> None:
    made = Exportable(tmp_path, vocab_size, long_tokens=1_500_000)
    export_directly(made.reference, "megatron", str(tmp_path / "out"), ExportOptions([]), 0)
    for split in ("train", "validation"):
        ours, theirs = tmp_path / "out" / split, tmp_path / f"theirs-{split}"
        run_in("megatron", _MEGATRON, ours, theirs, width, given=str(made.documents[split]))
        for suffix in (".bin", ".idx"):
            hashes = [hashlib.sha256(Path(f"{path}{suffix}").read_bytes()).hexdigest() for path in (ours, theirs)]
            assert hashes[0] == hashes[1]


@pytest.mark.parametrize("vocab_size", [256, 50_000, 150_000])
def test_datatrove_reads_the_same_ids(vocab_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datatrove, "_PART_BYTES", 4000)
    made = Exportable(tmp_path, vocab_size)
    export_directly(made.reference, "datatrove", str(tmp_path / "out"), ExportOptions([]), 0)
    found = run_in("datatrove", _DATATROVE, tmp_path / "out" / "train", 4 if vocab_size > 2**16 else 2)
    assert found == str([token for document in made.documents["train"] for token in document])
