"""The samples of a split under a packing: how many there are, and where their tokens are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tokenloom.errors import FormatError
from tokenloom.reader.notebook import html_table
from tokenloom.reader.shards.batch_format import BatchFormat
from tokenloom.reader.shards.open_shards import OpenShards
from tokenloom.reader.shards.rows import RowPieces, join_groups, marks_between, marks_inside, pad_pieces
from tokenloom.reader.shards.shard_files import ShardFiles
from tokenloom.reader.shards.window import OpenFiles
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.formats.arrays import AnyArray, Int64s
from tokenloom.storage.packing.base import ShardPlan
from tokenloom.storage.packing.best_fit import BestFitDrop
from tokenloom.storage.packing.packings import PackingShares, packing_named, plan_shard, sample_key, shares_of
from tokenloom.storage.packing.sample_counts import sample_counts
from tokenloom.wording import counted

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import AbstractContextManager

    from tokenloom.reader.decoding import Decoder
    from tokenloom.reader.shards.one_shard import OpenShard

#: the JSON of a manifest; users know its fields
Json: TypeAlias = dict[str, Any]  # type: ignore[explicit-any]


class SplitSamples:
    """The samples of one split, in natural order: those of shard 0, then those of shard 1, and so on.

    Args:
        files: the shard files of the split.
        packing: how the tokens of a shard become rows.
        form: what a batch holds.
    """

    shards: OpenShards[OpenShard]
    #: the open shards, and the open masks if the version has any
    open_files: list[OpenFiles]

    def __init__(self, files: ShardFiles, packing: str, form: BatchFormat) -> None:
        self.files, self.split = files, files.split
        self.packing, self.seq_len, self.format = packing, form.seq_len, form
        self.num_tokens = files.manifest.splits[self.split].tokens
        #: (num_shards,) samples in each shard
        self.counts = sample_counts(
            files.store, files.manifest, self.split, packing, self.seq_len, default_cache_folder()
        )
        self._ends = np.cumsum(self.counts, dtype=np.int64)
        self._open()
        self._tokenizer: Decoder | None = None

    @property
    def manifest(self) -> Json:
        """The JSON of the version's manifest."""
        return self.files.manifest.json()

    @property
    def reference(self) -> str:
        """STORE/DATASET@VERSION, which always names this version, whatever its tags."""
        return f"{self.files.store.root}@{self.files.manifest.version}"

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def describe(self) -> list[str]:
        """Return what is read and how it is cut, as lines: a name, spaces, and what it names."""
        files, form = self.files, self.format
        way = f"downloaded into {files.cache.folder}" if files.cache is not None else "mapped from the store"
        learn = form.learn if isinstance(form.learn, str) else ", ".join(form.learn or ())
        return [
            f"shards    {self.reference}, split {self.split}: {counted(len(files.entries), 'file')}, "
            f"{counted(self.num_tokens, 'token')} {form.dtype.name}, {way}",
            f"packing   {self.packing}: {counted(len(self), 'sample')} of {counted(self.seq_len, 'token')} per epoch",
            *([] if form.learn is None else [f"learn     {learn}, by masks"]),
        ]

    def _repr_html_(self) -> str:
        return html_table("TokenDataset", self.describe())

    def why_empty(self) -> str:
        """Return why there are no samples, and what to do."""
        place = f"{self.reference}, split {self.split!r}"
        if not self.num_tokens:
            filled = [name for name, split in self.files.manifest.splits.items() if split.tokens]
            step = f"read another split ({', '.join(filled)}), or " if filled else ""
            return (
                f"{place}: no samples: the split is empty, no document fell into it; {step}build a version with more "
                "documents, or another share for the split"
            )
        packing = packing_named(self.packing)
        needed = 2 if packing.has_padding else self.seq_len + 1
        what = "document" if packing.follows_documents else "shard"
        why = f"a sample takes at least {needed:,} tokens of one {what}, and no {what} has that many"
        if isinstance(packing, BestFitDrop):
            why = f"documents of more than {self.seq_len + 1:,} tokens are left out, and there are no others"
        return (
            f"{place}: no samples: with packing={self.packing!r} and seq_len={self.seq_len} {why}; {packing.if_empty}"
        )

    def shards_of(self, indices: Int64s) -> Int64s:
        """Return the shard of each of (n,) samples."""
        return np.searchsorted(self._ends, indices, side="right")

    def first_sample(self, shard: int) -> int:
        """Return the index of the first sample of a shard."""
        return int(self._ends[shard] - self.counts[shard])

    def locate(self, indices: Int64s) -> RowPieces:
        """Return where the tokens of (n,) samples are; each index is in [0, len)."""
        shards = self.shards_of(indices)
        local = indices - (self._ends[shards] - self.counts[shards])
        if not len(indices):
            return RowPieces(np.zeros(1, np.int64), shards, local, local)
        # One shard at a time: all of them together may be more than may stay open.
        if self.files.plans_shards:
            groups = [(rows, *self._plan(shard).pieces(local[rows])) for rows, shard in _by_shard(indices, shards)]
            row_offsets, starts, lengths = join_groups(groups, len(indices))
            shards = np.repeat(shards, np.diff(row_offsets))
            if self.format.pad_documents > 1:
                row_offsets, shards, starts, lengths = pad_pieces(row_offsets, shards, starts, lengths, self.format)
            marks = marks_between(row_offsets, lengths, self.seq_len + 1)
            return RowPieces(row_offsets, shards, starts, lengths, *marks)
        row_offsets, starts, lengths = plan_shard(self.packing, self.seq_len, self.num_tokens).pieces(local)
        if not self.format.needs_marks:
            return RowPieces(row_offsets, shards, starts, lengths)
        inside = join_groups(self._marks(indices, shards, starts, lengths), len(indices))
        return RowPieces(row_offsets, shards, starts, lengths, *inside)

    def _marks(self, indices: Int64s, shards: Int64s, starts: Int64s, lengths: Int64s) -> Iterator[Sequence[Int64s]]:
        for rows, shard in _by_shard(indices, shards):
            offsets = self.shards[shard].document_offsets
            yield rows, *marks_inside(offsets, starts[rows], lengths[rows])

    def _plan(self, index: int) -> ShardPlan:
        for _ in range(2):  # the first shard may have been opened ahead, long ago
            shard = self.shards[index]
            if len(shard.plan) == self.counts[index]:
                return shard.plan
            self.shards.drop(index)
        raise self.wrong_count(index, len(shard.plan), str(shard.path))

    def wrong_count(self, index: int, num_samples: int, place: str) -> FormatError:
        """Return the error for a shard at `place` that has another number of samples than were counted."""
        return FormatError(
            f"{place}: the shard has {counted(num_samples, 'sample')} of {sample_key(self.packing, self.seq_len)}, "
            f"but {self.counts[index]:,} were counted: the shard or the manifest was replaced; restore it, or remove "
            f"{default_cache_folder()}/counts"
        )

    def decode(self, ids: Sequence[int] | AnyArray) -> str:
        """Return the text of (n,) ids; needs the tokenizer's package (`pip install 'tokenloom[build]'`).

        Raises:
            TokenizerError: the package is not installed, or an id is outside of the vocabulary.
            TypeError: the ids are not integers.
            ValueError: the ids have another number of dimensions than one.
        """
        from tokenloom.reader.decoding import decode, version_tokenizer  # training does not need it

        if self._tokenizer is None:
            self._tokenizer = version_tokenizer(self.files.store, self.files.manifest)
        return decode(self._tokenizer, np.asarray(ids))

    def prepare_shards(
        self, indices: list[int], pool: ThreadPoolExecutor, planning: AbstractContextManager[object], *, waits: bool
    ) -> None:
        """Begin to download shards that will be used, in this order, and to open those that can be opened at once.

        Args:
            indices: the shards.
            pool: its threads open the shards, and plan their samples.
            planning: holds back threads while enough of them plan.
            waits: whether the shards are used now, and the caller would have to wait for the store anyway.
        """
        if self.files.cache is not None:
            indices = self.files.fetch_ahead([index for index in indices if index not in self.shards.bytes])
        unopened = [index for index in indices if not self.shards.is_known(index)]
        if self.files.cache is not None:
            unopened = self.files.begin(unopened, waits=waits)
        if self.files.plans_shards:
            self.shards.prepare(unopened[: self.shards.room_ahead], pool, planning)

    def packing_shares(self) -> PackingShares:
        """Return the shares of padding and of cut documents; reads the document offsets of all shards."""
        total = PackingShares(0, 0, 0, 0, 0)
        for index in range(len(self.counts)):
            shard = self.shards[index]
            total += shares_of(self.packing, self.seq_len, shard.header.num_tokens, shard.document_offsets)
            del shard  # a small cache may have to close it to open the next one
        return total

    def _open(self) -> None:
        files = self.files
        in_cache, has_masks = files.is_remote, files.has_masks
        # These functions hold no reference to self: a cycle would keep maps until the garbage collector runs.
        self.shards = OpenShards(files.open_shard, files.max_open, in_cache=in_cache, has_masks=has_masks)
        self.open_files = [self.shards]
        if has_masks:
            self.open_files.append(OpenShards(files.open_mask, files.max_open, in_cache=in_cache, has_masks=True))

    def __getstate__(self) -> dict[str, object]:
        state = dict(self.__dict__)
        del state["shards"], state["open_files"]
        return state | {"_tokenizer": None}  # loaded again on first use

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__ |= state
        self._open()


def _by_shard(indices: Int64s, shards: Int64s) -> Iterator[tuple[Int64s, int]]:
    """Yield, for each shard, the positions in `indices` of its samples, by ascending sample; and the shard."""
    order = np.argsort(indices)
    firsts = np.flatnonzero(np.diff(shards[order], prepend=-1))
    for rows in np.split(order, firsts[1:]):
        yield rows, int(shards[rows[0]])
