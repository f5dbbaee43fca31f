"""TokenDataset: the samples of a split over memory-mapped shards, as a map-style dataset."""

from __future__ import annotations

import copy
import operator
import os
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self, SupportsIndex, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import checked_choice, checked_int
from tokenloom.reader.batch import DOCUMENT_FIELDS, FIELDS, LABELS, BatchFormat
from tokenloom.reader.feed import HostFeed
from tokenloom.reader.prefetch import PhaseTimes
from tokenloom.reader.samples import SampleTable, SplitSamples
from tokenloom.reader.selection import checked_part
from tokenloom.reader.shard_data import OpenOptions
from tokenloom.reader.window import TokenWindow
from tokenloom.storage.formats.arrays import Int32s, Int64s, token_dtype
from tokenloom.storage.formats.classes import POLICIES, POLICY_OF, TEXT_CLASS, learned_classes
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.packing.base import Document
from tokenloom.storage.packing.packings import PackingShares, packing_named, shares_of
from tokenloom.storage.versions.published import check_split
from tokenloom.storage.versions.references import parse_reference, resolve
from tokenloom.wording import counted

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tokenloom.reader.iterable import SampleStream
    from tokenloom.reader.trace import Trace
    from tokenloom.storage.cache.shard_cache import ShardCache


Sample = dict[str, Int64s | Int32s | NDArray[np.uint8]]


class DatasetOptions(TypedDict, total=False):
    """The keyword arguments of TokenDataset."""

    packing: str
    labels: str
    fields: Sequence[str]
    mask_documents: bool | None
    learn: str | Collection[str]
    overlong: str | None
    pad_documents: int | None
    cu_seqlens_length: int | None
    max_open_shards: int
    verify: str
    access: str
    cache: ShardCache | None
    part: Sequence[float] | None


class OrderOptions(TypedDict, total=False):
    """The arguments of TokenLoader that determine the order."""

    order: str
    seed: int
    lanes: int | None


class SharedOptions(TypedDict, total=False):
    """The arguments that SampleStream and TokenLoader share, apart from the order."""

    rank: int | None
    world_size: int | None
    mesh: DeviceMesh | None
    dims: Sequence[str] | None
    drop_last: bool
    num_epochs: int | None


class StreamOptions(OrderOptions, SharedOptions, total=False):
    """The keyword arguments of SampleStream."""

    batch_size: int | None
    start: int


