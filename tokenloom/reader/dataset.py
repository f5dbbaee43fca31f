"""TokenDataset: samples of a split over memory-mapped shards, map-style by protocol."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError, StoreError
from tokenloom.storage.shard import Shard, open_shard
from tokenloom.storage.versions import parse_reference, resolve, version_path

if TYPE_CHECKING:
    from tokenloom.tokenizers import Tokenizer

Sample = dict[str, NDArray[np.int64]]


class TokenDataset:
    """Samples of one split of a version, in natural order: sample i of a shard is its tokens [i*T, i*T + T + 1).

    Neighbours share one token; no sample crosses a shard; fewer than T + 1 tokens are left at a shard's end. Opening
    reads the manifest alone. Usable wherever a map-style dataset is (torch DataLoader and its samplers); pickles small.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION; @latest if left out.
        split: "train", "validation", "test", or as the spec names them.
        seq_len: T, tokens a sample, at least 1.
        max_open_shards: shards that stay mapped, at least 1; a view of one that was dropped stays valid.

    Raises:
        StoreError: there is no such dataset, version or split.
        FormatError: the manifest is damaged, or a shard is when it is first touched.
    """

    def __init__(
        self, reference: str, split: str = "train", seq_len: int = 1024, *, max_open_shards: int = 1024
    ) -> None:
        for name, value in (("seq_len", seq_len), ("max_open_shards", max_open_shards)):
            if operator.index(value) < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self._store, self.manifest = resolve(parse_reference(reference))
        if split not in self.manifest["splits"]:
            names = ", ".join(self.manifest["splits"])
            raise StoreError(f"{reference}: no split {split!r}; it has: {names}")
        self.split = split
        self.seq_len = seq_len
        self.num_tokens: int = self.manifest["splits"][split]["tokens"]
        self._max_open_shards = max_open_shards
        self._shards: list[dict[str, Any]] = self.manifest["splits"][split]["shards"]
        counts = [max(0, shard["tokens"] - 1) // seq_len for shard in self._shards]
        self._ends = np.cumsum(counts, dtype=np.int64)  # (num_shards,) samples up to and with each shard
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._tokenizer: Tokenizer | None = None

    def __repr__(self) -> str:
        name = f"{self._store.root}@{self.manifest['version']}"
        return f"TokenDataset({name!r}, split={self.split!r}, seq_len={self.seq_len}): {len(self):,} samples"

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: SupportsIndex) -> Sample:
        """Return {"input_ids", "labels"}, each (seq_len,) int64; labels are the inputs moved on by one.

        Raises IndexError outside of [-len, len).
        """
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"sample {position} of {len(self)}")
        position %= len(self)
        shard_index = int(np.searchsorted(self._ends, position, side="right"))
        first = int(self._ends[shard_index - 1]) if shard_index else 0
        start = (position - first) * self.seq_len
        tokens = self._shard(shard_index).tokens[start : start + self.seq_len + 1]
        # Two copies: whoever masks the inputs in place must not change the labels.
        return {"input_ids": tokens[:-1].astype(np.int64), "labels": tokens[1:].astype(np.int64)}

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return the samples at `indices`; the torch DataLoader calls this for a batch."""
        return [self[index] for index in indices]

    def _shard(self, shard_index: int) -> Shard:
        # Each step is one operation of the dict, so several threads may read from one dataset.
        shard = self._open.pop(shard_index, None) or self._open_shard(self._shards[shard_index])
        while len(self._open) >= self._max_open_shards:
            with suppress(KeyError):  # another thread has just emptied it
                self._open.popitem(last=False)
        self._open[shard_index] = shard
        return shard

    def _open_shard(self, entry: dict[str, Any]) -> Shard:
        path = self._store.local(version_path(self.manifest["version"], entry["name"]))
        try:
            shard = open_shard(path)
        except OSError as error:
            raise StoreError(f"{path}: the shard is missing or can't be read ({error.strerror}); restore it") from error
        if (shard.header.file_bytes, shard.header.num_tokens) != (entry["bytes"], entry["tokens"]):
            raise FormatError(f"{path}: it is not the shard that the manifest lists; restore it")
        return shard

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the text of ids; needs the tokenizer's package (`pip install 'tokenloom[build]'`).

        Raises TokenizerError if it is not installed, or an id is outside of the vocabulary.
        """
        from tokenloom.reader.decoding import decode, version_tokenizer

        if self._tokenizer is None:
            self._tokenizer = version_tokenizer(self._store, self.manifest)
        return decode(self._tokenizer, np.asarray(ids))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": OrderedDict(), "_tokenizer": None}  # made again where they are used
