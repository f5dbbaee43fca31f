"""The field source_ids, in every packing and from a mixture, and passes over the documents of one source."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.datasets import build, make_spec, write_jsonl, write_parquet
from tests.builders.late_cuda import pretend_cuda
from tokenloom.errors import TokenloomError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import EvaluationPass, TokenLoader
from tokenloom.reader.mixture import Mixture
from tokenloom.storage.packing.packings import PACKINGS

_T = 32
_SOURCES = {"letters": b"abcde", "digits": b"0123456789", "capitals": b"XYZ"}


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    """A version of three sources, each of which has its own bytes: the byte tokenizer shows the source of a token."""
    sources = []
    for number, (name, alphabet) in enumerate(_SOURCES.items()):
        rng = np.random.default_rng(number)
        texts = ["".join(chr(c) for c in rng.choice([*alphabet], rng.integers(1, 90))) for _ in range(150)]
        path = folder / f"ids_{name}.{'jsonl' if number else 'parquet'}"
        (write_jsonl if number else write_parquet)(path, texts)
        sources.append({"kind": "jsonl" if number else "parquet", "path": str(path), "name": name})
    spec = make_spec(folder / "ids", sources, splits={"train": 1.0}, shard_tokens=3000)
    return f"{spec.store}/data@{build(spec).version}"


def assert_right(data: TokenDataset, labels: Any, source_ids: Any) -> None:
    """Compare the sources of labels with the alphabets of the bytes; end-of-text belongs to its document."""
    assert source_ids.shape == labels.shape
    assert source_ids.dtype == np.int32
    for token, source in zip(labels.ravel().tolist(), source_ids.ravel().tolist(), strict=True):
        if source >= 0 and 0 <= token < 255:
            assert token in _SOURCES[data.sources[source]]


@pytest.mark.parametrize("packing", [*PACKINGS, "best_fit_pad8"])
@pytest.mark.parametrize("labels", ["shifted", "same"])
def test_each_label_has_the_source_of_its_token(reference: str, packing: str, labels: str) -> None:
    options: dict[str, Any] = {"packing": packing, "labels": labels, "mask_documents": packing.endswith("pad8") or None}
    data = TokenDataset(reference, seq_len=_T, fields=["source_ids"], **options)
    assert sorted(data.sources) == sorted(_SOURCES)
    seen = set()
    for batch in TokenLoader(data, 4, num_epochs=1, device="numpy"):
        assert_right(data, batch["labels"], batch["source_ids"])
        is_learned = batch["labels"] >= 0
        assert (batch["source_ids"][is_learned] >= 0).all()
        seen |= {*batch["source_ids"].ravel().tolist()}
    assert seen - {-1} == {0, 1, 2}
    sample = data[3]
    assert_right(data, sample["labels"], sample["source_ids"])
    again = copy.deepcopy(data)
    assert (again[3]["source_ids"] == sample["source_ids"]).all()


def test_a_cuda_device_gets_them_and_other_values_do_not_change(
    reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = TokenLoader(TokenDataset(reference, seq_len=_T), 4, num_epochs=1, device="numpy")
    data = TokenDataset(reference, seq_len=_T, fields=["source_ids"])
    named = [*TokenLoader(data, 4, num_epochs=1, device="numpy")]
    pretend_cuda(monkeypatch)
    for a, b, copied in zip(plain, named, TokenLoader(data, 4, num_epochs=1, device="cuda"), strict=True):
        assert (copied["source_ids"].numpy() == b["source_ids"]).all()
        assert (a["input_ids"] == b["input_ids"]).all()
        assert (a["labels"] == b["labels"]).all()


def test_a_mixture_has_the_sources_of_each_member(reference: str) -> None:
    parts = {"a": (0, 0.5), "b": (0.5, 1)}
    fields = ["source_ids", "member"]
    members = {name: TokenDataset(reference, seq_len=_T, fields=fields, part=part) for name, part in parts.items()}
    loader = TokenLoader(Mixture({name: (data, 1) for name, data in members.items()}), 4, device="numpy")
    for _ in range(20):
        batch = next(loader)
        for member, labels, sources in zip(batch["member"], batch["labels"], batch["source_ids"], strict=True):
            assert_right([*members.values()][member], labels, sources)
    loader.close()


@pytest.mark.parametrize("packing", ["document", "document_padded"])
def test_a_pass_over_a_source_reads_its_documents_alone(reference: str, packing: str) -> None:
    data = TokenDataset(reference, seq_len=_T, packing=packing, fields=["source_ids"])
    rows: dict[str, list[list[int]]] = {name: [] for name in data.sources}
    for sample in data[:]:
        rows[data.sources[sample["source_ids"][0]]].append(sample["input_ids"].tolist())
    for name, expected in rows.items():
        batches = [*EvaluationPass(data, 4, source=name, device="numpy")]
        read = [row.tolist() for batch in batches for row in batch["input_ids"]][: len(expected)]
        assert read == expected
        assert len(batches) == -(-len(expected) // 4)
        two = [EvaluationPass(data, 4, source=name, device="numpy", rank=rank, world_size=2) for rank in range(2)]
        assert sum((batch["labels"] >= 0).sum() for one in two for batch in one) == sum(
            (batch["labels"] >= 0).sum() for batch in batches
        )


def test_a_state_has_the_source_and_a_source_counts_its_own_tokens(reference: str) -> None:
    data = TokenDataset(reference, seq_len=_T, packing="document_padded")
    chosen = {name: data.of_source(name) for name in data.sources}
    assert sum(one.num_tokens for one in chosen.values()) == data.num_tokens
    loader = TokenLoader(chosen["digits"], 4, device="numpy")
    next(loader)
    state = loader.state_dict()
    with pytest.raises(TokenloomError, match="source is 'digits' in the state, None in the loader"):
        TokenLoader(data, 4).load_state_dict(state)
    resumed = TokenLoader.from_state(str(Path(reference).parent), state, 4, device="numpy")
    assert (next(resumed)["input_ids"] == next(loader)["input_ids"]).all()
    with pytest.warns(UserWarning, match="no samples"):
        small = TokenDataset(reference, seq_len=_T, packing="document", part=(0.5, 0.5001))
    with pytest.raises(ValueError, match="no document that it reads has the source 'digits'; choose another one"):
        TokenLoader(small.of_source("digits"), 4)
    for one in (loader, resumed):
        one.close()


def test_a_source_that_cannot_be_read_alone_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match=r"packing 'concat' joins documents .* use packing='document_padded', or 'doc"):
        EvaluationPass(TokenDataset(reference, seq_len=_T), 4, source="letters")
    with pytest.raises(ValueError, match=r"source must be one of .*letters.*, not 'numbers'"):
        EvaluationPass(TokenDataset(reference, seq_len=_T, packing="document"), 4, source="numbers")
    data = TokenDataset(reference, seq_len=_T, packing="document")
    data.sources.append("archive")  # a source of the version that this split has no document of
    with pytest.raises(ValueError, match="no document that it reads has the source 'archive'; choose another one"):
        EvaluationPass(data, 4, source="archive")
