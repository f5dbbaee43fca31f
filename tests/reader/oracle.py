"""What a reader must return, built row by row with plain slices of the tokens and document offsets of the shards."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.builders.synthetic_store import EOT, random_documents, write_store
from tests.storage.test_packing import expected as expected_pieces
from tokenloom.storage import open_shard

PACKINGS = ("concat", "document", "document_padded", "best_fit")
FIELDS = ("cu_seqlens", "document_ids", "position_ids")
IGNORED = -100


def make_store(folder: Path, shard_tokens: Sequence[int], mean_tokens: float = 9.0, seed: int = 0) -> str:
    """Write a version of short documents, with shards of about these numbers of tokens; return its reference."""
    shards = [random_documents(tokens, mean_tokens, seed * 1000 + i, 5000) for i, tokens in enumerate(shard_tokens)]
    return write_store(folder, shards, vocab_size=5000)


def shard_paths(reference: str) -> list[Path]:
    """Return the files of the split `train`, in order."""
    (version,) = (Path(reference) / "versions").iterdir()
    shards = json.loads((version / "manifest.json").read_text())["splits"]["train"]["shards"]
    return [version / shard["name"] for shard in shards]


@dataclass(frozen=True)
class Row:
    """The tokens of one sample, and the document in the shard that each belongs to: both (n,), n at most T + 1."""

    tokens: NDArray[np.int64]
    owners: NDArray[np.int64]


class Oracle:
    """The rows of a split in natural order, and the samples and batches cut from them."""

    def __init__(
        self,
        reference: str,
        seq_len: int,
        packing: str = "concat",
        labels: str = "shifted",
        fields: Sequence[str] = (),
        mask_documents: bool | None = None,
    ) -> None:
        self.seq_len, self.labels, self.fields = seq_len, labels, fields
        self.mask = (bool(fields) or packing == "best_fit") if mask_documents is None else mask_documents
        self.counts: list[int] = []  # rows in each shard
        self.rows: list[Row] = []
        for path in shard_paths(reference):
            shard = open_shard(path)
            lengths = np.diff(shard.document_offsets).astype(np.int64)
            tokens, owners = shard.tokens.astype(np.int64), np.repeat(np.arange(len(lengths)), lengths)
            samples = expected_pieces(packing, seq_len, lengths.tolist())
            self.counts.append(len(samples))
            for pieces in samples:
                parts = [(tokens[a:b], owners[a:b]) for a, b in pieces]
                self.rows.append(Row(*(np.concatenate(x) for x in zip(*parts, strict=True))))

    def __len__(self) -> int:
        return len(self.rows)

    def sample(self, index: int | None) -> dict[str, list[int]]:
        """Return one sample; for None, a sample of padding."""
        names = ("input_ids", "labels", *self.fields)
        return {name: values for name, values in self._sample(index).items() if name in names}

    def _sample(self, index: int | None) -> dict[str, list[int]]:
        nothing = np.zeros(0, dtype=np.int64)
        row = Row(nothing, nothing) if index is None else self.rows[index]
        tokens, owners = row.tokens.tolist(), row.owners.tolist()
        made: dict[str, list[int]] = {"input_ids": [], "labels": [], "document_ids": [], "position_ids": []}
        for place in range(self.seq_len):
            is_padding = place >= len(tokens)
            before = made["document_ids"][-1] if place else None
            new = not is_padding and place > 0 and owners[place] != owners[place - 1]
            document = -1 if is_padding else 0 if before is None else before + new
            made["position_ids"].append(made["position_ids"][-1] + 1 if before == document else 0)
            made["document_ids"].append(document)
            made["input_ids"].append(EOT if is_padding else tokens[place])
            made["labels"].append(self._label(tokens, owners, place))
        return made

    def _label(self, tokens: list[int], owners: list[int], place: int) -> int:
        target = place + (self.labels == "shifted")
        if target >= len(tokens):
            return IGNORED
        if self.mask and target > 0 and owners[target] != owners[target - 1]:
            return IGNORED
        return tokens[target]

    def batch(self, indices: Iterable[int | None]) -> dict[str, Any]:
        """Return the batch of these samples as lists, with cu_seqlens and max_seqlen if the fields include them."""
        samples = [self._sample(index) for index in indices]
        names = [name for name in samples[0] if name in ("input_ids", "labels", *self.fields)]
        batch: dict[str, Any] = {name: [sample[name] for sample in samples] for name in names}
        if "cu_seqlens" in self.fields:
            positions = [place for sample in samples for place in sample["position_ids"]]
            starts = [i for i, place in enumerate(positions) if place == 0] + [len(positions)]
            batch["cu_seqlens"] = starts
            batch["max_seqlen"] = max(b - a for a, b in itertools.pairwise(starts))
        return batch


def as_lists(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch of tensors as lists, which one comparison covers."""
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def copied(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a batch that shares no memory with it."""
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def assert_same(batch: dict[str, Any], other: dict[str, Any]) -> None:
    """Raise AssertionError unless two batches have equal names, types, shapes and values."""
    assert list(batch) == list(other)
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == other[name].dtype, name
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name
