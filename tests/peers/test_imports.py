"""Token files that released packages write themselves, imported: every token, document and mask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.synthetic_store import EOT, random_documents
from tests.builders.token_files import documents_in, ids_in, masks_in
from tests.peers.environments import run_in
from tests.tasks.test_token_formats import read_all

_VOCABULARIES = {2: 50_000, 4: 150_000}
Lists = list[list[int]]


@pytest.fixture(scope="module", params=_VOCABULARIES, ids=["uint16", "uint32"])
def written(request: pytest.FixtureRequest) -> tuple[int, Lists, Lists]:
    """The bytes of an id, documents that end with EOT, and whether each token is learned."""
    tokens, lengths = random_documents(20_000, 30, 1, _VOCABULARIES[request.param])
    documents = [ids.tolist() for ids in np.split(tokens, np.cumsum(lengths)[:-1])]
    return request.param, documents, [[i % 3 & 1 for i in ids] for ids in documents]


def _without_eot(documents: Lists) -> Lists:
    return [ids[:-1] for ids in documents]


def _read(form: str, path: Path, width: int) -> list[Any]:
    return read_all(form, path, vocab_size=_VOCABULARIES[width], eot_id=EOT)


_DATATROVE = """
import json, sys
import numpy
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
folder, width, has_index, has_metadata = sys.argv[1], *map(int, sys.argv[2:])
made = TokenizedFile(folder, "a.ds", save_index=bool(has_index), save_loss_metadata=True, token_size=width,
                     tokenizer_name_or_path="made", save_final_metadata=bool(has_metadata))
for ids, learned in zip(*json.load(sys.stdin)):
    made.write(ids, numpy.array(learned, bool))
made.close()
"""


@pytest.mark.parametrize("has_index", [1, 0])
@pytest.mark.parametrize("has_metadata", [1, 0])
def test_files_of_datatrove(
    has_index: int, has_metadata: int, written: tuple[int, Lists, Lists], tmp_path: Path
) -> None:
    width, documents, masks = written
    run_in("datatrove", _DATATROVE, tmp_path, width, has_index, has_metadata, given=json.dumps([documents, masks]))
    found = _read("datatrove", tmp_path / "*", width)
    assert ids_in(found) == _without_eot(documents)
    assert masks_in(found) == masks


_MEGATRON = """
import json, sys
import numpy, torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
prefix, dtype = sys.argv[1:]
made = IndexedDatasetBuilder(prefix + ".bin", dtype=numpy.dtype(dtype).type)
for number, ids in enumerate(json.load(sys.stdin)):
    cut = len(ids) // 2 if number % 3 == 0 and len(ids) > 1 else 0
    for part in (ids[:cut], ids[cut:]) if cut else (ids,):
        made.add_item(torch.tensor(part))
    made.end_document()
made.finalize(prefix + ".idx")
"""


def test_files_of_megatron_core_whose_documents_may_have_two_sequences(
    written: tuple[int, Lists, Lists], tmp_path: Path
) -> None:
    width, documents, _ = written
    run_in("megatron", _MEGATRON, tmp_path / "a", {2: "uint16", 4: "int32"}[width], given=json.dumps(documents))
    found = documents_in(_read("megatron", tmp_path / "*.bin", width))
    assert found == list(enumerate(_without_eot(documents)))


_OLMO = """
import sys
from pathlib import Path
import numpy
from olmo_core.data.utils import write_document_indices
write_document_indices(Path(sys.argv[1]), dtype={2: numpy.uint16, 4: numpy.uint32}[int(sys.argv[2])],
                       eos_token_id=int(sys.argv[3]))
"""


def test_lines_of_olmo_core(written: tuple[int, Lists, Lists], tmp_path: Path) -> None:
    width, documents, _ = written
    np.concatenate(documents).astype(f"<u{width}").tofile(tmp_path / "a.npy")
    run_in("olmo", _OLMO, tmp_path / "a.npy", width, EOT)
    found = documents_in(_read("olmo", tmp_path / "*", width))
    assert found == list(enumerate(_without_eot(documents)))


_DATASETS = """
import json, sys
from datasets import Dataset, DatasetDict
documents, masks = json.load(sys.stdin)
labels = [[i if m else -100 for i, m in zip(*pair)] for pair in zip(documents, masks)]
ones = [[1] * len(ids) for ids in documents]
made = Dataset.from_dict({"input_ids": documents, "labels": labels, "attention_mask": ones})
made.to_parquet(sys.argv[1] + "/a.parquet", batch_size=100)
DatasetDict({"train": made}).save_to_disk(sys.argv[1] + "/saved", num_shards={"train": 3})
"""


@pytest.mark.parametrize("environment", ["datasets", "datasets-3"])
def test_datasets_of_hugging_face(environment: str, written: tuple[int, Lists, Lists], tmp_path: Path) -> None:
    width, documents, masks = written
    run_in(environment, _DATASETS, tmp_path, given=json.dumps([documents, masks]))
    for path in (tmp_path / "a.parquet", tmp_path / "saved" / "train"):
        found = _read("huggingface", path, width)
        assert ids_in(found) == _without_eot(documents)
        assert masks_in(found) == masks
