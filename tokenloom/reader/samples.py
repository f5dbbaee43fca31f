"""The samples of a split under a packing: how many there are, where their tokens are, where documents begin in them.

A sample is cut from a row of at most T + 1 tokens: its inputs are row[:-1], its labels row[1:].
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tokenloom.errors import FormatError, TokenizerError
from tokenloom.reader.batch import BatchFormat
from tokenloom.reader.selection import Part, Selection, find_runs
from tokenloom.reader.shard_data import OpenMask, OpenOptions, OpenShard
from tokenloom.reader.shards import AnyFiles, SplitFiles
from tokenloom.storage.cache import default_cache_folder
from tokenloom.storage.formats.arrays import AnyArray, Int64s, UInt64s, offsets_of, ranges
from tokenloom.storage.formats.manifest import MANIFEST, Manifest
from tokenloom.storage.packing.base import Packing, ShardPlan
from tokenloom.storage.packing.packings import sample_counts
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import read_tokenizer_files, version_path
from tokenloom.wording import counted

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from tokenloom.storage.cache.partial_shard import ShardRequest
    from tokenloom.storage.cache.shard_cache import ShardCache
    from tokenloom.tokenizers import Tokenizer


@dataclass(frozen=True)
class RowPieces:
    """The pieces of n rows: piece k of row r is entry `row_offsets[r] + k` of the arrays below.

    A mark is the index of a token in a row, in [1, T], that begins a document or padding. The marks of row r are
    `marks[mark_offsets[r]:mark_offsets[r + 1]]`; both arrays are None if the batch format does not need them.
    """

    row_offsets: Int64s  # (n + 1,)
    shards: Int64s  # (p,) number of the shard in the SampleTable; -1 for padding between documents
    starts: Int64s  # (p,) first token in the shard; 0 in padding
    lengths: Int64s  # (p,) tokens
    mark_offsets: Int64s | None = None  # (n + 1,)
    marks: Int64s | None = None  # (m,)


def pad_pieces(
    row_offsets: Int64s, shards: Int64s, starts: Int64s, lengths: Int64s, form: BatchFormat
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Insert a padding piece after every short document; arguments and results are columns of RowPieces."""
    # A piece of T + 1 tokens has T inputs, a multiple already.
    missing = np.where(lengths < form.row_tokens, -lengths % form.pad_documents, 0)
    short = np.flatnonzero(missing)
    return (
        row_offsets + np.searchsorted(short, row_offsets),
        np.insert(shards, short + 1, -1),
        np.insert(starts, short + 1, 0),
        np.insert(lengths, short + 1, missing[short]),
    )


def marks_inside(offsets: UInt64s, starts: Int64s, lengths: Int64s) -> tuple[Int64s, Int64s]:
    """Find where documents begin inside rows of one piece each.

    Args:
        offsets: the document offsets of the shard.
        starts, lengths: (n,) first token of each row in the shard, and number of tokens; ascending starts are faster.

    Returns:
        The offsets of the marks, (n + 1,), and the marks, each in [1, length).
    """
    first = np.searchsorted(offsets, (starts + 1).astype(np.uint64))
    counts = np.searchsorted(offsets, (starts + lengths).astype(np.uint64)) - first
    marks = offsets[ranges(first, counts)].astype(np.int64)
    return offsets_of(counts), marks - np.repeat(starts, counts)


def marks_between(row_offsets: Int64s, lengths: Int64s, row_tokens: int) -> tuple[Int64s, Int64s]:
    """Find where pieces end inside rows of whole pieces: a document or the padding begins there.

    Args:
        row_offsets: (n + 1,) offsets of each row's pieces.
        lengths: (p,) tokens of each piece.
        row_tokens: T + 1; there is no mark at or after the end of a row.

    Returns:
        The offsets of the marks, (n + 1,), and the marks, each in [1, row_tokens).
    """
    marks = np.cumsum(lengths) - np.repeat(offsets_of(lengths)[row_offsets[:-1]], np.diff(row_offsets))
    inside = marks < row_tokens
    return offsets_of(inside.astype(np.int64))[row_offsets], marks[inside]


#: finds offsets, and columns of entries, for a split, a shard of it, and the indices of rows
_Find: TypeAlias = "Callable[[SplitSamples, int, Int64s], Sequence[Int64s]]"
_NUM_DESCRIPTORS = 2  # an open file of a shard may hold so many: of its map, and of its reads ahead and lock
#: the JSON of a manifest; users know its fields
Json: TypeAlias = dict[str, Any]  # type: ignore[explicit-any]