class TokenDataset(SplitSamples):
    """The samples of one split of a version, in natural order, each cut from a row of at most T + 1 tokens of a shard.

    Opening reads only the manifest, and warns (UserWarning) if there are no samples. A dataset works wherever a
    map-style dataset does (torch's DataLoader and its samplers), and its pickle is small.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION, a folder or a URL of an object store; @latest by default.
        split: "train", "validation", "test", or another split of the spec.
        seq_len: T, the tokens in a sample, at least 1.
        packing: how rows are cut. "concat": sample i of a shard is its tokens [iT, iT + T + 1), so neighbours share
            one token, and fewer than T + 1 tokens at the end of a shard are dropped. "document": the same inside each
            document; the rest of a document is dropped. "document_padded": the rest is a padded sample. "best_fit":
            whole documents with the least padding.
        labels: "shifted": the inputs, shifted by one; "same": the inputs, for models that shift them.
        fields: any of "position_ids" and "document_ids", (T,) int32 from 0 in each sample (padding has the document
            -1); "classes", (T,) uint8: the class of the token of each label, learned or not, 0 in padding;
            and, in the batches of a TokenLoader alone, "cu_seqlens", and "member", (B,) int64: the position in
            `mixture.datasets` of the dataset that each sample is of, 0 without a mixture (a padded sample has -1).
        mask_documents: whether the label is -100 where its token begins another document than the token before. None:
            if there are `fields` of documents, or the packing is "best_fit". Samples of "document" and
            "document_padded" have no such token. Labels in padding are always -100.
        learn: of a version with conversations, whose tokens are targets; the labels of all others are -100, and so is
            that of a conversation's first token. "assistant": plain text, and what the assistant writes, with
            reasoning, tool calls and the end of its turns; "last": of conversations, only the last turn of the
            assistant; "all": everything; or a set of roles ("text", "system", "developer", "user", "assistant",
            "reasoning", "tool_call", "tool_output", "template"). Messages with `train: false` are never targets.
        overlong: what "best_fit" does with a document of more than T + 1 tokens. "split" (None): cuts it; "drop":
            leaves it out; "keep_start": keeps its first T + 1 tokens.
        pad_documents: with "best_fit", each document of a sample takes a multiple of so many inputs: padding follows
            its tokens, is part of it in fields, and has the labels -100. A divisor of T: 2 * size for zigzag by
            document with `size` context parallel ranks. None for 1.
        cu_seqlens_length: how many numbers "cu_seqlens" has in each batch: its last one, B * T, is repeated. None for
            as many as needed; a fixed length suits compiled models and CUDA graphs. A batch that needs more is an
            error.
        max_open_shards: how many shards stay mapped, at least 1; fewer if they would hold more than two thirds of the
            process's file descriptors. A view of a closed shard stays valid.
        verify: "open" checks the header of a shard when it is opened, "full" the whole shard.
        access: "mmap"; "pread" if files may be truncated while they are read; "range" for evaluation and notebooks: of
            shards in a remote store, only the blocks of the samples that are read are downloaded. It makes more
            requests, and needs the `.blocks` files.
        cache: holds the shards of a remote store; None for `ShardCache.default()`.
        part: (start, end), 0 <= start < end <= 1: only the documents whose keys lie in this fraction of the key space,
            a random sample of the documents of all splits. Parts that do not overlap share no document. (0, 1) is None.

    Attributes:
        split, seq_len: as given.
        packing: its full name, with `overlong` and `pad_documents`.
        num_tokens: how many tokens the split has.
        counts: how many samples each shard has, (num_shards,) int64.

    Raises:
        ValueError: an argument is out of range.
        SpecError: the reference is not one.
        StoreError: the dataset, version or split does not exist. A later one is a VersionDeleted if gc deleted the
            version meanwhile.
        FormatError: the manifest is damaged; or, on first use, a shard.
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
        learn: str | Collection[str] = "assistant",
        overlong: str | None = None,
        pad_documents: int | None = None,
        cu_seqlens_length: int | None = None,
        max_open_shards: int = 512,
        verify: str = "open",
        access: str = "mmap",
        cache: ShardCache | None = None,
        part: Sequence[float] | None = None,
    ) -> None:
        multiple = None if pad_documents is None else checked_int("pad_documents", pad_documents, 1, 2**30)
        cut = packing_named(packing, overlong, multiple)
        checked_choice("labels", labels, LABELS)
        names = tuple(sorted({checked_choice("fields", field, FIELDS) for field in fields}))
        seq_len = checked_int("seq_len", seq_len, 1, 2**31)
        if seq_len % cut.pad_documents:
            raise ValueError(
                f"{cut.name} pads documents: seq_len must be a multiple of {cut.pad_documents}, not {seq_len}"
            )
        if cu_seqlens_length is not None:
            if "cu_seqlens" not in names:
                raise ValueError('cu_seqlens_length pads the field "cu_seqlens": add it to fields')
            cu_seqlens_length = checked_int("cu_seqlens_length", cu_seqlens_length, 2)
        max_open = checked_int("max_open_shards", max_open_shards, 1)
        checked_choice("verify", verify, ("open", "full"))
        checked_choice("access", access, ("mmap", "pread", "range"))
        if (verify, access) == ("full", "range"):
            raise ValueError('verify="full" reads whole shards, which access="range" never downloads: choose one')
        reference = os.fspath(reference)
        parsed = parse_reference(reference)
        store, manifest = resolve(parsed)
        check_split(reference, manifest, split)
        if manifest.version.startswith(parsed.name):
            from tokenloom.storage.versions.tags import warn_if_untagged  # a tag that was read names the version

            warn_if_untagged(store, manifest.version, stacklevel=2)
        if mask_documents is None:
            mask_documents = cut.masks_documents or not DOCUMENT_FIELDS.isdisjoint(names)
        tokenizer = manifest.tokenizer
        form = BatchFormat(
            seq_len=seq_len,
            labels=labels,
            fields=names,
            # A sample of one document has no label to mask.
            mask_documents=bool(mask_documents) and not isinstance(cut, Document),
            short_rows=cut.has_padding,
            eot_id=tokenizer.eot_id,
            dtype=token_dtype(tokenizer.vocab_size),
            learn=_checked_learn(learn, manifest, split),
            cu_seqlens_length=cu_seqlens_length,
            pad_documents=cut.pad_documents,
        )
        if form.pad_documents > 1 and not form.mask_documents:
            raise ValueError("pad_documents needs mask_documents: padding would predict the next document; omit it")
        options = OpenOptions(max_open, verify, access, form.dtype, cut.follows_documents or form.needs_marks)
        super().__init__(
            store, manifest, split, cache, cut, form, options, None if part is None else checked_part(part)
        )
        of_samples = tuple(name for name in names if name not in ("cu_seqlens", "member"))
        self._sample_format = replace(form, fields=of_samples)
        self._feeds: dict[int, HostFeed] = {}  # the feed of the last call, by its number of samples
        if not self.counts.any():
            warnings.warn(self.why_empty(), stacklevel=2)

    def __repr__(self) -> str:
        how = f"split={self.split!r}, seq_len={self.seq_len}, packing={self.packing!r}"
        return f"TokenDataset({self.reference!r}, {how}): {counted(len(self), 'sample')}"

    @overload
    def __getitem__(self, index: SupportsIndex) -> Sample: ...
    @overload
    def __getitem__(self, index: slice[int | None, int | None, int | None]) -> list[Sample]: ...
    def __getitem__(self, index: SupportsIndex | slice[int | None, int | None, int | None]) -> Sample | list[Sample]:
        """Return {"input_ids", "labels"}, each (seq_len,) int64, and the `fields`; for a slice, a list of them.

        Raises IndexError outside of [-len, len), TypeError if the index is neither an integer nor a slice.
        """
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self))))
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Sample]:
        """Return the samples at `indices`; torch's DataLoader calls this for a batch."""
        found = self._checked(indices)
        if not len(found):
            return []
        feed = self._feeds.get(len(found))
        if feed is None:  # making one takes as long as a fifth of a sample
            feed = HostFeed(self._sample_format, len(found), 1, 0, None, PhaseTimes())
            self._feeds = {len(found): feed}
        rows = self.table.locate([self], found)
        window = TokenWindow([self], self.table, rows, len(found), self._sample_format, np.zeros(1, np.int64))
        (batch,) = feed.make(window, 0, 1)
        del batch["num_targets"]
        return [{name: values[i] for name, values in batch.items()} for i in range(len(found))]

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_feeds": {}, "_tokenizer": None}  # both are made again on first use

    def _checked(self, indices: Sequence[SupportsIndex]) -> Int64s:
        """Convert indices to numbers in [0, len), (n,); raise IndexError if one is outside of [-len, len)."""
        requested, size = [operator.index(index) for index in indices], len(self)  # int64 could overflow
        if outside := [number for number in requested if not -size <= number < size]:
            raise IndexError(f"sample {outside[0]} is outside of a dataset with {counted(size, 'sample')}")
        return np.array(requested, np.int64) % max(1, size)

    def trace(self, index: SupportsIndex, chars: int = 300) -> Trace:
        """Return the documents of a sample, as JSON; docs/guides/trace.md describes the fields.

        Args:
            index: in [-len, len).
            chars: the text of each document is cut to this many characters; 0 for no text, and then no tokenizer.

        Raises:
            IndexError: there is no such sample.
            StoreError: a shard or its document table can't be read.
            FormatError: one of them is damaged.
        """
        from tokenloom.reader.trace import trace_samples  # training does not need it

        return {"samples": trace_samples(self, self._checked([index]), checked_int("chars", chars))}

    def of_source(self, name: str) -> Self:
        """Choose the samples whose document is of a source; reads the document tables of all shards.

        Raises ValueError if there is no such source, or the packing joins documents.
        """
        if not isinstance(self._packing, Document):
            raise ValueError(
                f"packing {self.packing!r} joins documents of any source in a sample: use packing='document_padded', "
                "or 'document'"
            )
        if name not in self.sources:
            raise ValueError(f"source must be one of {', '.join(self.sources)}, not {name!r}")
        if len(self.sources) == 1:
            return self
        chosen = copy.copy(self)
        chosen.shards = copy.copy(self.shards)  # with nothing open: an open shard keeps its plan
        chosen.files = [chosen.shards, *map(copy.copy, self.files[1:])]
        chosen.selection = replace(self.selection, source=self.sources.index(name))
        chosen.num_tokens = chosen.selection.num_tokens(len(self.counts))
        chosen.counts = chosen.selection.count(self._packing, self.seq_len, self.counts)
        chosen.table = SampleTable([chosen])
        return chosen

    def packing_shares(self) -> PackingShares:
        """Return the shares of padding and of cut documents; reads the document offsets of all shards."""
        total = PackingShares(0, 0, 0, 0, 0)
        for index in range(len(self.counts)):
            shard = self.shards[index]
            total += shares_of(self._packing, self.seq_len, self.selection.cut(index, shard.document_offsets))
            del shard  # a small cache may have to close it to open the next one
        return total

    def iterable(self, **options: Unpack[StreamOptions]) -> SampleStream:
        """Return a torch IterableDataset over the stream of samples.

        Args:
            options: those of SampleStream.
        """
        from tokenloom.reader.iterable import SampleStream

        return SampleStream(self, **options)


def _checked_learn(learn: str | Collection[str], manifest: Manifest, split: str) -> str | tuple[str, ...] | None:
    """Check the policy of targets, None without masks; raise ValueError if it is not one, or leaves nothing."""
    learns_text = learn in POLICIES or learned_classes(learn)[TEXT_CLASS]
    shards = manifest.splits[split].shards
    if len(shards) and shards[0].has_mask:
        if manifest.tokenizer.vocab_size > 2**31:
            raise ValueError("a vocabulary of more than 2**31 ids is not supported with conversations")
        if isinstance(learn, str):
            return learn
        return POLICY_OF.get(frozenset(learn), tuple(sorted({*learn})))
    if not learns_text:
        raise ValueError(f"learn={learn!r} leaves out text, and this version holds nothing else: omit it")
    return None
