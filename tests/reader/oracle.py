"""What a reader must return, built row by row with plain slices of the tokens and document offsets of the shards."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.builders.synthetic_store import EOT, random_classes, random_documents, write_store
from tests.storage.test_packing import expected as expected_pieces
from tests.storage.test_packing import taken
from tokenloom.storage import open_shard
from tokenloom.storage.formats.classes import ROLES

PACKINGS = ("concat", "document", "document_padded", "best_fit")
FIELDS = ("cu_seqlens", "document_ids", "position_ids")
IGNORED = -100


def make_store(
    folder: Path, shard_tokens: Sequence[int], mean_tokens: float = 9.0, seed: int = 0, has_masks: bool = False
) -> str:
    """Write a version of short documents, with shards of about these numbers of tokens; return its reference."""
    shards = [random_documents(tokens, mean_tokens, seed * 1000 + i, 5000) for i, tokens in enumerate(shard_tokens)]
    masks = [random_classes(lengths, seed * 1000 + i) for i, (_, lengths) in enumerate(shards)] if has_masks else []
    return write_store(folder, shards, vocab_size=5000, masks=masks)


def shard_paths(reference: str) -> list[Path]:
    """Return the files of the split `train`, in order."""
    (version,) = (Path(reference) / "versions").iterdir()
    shards = json.loads((version / "manifest.json").read_text())["splits"]["train"]["shards"]
    return [version / shard["name"] for shard in shards]


@dataclass(frozen=True)
class Row:
    """The tokens of one sample, with what pads documents; the document in the shard and the class of each: all (n,)."""

    tokens: NDArray[np.int64]
    owners: NDArray[np.int64]
    classes: NDArray[np.int64]


def is_learned(number: int, learn: str | Collection[str]) -> bool:
    """Return whether a token of a class is a target, by the words of docs/guides/training.md."""
    role = ROLES[number % 16]
    if number < 128 or number % 128 >= 64:  # kept out of the loss; or the first of a conversation
        return False
    if learn == "last":
        return role == "text" or (number % 64 >= 32 and role in ("assistant", "reasoning", "tool_call"))
    if learn == "assistant":
        return role in ("text", "assistant", "reasoning", "tool_call")
    return learn == "all" or role in learn


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
        learn: str | Collection[str] = "assistant",
    ) -> None:
        self.seq_len, self.labels, self.fields, self.learn = seq_len, labels, fields, learn
        follows = bool({*fields} & {*FIELDS}) or packing.startswith("best_fit")
        self.mask = follows if mask_documents is None else mask_documents
        self.counts: list[int] = []  # rows in each shard
        self.rows: list[Row] = []
        for path in shard_paths(reference):
            shard = open_shard(path)
            lengths = np.diff(shard.document_offsets).astype(np.int64)
            tokens, owners = shard.tokens.astype(np.int64), np.repeat(np.arange(len(lengths)), lengths)
            mask, classes = path.with_suffix(".mask"), np.full(len(tokens), 129)
            if mask.exists():
                classes = np.frombuffer(mask.read_bytes(), np.uint8).astype(np.int64)
            samples = expected_pieces(packing, seq_len, lengths.tolist())
            multiple = packing.rpartition("_pad")[2]
            self.counts.append(len(samples))
            for pieces in samples:
                sizes = taken(pieces, seq_len, int(multiple) if multiple.isdecimal() else 1)
                parts = []
                for (a, b), size in zip(pieces, sizes, strict=True):
                    padding = size - (b - a)  # it belongs to the document, and has the class of no token
                    parts += [(tokens[a:b], owners[a:b], classes[a:b])]
                    parts += [(np.full(padding, EOT), np.full(padding, owners[a]), np.zeros(padding, np.int64))]
                self.rows.append(Row(*(np.concatenate(x) for x in zip(*parts, strict=True))))

    def __len__(self) -> int:
        return len(self.rows)

    def sample(self, index: int | None) -> dict[str, list[int]]:
        """Return one sample; for None, a sample of padding."""
        names = ("input_ids", "labels", *self.fields)
        return {name: values for name, values in self._sample(index).items() if name in names}

    def _sample(self, index: int | None) -> dict[str, list[int]]:
        nothing = np.zeros(0, dtype=np.int64)
        row = Row(nothing, nothing, nothing) if index is None else self.rows[index]
        tokens, owners, classes = row.tokens.tolist(), row.owners.tolist(), row.classes.tolist()
        names = ("input_ids", "labels", "document_ids", "position_ids", "classes")
        made: dict[str, list[int]] = {name: [] for name in names}
        for place in range(self.seq_len):
            is_padding = place >= len(tokens)
            before = made["document_ids"][-1] if place else None
            new = not is_padding and place > 0 and owners[place] != owners[place - 1]
            document = -1 if is_padding else 0 if before is None else before + new
            made["position_ids"].append(made["position_ids"][-1] + 1 if before == document else 0)
            made["document_ids"].append(document)
            made["input_ids"].append(EOT if is_padding else tokens[place])
            made["labels"].append(self._label(tokens, owners, classes, place))
            made["classes"].append([*classes, *[0] * (self.seq_len + 1)][place + (self.labels == "shifted")])
        return made

    def _label(self, tokens: list[int], owners: list[int], classes: list[int], place: int) -> int:
        target = place + (self.labels == "shifted")
        if target >= len(tokens) or not is_learned(classes[target], self.learn):
            return IGNORED
        if self.mask and target > 0 and owners[target] != owners[target - 1]:
            return IGNORED
        return tokens[target]

    def batch(self, indices: Iterable[int | None]) -> dict[str, Any]:
        """Return the batch of these samples as lists, with cu_seqlens and max_seqlen if the fields include them."""
        samples = [self._sample(index) for index in indices]
        names = [name for name in samples[0] if name in ("input_ids", "labels", *self.fields)]
        batch: dict[str, Any] = {name: [sample[name] for sample in samples] for name in names}
        first = int(self.labels == "same")  # models shift these labels, and drop the first
        batch["num_targets"] = sum(label != IGNORED for labels in batch["labels"] for label in labels[first:])
        if "cu_seqlens" in self.fields:
            positions = [place for sample in samples for place in sample["position_ids"]]
            starts = [i for i, place in enumerate(positions) if place == 0] + [len(positions)]
            batch["cu_seqlens"] = starts
            batch["max_seqlen"] = max(b - a for a, b in itertools.pairwise(starts))
        return batch


def as_lists(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch of tensors as lists, which one comparison covers."""
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in batch.items()}


def copied(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a batch that shares no memory with it."""
    return {name: value.clone() if hasattr(value, "clone") else value for name, value in batch.items()}


def assert_same(batch: dict[str, Any], other: dict[str, Any]) -> None:
    """Raise AssertionError unless two batches have equal names, types, shapes and values."""
    import torch  # the rest of this module needs none

    assert list(batch) == list(other)
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == other[name].dtype, name
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name
