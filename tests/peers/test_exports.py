"""Exports read by the released readers themselves: every token, document and mask, of every type of ids."""

from __future__ import annotations

import hashlib
import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.exported import Exportable, cut, small_parts
from tests.builders.synthetic_store import EOT
from tests.peers.environments import VISION, run_in
from tokenloom.flows.export_steps import export_directly
from tokenloom.storage.formats.classes import learned_classes
from tokenloom.tasks.exporting.base import ExportOptions

_SPLITS = ("train", "validation")
_BLOCK = 7

_VOCABULARIES = {"uint8": 256, "uint16": 50_000, "uint32": 150_000}


@pytest.fixture(scope="module", params=["uint8", "uint16", "uint16-masks", "uint32-masks"])
def version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exportable:
    """A version of each type of ids, with masks and without, of several shards; one of 3 MB in those of uint16."""
    vocab_size = _VOCABULARIES[request.param.partition("-")[0]]
    folder = tmp_path_factory.mktemp("version")
    tokens = 1_500_000 if vocab_size == 50_000 else 50_000
    return Exportable(folder, vocab_size, with_masks="-masks" in request.param, long_tokens=tokens)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let formats with numbered files make several of little data."""
    small_parts(monkeypatch)


def _export(version: Exportable, name: str, folder: Path, **options: Any) -> Path:
    """Export all splits; return the folder. The one without documents gets no file."""
    export_directly(version.reference, name, str(folder / "out"), ExportOptions([], **options), 0)
    return folder / "out"


def _masks(version: Exportable, split: str) -> list[list[bool]]:
    """Return whether each token of each document is learned."""
    return [learned_classes("assistant")[classes].tolist() for classes in version.classes[split]]


def _labels(version: Exportable, split: str) -> list[list[int]]:
    """Return the labels of each document, none without masks."""
    pairs = zip(version.documents[split], _masks(version, split), strict=bool(version.classes[split]))
    return [np.where(mask, ids, -100).tolist() for ids, mask in pairs]


def _stream(lists: list[list[Any]]) -> list[Any]:
    """Return the items of all lists, end to end."""
    return list(chain.from_iterable(lists))


def _samples(documents: list[list[int]]) -> list[list[int]]:
    """Return the blocks of one stream of tokens."""
    stream = np.array(_stream(documents))
    return stream[: len(stream) // _BLOCK * _BLOCK].reshape(-1, _BLOCK).tolist()


#: Writes with megatron-core's own builder, and reads ours with its own reader.
_MEGATRON = """
import json, sys
import numpy
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
ours, theirs, width = sys.argv[1:]
dtype = {"1": numpy.uint8, "2": numpy.uint16, "4": numpy.int32}[width]
for split, documents in json.load(sys.stdin).items():
    builder = IndexedDatasetBuilder(theirs + split + ".bin", dtype=dtype)
    for document in documents:
        builder.add_document(numpy.array(document), [len(document)])
    builder.finalize(theirs + split + ".idx")
    found = IndexedDataset(ours + split)
    assert len(found) == len(documents)
    assert all(found[i].tolist() == document for i, document in enumerate(documents))
    assert found.document_indices.tolist() == list(range(len(documents) + 1))
"""


def test_megatron_files_are_those_of_its_own_builder(version: Exportable, tmp_path: Path) -> None:
    out, width = _export(version, "megatron", tmp_path), np.min_scalar_type(version.vocab_size - 1).itemsize
    given = {split: version.documents[split] for split in _SPLITS}
    run_in("megatron", _MEGATRON, f"{out}/", f"{tmp_path}/", width, given=json.dumps(given))
    for name in (f"{split}{suffix}" for split in _SPLITS for suffix in (".bin", ".idx")):
        hashes = [hashlib.sha256((folder / name).read_bytes()).hexdigest() for folder in (out, tmp_path)]
        assert hashes[0] == hashes[1]


#: Documents by the .csv.gz and, as OLMo-core does on a local path, by the end-of-text id; blocks with their masks.
_OLMO = """
import json, sys
from pathlib import Path
import numpy
from olmo_core.data import NumpyFSLDataset
from olmo_core.data.utils import iter_document_indices, load_array_slice
vocab_size, eot, block = map(int, sys.argv[1:4])
dtype = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32}[numpy.min_scalar_type(vocab_size - 1).itemsize]
found = []
for folder in map(Path, sys.argv[4:]):
    paths, masks = sorted(folder.glob("token_ids_*.npy")), sorted(folder.glob("labels_mask_*.npy"))
    documents = []
    for path in paths:
        bounds = list(iter_document_indices(path, use_array_if_local=False))
        assert bounds == list(iter_document_indices(path, eos_token_id=eot, dtype=dtype))
        documents += [load_array_slice(path, *pair, dtype).tolist() for pair in bounds]
    made = NumpyFSLDataset(*paths, sequence_length=block, pad_token_id=eot, eos_token_id=eot, vocab_size=vocab_size,
                           dtype=dtype, label_mask_paths=masks or None)
    made.prepare()
    blocks = [made[i] for i in range(made.offsets[0][1])]  # of the first file; the others begin where their files do
    found.append({"documents": documents, "files": len(paths), "blocks": [b["input_ids"].tolist() for b in blocks],
                  "masks": [b["label_mask"].tolist() for b in blocks] if masks else [],
                  "all_masks": [numpy.fromfile(path, numpy.bool_).tolist() for path in masks]})
