"""TokenDataset: samples of a split over memory-mapped shards, map-style by protocol."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import FormatError, StoreError
from tokenloom.reader.arguments import choice, whole
from tokenloom.reader.assembly import FIELDS, IGNORED, LABELS, BatchFormat, Block, Part, widen
from tokenloom.reader.open_shards import OpenShard, OpenShards
from tokenloom.reader.rows import Int64s, Rows, joined, marks_between, marks_inside
from tokenloom.reader.shard_files import ShardFiles
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.formats.shard import token_dtype
from tokenloom.storage.packing.packing import PACKINGS, PackingShares, ShardPlan, sample_key, shares_of
from tokenloom.storage.packing.sample_counts import sample_counts
from tokenloom.storage.versions.versions import parse_reference, resolve
from tokenloom.words import counted

if TYPE_CHECKING:
    from tokenloom.reader.iterable import SampleStream
    from tokenloom.storage.cache.shard_cache import ShardCache
    from tokenloom.tokenizers import Tokenizer

Sample = dict[str, NDArray[Any]]


class TokenDataset:
    """Samples of one split of a version, in natural order, each cut from a row of at most T + 1 tokens of one shard.

    Opening reads the manifest alone, and warns (UserWarning) if there is no sample. Usable wherever a map-style dataset
    is (torch DataLoader and its samplers); pickles small.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION, a folder or an fsspec URL; @latest if left out.
        split: "train", "validation", "test", or as the spec names them.
        seq_len: T, tokens a sample, at least 1.
        packing: "concat": sample i of a shard is its tokens [iT, iT + T + 1), so neighbours share one token and fewer
            than T + 1 are left at a shard's end. "document": such chunks inside each document, what is left of it
            dropped; "document_padded": it is a padded sample. "best_fit": whole documents with the least padding.
        labels: "shifted": the inputs moved on by one; "same": the inputs, for models that shift themselves.
        fields: any of "position_ids" and "document_ids", (T,) int32 from 0 in each sample (document -1 is padding),
            and "cu_seqlens", which only batches of a TokenLoader hold.
        mask_documents: label -100 where the label's token begins another document than the one before it; None: with
            `fields`, and with packing "best_fit". Labels in padding are always -100.
        max_open_shards: shards that stay mapped, at least 1; a view of one that was dropped stays valid.
        verify: "open" checks a shard's header when it is opened, "full" all of it.
        access: "mmap", or "pread" where files may be cut short while they are read.
        cache: of shards of a remote store; None for `ShardCache.default()`.

    Raises:
        ValueError: an argument out of range.
        StoreError: there is no such dataset, version or split.
        FormatError: the manifest is damaged, or a shard is when it is first touched.
    """

    def __init__(
        self,
        reference: str | os.PathLike[str],
        split: str = "train",
        seq_len: int = 1024,
        *,
        packing: str = "concat",
        labels: str = "shifted",
        fields: Sequence[str] = (),
        mask_documents: bool | None = None,
        max_open_shards: int = 512,
        verify: str = "open",
        access: str = "mmap",
        cache: ShardCache | None = None,
    ) -> None:
        choice("packing", packing, PACKINGS)
        choice("labels", labels, LABELS)
        if isinstance(fields, str):
            raise TypeError(f"fields is a list of names, not the text {fields!r}")
        for field in fields:
            choice("fields", field, FIELDS)
        seq_len = whole("seq_len", seq_len, 1, 2**31)
        reference = os.fspath(reference)
        self._store, self.manifest = resolve(parse_reference(reference))
        if split not in self.manifest["splits"]:
            names = ", ".join(self.manifest["splits"])
            raise StoreError(f"{reference}: no split {split!r}; it has: {names}")
        self.split, self.packing, self.seq_len = split, packing, seq_len
        self.num_tokens: int = self.manifest["splits"][split]["tokens"]
        mask = bool(fields) or packing == "best_fit" if mask_documents is None else bool(mask_documents)
        self.format = BatchFormat(
            seq_len=seq_len,
            labels=labels,
            fields=tuple(sorted(set(fields))),
            mask_documents=mask,
            short_rows=packing in ("document_padded", "best_fit"),
            eot_id=self.manifest["tokenizer"]["eot_id"],
            dtype=token_dtype(self.manifest["tokenizer"]["vocab_size"]),
        )
        self.files = ShardFiles(self._store, self.manifest, split, cache)
        #: (num_shards,) samples of each shard
        self.counts = sample_counts(self._store, self.manifest, split, packing, seq_len, default_cache_folder())
        self._ends = np.cumsum(self.counts, dtype=np.int64)
        self._max_open_shards = whole("max_open_shards", max_open_shards, 1)
        self._verify = choice("verify", verify, ("open", "full"))
        self._access = choice("access", access, ("mmap", "pread"))
        self.shards = self._open_shards()
        self._tokenizer: Tokenizer | None = None
        if not len(self):
            warnings.warn(self._why_empty(), stacklevel=2)

    def _why_empty(self) -> str:
        """Return why there is no sample, and the next step."""
        place = f"{self.reference}, split {self.split!r}"
        if not self.num_tokens:
            return f"{place}: no samples: the split has no tokens"
        needed = 2 if self.format.short_rows else self.seq_len + 1
        what = "shard" if self.packing == "concat" else "document"
        step = ", or packing='document_padded'" if self.packing == "document" else ""
        return (
            f"{place}: no samples: with packing={self.packing!r} and seq_len={self.seq_len} a sample takes at least "
            f"{needed:,} tokens of one {what}, and no {what} has as many; use a smaller seq_len{step}"
        )

    def __repr__(self) -> str:
        how = f"split={self.split!r}, seq_len={self.seq_len}, packing={self.packing!r}"
        return f"TokenDataset({self.reference!r}, {how}): {counted(len(self), 'sample')}"

    @property
    def reference(self) -> str:
        """STORE/DATASET@VERSION, which names what was opened for ever."""
        return f"{self._store.root}@{self.manifest['version']}"

    def fingerprint(self) -> dict[str, Any]:
        """Return what decides the samples, their numbers, and what is learned from them, as JSON."""
        return {
            "dataset": self.manifest["dataset"],
            "version": self.manifest["version"],
            "split": self.split,
            "seq_len": self.seq_len,
            "packing": self.packing,
            "labels": self.format.labels,
            "mask_documents": self.format.mask_documents,
        }

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: SupportsIndex) -> Sample:
        """Return {"input_ids", "labels"}, each (seq_len,) int64, and the `fields` asked for.

        Raises IndexError outside of [-len, len).
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Sample]:
        """Return the samples at `indices`; the torch DataLoader calls this for a batch."""
        asked = np.array([operator.index(index) for index in indices], dtype=np.int64)
        if outside := asked[(asked < -len(self)) | (asked >= len(self))].tolist():
            raise IndexError(f"sample {outside[0]} of {len(self)}")
        part = Part(self, np.arange(len(asked)), self.plan(asked % max(1, len(self))))
        batch = _arrays(Block([part], len(asked), self.format))
        return [{name: values[i] for name, values in batch.items()} for i in range(len(asked))]

    def iterable(self, **options: Any) -> SampleStream:
        """Return a torch IterableDataset over the stream of samples; see SampleStream for the options."""
        from tokenloom.reader.iterable import SampleStream

        return SampleStream(self, **options)

    def shards_of(self, indices: Int64s) -> Int64s:
        """Return the shard of each of (n,) natural indices."""
        return np.searchsorted(self._ends, indices, side="right")

    def plan(self, indices: Int64s) -> Rows:
        """Return where the tokens of the samples at (n,) natural indices, each in [0, len), lie."""
        shards = self.shards_of(indices)
        local = indices - (self._ends[shards] - self.counts[shards])
        lengths = np.full(len(indices), self.seq_len + 1, dtype=np.int64)
        if not len(indices) or (self.packing == "concat" and not self.format.needs_marks):
            return Rows(np.arange(len(indices) + 1), shards, local * self.seq_len, lengths)
        starts = local * self.seq_len
        # One shard at a time: together they may be more than may stay mapped.
        if self.packing == "concat":
            marks = joined(self._marks(indices, shards, starts, lengths), len(indices))
            return Rows(np.arange(len(indices) + 1), shards, starts, lengths, *marks)
        planned = [(rows, *self._shard_plan(shard).pieces(local[rows])) for rows, shard in _by_shard(indices, shards)]
        row_offsets, starts, lengths = joined(planned, len(indices))
        ends = marks_between(row_offsets, lengths, self.seq_len + 1)
        return Rows(row_offsets, np.repeat(shards, np.diff(row_offsets)), starts, lengths, *ends)

    def _marks(self, indices: Int64s, shards: Int64s, starts: Int64s, lengths: Int64s) -> Iterator[Sequence[Int64s]]:
        for rows, shard in _by_shard(indices, shards):
            offsets = self.shards[shard].document_offsets
            yield rows, *marks_inside(offsets, starts[rows], lengths[rows])

    def prepare_shards(self, indices: list[int], pool: ThreadPoolExecutor) -> None:
        """Begin to fetch shards that will be needed, in that order, and to plan the samples of those that are here."""
        coming = [index for index in indices if not self.shards.is_known(index)]
        if self.files.cache is not None:
            self.files.fetch_ahead(coming)
            coming = [index for index in coming if self.files.is_here(index)]
        if self.packing != "concat":
            self.shards.prepare(coming[: self.shards.room_ahead], pool)

    def packing_shares(self) -> PackingShares:
        """Return the shares of padding and of cut documents; reads the document offsets of all shards."""
        total = PackingShares(0, 0, 0, 0, 0, 0)
        for index in range(len(self.counts)):
            shard = self.shards[index]
            total += shares_of(self.packing, self.seq_len, shard.header.num_tokens, shard.document_offsets)
        return total

    def _shard_plan(self, index: int) -> ShardPlan:
        for _ in range(2):  # the first may have been opened ahead, long ago
            shard = self.shards[index]
            if len(shard.plan) == self.counts[index]:
                return shard.plan
            self.shards.drop(index)
        raise FormatError(
            f"{shard.path}: it makes {counted(len(shard.plan), 'sample')} of {sample_key(self.packing, self.seq_len)}, "
            f"{self.counts[index]:,} were counted: the shard or the manifest is another one; restore it, or remove "
            f"{default_cache_folder()}/counts"
        )

    def _open_shards(self) -> OpenShards:
        # It does not know the dataset: in a cycle, maps would stay until the garbage collector comes.
        files, options = self.files, (self._verify, self._access, self.packing, self.seq_len)
        needs_offsets = self.packing != "concat" or self.format.needs_marks

        def opened(path: Path) -> OpenShard:
            shard = OpenShard(path, *options)
            if needs_offsets:
                _ = shard.document_offsets  # verified while a damaged copy can be fetched again
            return shard

        return OpenShards(lambda index: files.open(index, opened), self._max_open_shards)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """Return the text of ids; needs the tokenizer's package (`pip install 'tokenloom[build]'`).

        Raises TokenizerError if it is not installed, or an id is outside of the vocabulary.
        """
        from tokenloom.reader.decoding import decode, version_tokenizer

        if self._tokenizer is None:
            self._tokenizer = version_tokenizer(self._store, self.manifest)
        return decode(self._tokenizer, np.asarray(ids))

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_tokenizer": None}  # made again where it is used
        del state["shards"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.shards = self._open_shards()


def _by_shard(indices: Int64s, shards: Int64s) -> Iterator[tuple[Int64s, int]]:
    """Yield the places of ascending `indices` of each shard, one shard after the other."""
    order = np.argsort(indices)
    firsts = np.flatnonzero(np.diff(shards[order], prepend=-1))
    for rows in np.split(order, firsts[1:]):
        yield rows, int(shards[rows[0]])


def _arrays(block: Block) -> dict[str, NDArray[Any]]:
    """Return new arrays of all rows of a block: (n, T) each."""
    form, num_rows = block.form, block.num_places
    shape = (num_rows, form.seq_len)
    # No memory is shared: whoever masks the inputs in place must not change the labels.
    both = np.empty((1, 2, *shape), np.int64)
    widen(form, block.tokens(0, num_rows), both)
    batch: dict[str, NDArray[Any]] = {"input_ids": both[0, 0], "labels": both[0, 1]}
    if form.needs_marks:
        batch["labels"].reshape(-1)[block.boundaries.ignored_labels(0, num_rows)] = IGNORED
    for name in form.row_fields:
        batch[name] = np.empty(shape, np.int32)
        block.boundaries.write(name, 0, num_rows, batch[name])
    return batch