class SplitSamples:
    """The samples of one split, in natural order: those of shard 0, then those of shard 1, and so on.

    Args:
        store, manifest, split: of the dataset, of the version, and the split's name.
        cache: the cache of a remote store; None for the default one.
        packing: how the tokens of a shard become rows.
        form: the form of a batch.
        options: how shards are opened.
        part: the documents to read; None for all.
    """

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        split: str,
        cache: ShardCache | None,
        packing: Packing,
        form: BatchFormat,
        options: OpenOptions,
        part: Part | None = None,
    ) -> None:
        self.split, self.packing, self.seq_len, self.format = split, packing.name, form.seq_len, form
        self._packing = packing
        #: (num_shards,) samples in each shard
        self.counts = sample_counts(store, manifest, split, packing, form.seq_len)
        runs = {} if part is None else find_runs(store, manifest, split, part)
        self.selection = Selection(store, manifest, split, part, runs)
        shards = manifest.splits[split].shards
        self.num_tokens = manifest.splits[split].tokens
        self.num_tokens -= sum(shards[index].tokens - (end - start) for index, (start, end) in runs.items())
        #: (num_shards,) the first token that is read of each shard
        self.first_tokens = np.array([runs.get(index, (0, 0))[0] for index in range(len(shards))], np.int64)
        if part is not None:
            self.counts = self.selection.count(packing, form.seq_len, self.counts)
        self.table = SampleTable([self])
        #: whether the first use of a shard plans its samples, which takes long
        self.plans_shards = packing.follows_documents
        if store.is_local:
            cache = None
        elif cache is None:
            from tokenloom.storage.cache.shard_cache import ShardCache  # its locks and threads are for remote stores

            cache = ShardCache.default()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors != resource.RLIM_INFINITY:
            held = _NUM_DESCRIPTORS * (1 if form.learn is None else 2)
            most = max(1, min(options.max_open_shards, descriptors * 2 // 3 // held))
            options = options._replace(max_open_shards=most)
        self.shards = SplitFiles(OpenShard, store, manifest, split, cache, options)
        #: the shards, and the masks beside them if the version has any
        self.files: list[AnyFiles] = [self.shards]
        if form.learn is not None:
            self.files.append(SplitFiles(OpenMask, store, manifest, split, cache, options))
        self._tokenizer: Tokenizer | None = None

    @property
    def source(self) -> str | None:
        """The name of the source of all documents; None for any."""
        return None if self.selection.source is None else self.sources[self.selection.source]

    @property
    def fills_samples(self) -> bool:
        """Whether each sample has seq_len tokens that no other one has, and no padding."""
        return not self._packing.has_padding

    @property
    def mean_tokens(self) -> float:
        """The mean number of tokens of a sample, without padding; at most seq_len."""
        return self.seq_len if self.fills_samples else min(self.seq_len, self.num_tokens / max(1, len(self)))

    @property
    def sources(self) -> list[str]:
        """The names of the sources of the version; the field "source_ids" has their indices."""
        return self.selection.sources.names

    @property
    def manifest(self) -> Json:
        """The JSON of the version's manifest."""
        return self.shards.manifest.json()

    @property
    def reference(self) -> str:
        """STORE/DATASET@VERSION, which always names this version, whatever its tags."""
        return f"{self.shards.store.root}@{self.shards.manifest.version}"

    def __len__(self) -> int:
        """Count the samples."""
        return int(self.table.ends[-1]) if len(self.table.ends) else 0

    def describe(self) -> list[str]:
        """Describe the split and how it is cut, in lines: a name, spaces, and a text."""
        form, cache = self.format, self.shards.cache
        way = f"downloaded into {cache.folder}" if cache else "mapped from the store"
        learn = form.learn if isinstance(form.learn, str) else ", ".join(form.learn or ())
        part = f", part {tuple(self.selection.part)} of the keys" if self.selection.part else ""
        return [
            f"shards    {self.reference}, split {self.split}{part}: {counted(len(self.counts), 'file')}, "
            f"{counted(self.num_tokens, 'token')} {form.dtype.name}, {way}",
            f"packing   {self.packing}: {counted(len(self), 'sample')} of {counted(self.seq_len, 'token')} per epoch",
            *([] if form.learn is None else [f"learn     {learn}, by masks"]),
        ]

    def why_empty(self) -> str:
        """Explain why there are no samples, and what to do."""
        why = f"packing={self.packing!r} and seq_len={self.seq_len} cut none from {counted(self.num_tokens, 'token')}"
        step = self._packing.if_empty
        if self.source is not None:
            why, step = f"no document that it reads has the source {self.source!r}", "choose another one"
        elif self.selection.part and not self.num_tokens:
            why, step = "no document is in it", "read a larger part"
        elif not self.num_tokens:
            why, step = "the split is empty", "read another one, or build a version with more documents"
        part = f", part {tuple(self.selection.part)}" if self.selection.part else ""
        return f"{self.reference}, split {self.split!r}{part}: no samples: {why}; {step}"

    def plan(self, index: int, offsets: UInt64s) -> ShardPlan:
        """Plan the samples of a shard with these document offsets; Packing.plan documents them."""
        return self.selection.plan(self._packing, self.seq_len, index, offsets)

    def open_plan(self, index: int) -> ShardPlan:
        """Plan the samples of a shard, which is opened if necessary."""
        for _ in range(2):  # the first shard may have been opened ahead, long ago
            shard = self.shards[index]
            plan = self._plan_open(index, shard)
            if len(plan) == self.counts[index]:
                return plan
            self.shards.drop(index)
        raise self.wrong_count(index, len(plan), str(shard.path))

    def _plan_open(self, index: int, shard: OpenShard) -> ShardPlan:
        shard.plan = self.plan(index, shard.document_offsets) if shard.plan is None else shard.plan
        return shard.plan

    def wrong_count(self, index: int, num_samples: int, place: str) -> FormatError:
        """Make the error for a shard at `place` that has another number of samples than were counted."""
        return FormatError(
            f"{place}: the shard has {counted(num_samples, 'sample')} of {self.packing}/{self.seq_len}, "
            f"but {self.counts[index]:,} were counted: the shard or the manifest was replaced; restore it, or remove "
            f"{default_cache_folder()}/counts"
        )

    def decode(self, ids: Sequence[int] | AnyArray) -> str:
        """Return the text of (n,) ids; needs the tokenizer's package (`pip install 'tokenloom[build]'`).

        Raises TokenizerError if the package is not installed or an id is outside of the vocabulary, TypeError if ids
        are not integers, ValueError if they do not have one dimension.
        """
        if self._tokenizer is None:
            self._tokenizer = version_tokenizer(self.shards.store, self.shards.manifest)
        return decode(self._tokenizer, np.asarray(ids))


def prepare_shards(shards: Iterable[tuple[SplitSamples, int]], pool: ThreadPoolExecutor, *, waits: bool) -> None:
    """Begin to download shards that will be used, in this order, and to open those that can be opened at once.

    Downloads take at most half of a cache, and shards that are opened ahead half of the limit of open ones.

    Args:
        shards: of all members of a stream.
        pool: its threads open the shards, and plan their samples.
        waits: whether the shards are used now, and the caller would have to wait for the store anyway.
    """
    requests: dict[ShardCache, list[ShardRequest]] = {}
    unopened, taken = [], 0.0
    for data, index in shards:
        cache = data.shards.cache
        if cache and data.shards.completes and index not in data.shards.bytes:
            taken += sum(files.num_bytes(index) for files in data.files) / (cache.limit_bytes or math.inf)
            if taken > 1 / 2:
                continue
            requests.setdefault(cache, []).extend(files.request(index) for files in data.files)
        if data.plans_shards or (waits and cache):
            unopened.append((data, index))
    for cache, wanted in requests.items():
        cache.ahead(wanted)
    for data, index in unopened:
        data.shards.open_ahead(index, pool, data._plan_open if data.plans_shards else None, by_blocks=waits)


class SampleTable:
    """The shards and samples of several splits of one packing and form, numbered one after the other.

    Args:
        splits: at least one; the table holds no reference to them, as one of a split alone would be a cycle.

    Attributes:
        splits, shards: (num_shards + 1,) the number of each shard's split, and its index there; at the end, -1.
        ends, firsts: (num_shards,) the number of samples up to a shard's end, and its first sample.
    """

    def __init__(self, splits: Sequence[SplitSamples]) -> None:
        sizes = np.array([len(split.counts) for split in splits])
        self.splits: Int64s = np.append(np.repeat(np.arange(len(splits)), sizes), -1)
        self.shards: Int64s = np.append(ranges(np.zeros_like(sizes), sizes), -1)
        counts = np.concatenate([split.counts for split in splits])
        self.ends = np.cumsum(counts, dtype=np.int64)
        self.firsts = self.ends - counts
        self._first_tokens = np.concatenate([split.first_tokens for split in splits])

    def shards_of(self, samples: Int64s) -> Int64s:
        """Find the shard of each of (n,) samples."""
        return np.searchsorted(self.ends, samples, side="right")

    def locate(self, splits: Sequence[SplitSamples], samples: Int64s) -> RowPieces:
        """Locate the tokens of (n,) samples of the table's splits."""
        shards, form = np.searchsorted(self.ends, samples, side="right"), splits[0].format
        local = samples - self.firsts[shards]
        if not len(samples):
            return RowPieces(np.zeros(1, np.int64), shards, local, local)
        if splits[0].plans_shards:
            row_offsets, starts, lengths = self._by_shard(
                splits, shards, local, lambda split, index, rows: split.open_plan(index).pieces(local[rows])
            )
            shards = np.repeat(shards, np.diff(row_offsets))
            if form.pad_documents > 1:
                row_offsets, shards, starts, lengths = pad_pieces(row_offsets, shards, starts, lengths, form)
            between = marks_between(row_offsets, lengths, form.row_tokens)
            return RowPieces(row_offsets, shards, starts, lengths, *between)
        row_offsets, starts, lengths = splits[0]._packing.plan(form.seq_len, np.zeros(2, np.uint64)).pieces(local)
        starts += self._first_tokens[shards]
        if not form.needs_marks:
            return RowPieces(row_offsets, shards, starts, lengths)

        def marks(split: SplitSamples, index: int, rows: Int64s) -> Sequence[Int64s]:
            return marks_inside(split.shards[index].document_offsets, starts[rows], lengths[rows])

        return RowPieces(row_offsets, shards, starts, lengths, *self._by_shard(splits, shards, local, marks))

    def _by_shard(self, splits: Sequence[SplitSamples], shards: Int64s, local: Int64s, find: _Find) -> list[Int64s]:
        """Find the entries of rows shard by shard: all shards together may be more than may stay open.

        Args:
            splits: of the table.
            shards, local: (n,) of each row, at least one; and its sample's number there.
            find: returns the offsets of k rows, (k + 1,), and columns of entries.

        Returns:
            The offsets of all rows, (n + 1,), and the columns, in the order of the rows.
        """
        order = np.argsort(self.firsts[shards] + local)  # ascending samples are faster to find
        found = []
        for rows in np.split(order, np.flatnonzero(np.diff(shards[order], prepend=-1))[1:]):
            shard = shards[rows[0]]
            found.append(find(splits[self.splits[shard]], int(self.shards[shard]), rows))
        offsets, *columns = zip(*found, strict=True)
        counts, firsts = np.empty_like(order), np.empty_like(order)
        counts[order] = in_order = np.concatenate([np.diff(each) for each in offsets])
        firsts[order] = np.cumsum(in_order) - in_order
        return [offsets_of(counts), *(np.concatenate(column)[ranges(firsts, counts)] for column in columns)]


def version_tokenizer(store: Store, manifest: Manifest) -> Tokenizer:
    """Return the tokenizer of a version, made from its manifest and the tokenizer files in the version.

    Raises FormatError if a file of it is damaged, TokenizerError if its package or vocabulary is not on this machine.
    """
    from tokenloom.tokenizers import load_tokenizer

    files = read_tokenizer_files(store, manifest)
    place = store.place(version_path(manifest.version, MANIFEST))
    definition = manifest.tokenizer_definition
    kind = (definition.get("decode") or definition)["kind"]  # type: ignore[index]
    if kind in ("huggingface", "sentencepiece") and not files:  # of which a version holds files
        raise FormatError(f"{place}: the manifest lists no file of its {kind} tokenizer; restore it")
    try:
        return load_tokenizer(definition, files)
    except TokenizerError as error:
        raise TokenizerError(f"{place}: {error}") from error


def decode(tokenizer: Tokenizer, ids: AnyArray) -> str:
    """Return the text of (n,) ids; raises as TokenDataset.decode."""
    if ids.ndim != 1:
        raise ValueError(f"ids must have one dimension, as those of one sample have, not the shape {ids.shape}")
    if ids.size and ids.dtype.kind not in "iu":
        raise TypeError(f"ids must be integers, not {ids.dtype}")
    vocab_size = tokenizer.vocab_size
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise TokenizerError(f"ids {ids.min()} to {ids.max()} are not all in the vocabulary [0, {vocab_size})")
    return tokenizer.decode(ids)