json.dump(found, sys.stdout)
"""


def test_olmo_core_reads_the_same_documents_and_masks(version: Exportable, tmp_path: Path) -> None:
    out = _export(version, "olmo", tmp_path)
    printed = run_in("olmo", _OLMO, version.vocab_size, EOT, _BLOCK, *(out / split for split in _SPLITS))
    for split, found in zip(_SPLITS, json.loads(printed), strict=True):
        assert found["documents"] == version.documents[split]
        assert found["files"] > 1
        blocks = _stream(found["blocks"])
        assert blocks
        assert blocks == _stream(version.documents[split])[: len(blocks)]
        if version.classes[split]:
            masks = _stream(_masks(version, split))
            assert _stream(found["masks"]) == masks[: len(blocks)]
            assert _stream(found["all_masks"]) == masks


#: The ids of each file as one window, and the place of each of them in its document.
_DATATROVE = """
import json, sys
from pathlib import Path
from datatrove.utils.dataset import DatatroveFileDataset
width, found = int(sys.argv[1]), []
for folder in map(Path, sys.argv[2:]):
    documents = []
    for path in sorted(folder.glob("*.ds")):
        count = path.stat().st_size // width
        window = DatatroveFileDataset(str(path), count - 1, token_size=width, return_positions=True)[0]
        for token, place in zip(window["input_ids"].tolist(), window["positions"].tolist()):
            if place == 0:
                documents.append([])
            documents[-1].append(token)
    found.append(documents)
json.dump(found, sys.stdout)
"""


def test_datatrove_reads_the_same_documents(version: Exportable, tmp_path: Path) -> None:
    out = _export(version, "datatrove", tmp_path)
    width = 4 if version.vocab_size > 2**16 else 2
    found = json.loads(run_in("datatrove", _DATATROVE, width, *(out / split for split in _SPLITS)))
    assert found == [version.documents[split] for split in _SPLITS]


#: llm.c's files as nemo-automodel reads them.
_AUTOMODEL = """
import importlib.util, json, sys
from pathlib import Path
(file,) = Path(sys.prefix).glob("lib/*/site-packages/nemo_automodel/components/datasets/llm/nanogpt_dataset.py")
spec = importlib.util.spec_from_file_location("nanogpt_dataset", file)
module = sys.modules["nanogpt_dataset"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
json.dump({path: module.load_bin_shard(path).tolist() for path in sys.argv[1:]}, sys.stdout)
"""


def test_automodel_reads_the_files_of_llmc(version: Exportable, tmp_path: Path) -> None:
    if version.vocab_size > 2**16:
        pytest.skip("nemo-automodel does not read the number of llm.c's files of 32 bits")
    out = _export(version, "llmc", tmp_path / "out")
    files = json.loads(run_in("automodel", _AUTOMODEL, *sorted(out.glob("*.bin"))))
    for split, short in (("train", "train"), ("validation", "val")):
        paths = sorted(map(str, out.glob(f"*_{short}_*.bin")))
        assert len(paths) > 1
        found = []
        for ids in (np.array(files[path]) for path in paths):
            places = np.flatnonzero(ids == EOT)
            assert places[0] == 0
            found += [[*document[1:], EOT] for document in cut(ids, [*places[1:], len(ids)])]
        assert found == version.documents[split]


_DATASETS = """
import json, sys
import datasets
datasets.disable_progress_bars()
found = {}
for split, data in datasets.load_from_disk(sys.argv[1]).items():
    found[split] = {name: data[name][:] for name in data.column_names}
    assert data.with_format("torch" if len(sys.argv) > 2 else "numpy")[0]["input_ids"].tolist() == data[0]["input_ids"]
    parquet = datasets.Dataset.from_parquet([str(path) for path in sorted(__import__("pathlib").Path(
        sys.argv[1] + "-parquet", split).glob("*.parquet"))], cache_dir=sys.argv[1] + "-cache")
    assert all(parquet[name][:] == data[name][:] for name in data.column_names)
json.dump(found, sys.stdout)
"""


@pytest.mark.parametrize("environment", ["datasets", "datasets-3"])
def test_datasets_reads_the_same_rows(version: Exportable, environment: str, tmp_path: Path) -> None:
    out = _export(version, "huggingface", tmp_path)
    export_directly(version.reference, "parquet", f"{out}-parquet", ExportOptions([]), 0)
    found = json.loads(run_in(environment, _DATASETS, out))
    assert list(found) == list(_SPLITS)
    for split in _SPLITS:
        assert found[split]["input_ids"] == version.documents[split]
        assert found[split].get("labels", []) == _labels(version, split)


#: Read as from a store, so that it compares the checksums in the index; by index and in order.
_STREAMING = (
    VISION
    + """
import json, sys
from streaming import StreamingDataset
columns = []
for out, split in zip(sys.argv[1::2], sys.argv[2::2]):
    data = StreamingDataset(remote=out, local=out + "-local", split=split, batch_size=1, num_canonical_nodes=1,
                            shuffle=False, validate_hash="xxh3_128")
    found = [{name: value.tolist() for name, value in data[i].items()} for i in range(len(data))]
    assert [{name: value.tolist() for name, value in each.items()} for each in data] == found
    columns.append({name: [each[name] for each in found] for name in found[0]})
json.dump(columns, sys.stdout)
"""
)


def _documents_and_samples(
    version: Exportable, name: str, folder: Path, patch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """Export a version by documents, in small parts, and by samples, in one part a split."""
    out = _export(version, name, folder)
    patch.undo()
    return out, _export(version, name, folder / "samples", seq_len=_BLOCK)


def test_streaming_reads_the_same_documents_and_samples(
    version: Exportable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, samples = _documents_and_samples(version, "mds", tmp_path, monkeypatch)
    wanted = [(out, split) for split in _SPLITS] + [(samples, "validation")]
    *found, cut_up = json.loads(run_in("streaming", _STREAMING, *chain.from_iterable(wanted)))
    for split, columns in zip(_SPLITS, found, strict=True):
        assert columns["tokens"] == version.documents[split]
        assert columns.get("labels", []) == _labels(version, split)
    assert cut_up["tokens"] == _samples(version.documents["validation"])
    if version.classes["validation"]:
        assert cut_up["labels"] == _samples(_labels(version, "validation"))


#: With masks by rows, else by blocks of tokens.
_LITDATA = """
import json, sys
from litdata import StreamingDataset, TokensLoader
block, found = int(sys.argv[1]), []
for folder in sys.argv[2:]:
    data = StreamingDataset(folder, item_loader=TokensLoader(block_size=block) if block else None)
    found.append([v.tolist() if block else {name: items.tolist() for name, items in v.items()} for v in data])
json.dump(found, sys.stdout)
"""


def test_litdata_reads_the_same_tokens_and_samples(
    version: Exportable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, samples = _documents_and_samples(version, "litdata", tmp_path, monkeypatch)
    folders = [*(out / split for split in _SPLITS), samples / "validation"]
    masks = bool(version.classes["validation"])
    *found, cut_up = json.loads(run_in("litdata", _LITDATA, 0 if masks else _BLOCK, *folders))
    for split, items in zip(_SPLITS, found, strict=True):
        if masks:
            assert [row["input_ids"] for row in items] == version.documents[split]
            assert [row["labels"] for row in items] == _labels(version, split)
        else:
            _check_blocks(out / split, items, _stream(version.documents[split]))
    assert ([row["input_ids"] for row in cut_up] if masks else cut_up) == _samples(version.documents["validation"])
    if masks:
        assert [row["labels"] for row in cut_up] == _samples(_labels(version, "validation"))


def _check_blocks(folder: Path, found: list[list[int]], stream: list[int]) -> None:
    """Check that the blocks of each chunk are its tokens without its tail, as the line of losses says."""
    at = 0
    for chunk in json.loads((folder / "index.json").read_text())["chunks"]:
        blocks = chunk["dim"] // _BLOCK
        assert _stream(found[:blocks]) == stream[at : at + blocks * _BLOCK]
        found, at = found[blocks:], at + chunk["dim"]
    assert (found, at) == ([], len(stream))
