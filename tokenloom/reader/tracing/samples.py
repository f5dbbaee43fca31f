"""Positions, steps and samples to documents: where the tokens of samples come from.

A shard is read from the store by ranges: its header, the document offsets (8 bytes a document, whose checksum is
verified), the batches of the document table that are asked for (65,536 documents each), and tokens only for text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from tokenloom.reader.order.steps import Steps
from tokenloom.reader.ranks import DataRank
from tokenloom.reader.shards.split_samples import SplitSamples
from tokenloom.reader.streams import Stream
from tokenloom.reader.tracing.records import TracedClasses, TracedDocument, TracedSample
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.formats.classes import ROLE_BITS, ROLES, learned_classes
from tokenloom.storage.formats.document_table import DocumentColumns, DocumentTable
from tokenloom.storage.formats.version_files import InputEntry
from tokenloom.storage.packing.base import ShardPlan
from tokenloom.storage.packing.packings import plan_shard
from tokenloom.storage.versions.published import read_inputs
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.wording import counted

MAX_POSITION = 2**62  # a state has the same limit
_READERS = 8  # shards of a remote store that are read at the same time
_TOKENS_OF_CHAR = 4  # at most this many tokens are decoded for a character of text


def trace_positions(stream: Stream, positions: Int64s, chars: int) -> list[TracedSample]:
    """Return the samples at (n,) positions of a stream with their documents; see trace_samples for errors."""
    traced: dict[int, TracedSample] = {}
    for turns in stream.turns(positions):
        data = turns.stream.dataset
        found = trace_samples(data, turns.stream.order.samples(turns.positions), chars)
        if turns.member is not None:
            found = [{**sample, "member": turns.member, "dataset": data.reference} for sample in found]
        traced |= zip(turns.places.tolist(), found, strict=True)
    return [traced[place] for place in range(len(positions))]


def step_position(steps: Steps, step: int, start: int = 0) -> int:
    """Return the position of the stream at which a step begins; raise IndexError if it is outside the stream.

    Args:
        steps: of any rank.
        step: counted from `start`, at least 0.
        start: a position of the stream, such as that of a state.
    """
    left = steps.left(start)
    if left is not None and step >= left:
        raise IndexError(f"step {step:,} is past the last epoch, which ends after {counted(left, 'step')} (from 0)")
    position = start + step * steps.samples
    if position + steps.samples > MAX_POSITION:
        raise IndexError(f"step {step:,} is past the last position of a stream, 2**62")
    return position


def trace_batch(stream: Stream, steps: Steps, position: int, chars: int) -> list[TracedSample]:
    """Return the batch of a rank in the step that begins at a position, each sample with its documents and rank.

    A batch that is padded has fewer samples. See trace_samples for errors.
    """
    batch = trace_positions(stream, steps.positions(position, 1), chars)
    return [{**sample, "rank": steps.ranks.rank} for sample in batch]


def trace_all_ranks(stream: Stream, steps: Steps, position: int, chars: int) -> list[TracedSample]:
    """Return the batches of all ranks in the step that begins at a position, one after the other; see trace_batch."""
    world_size, origin = steps.ranks.world_size, steps.ranks.origin
    ranks = [replace(steps, ranks=DataRank(rank, world_size, origin)) for rank in range(world_size)]
    return [sample for of_rank in ranks for sample in trace_batch(stream, of_rank, position, chars)]


def trace_samples(data: SplitSamples, samples: Int64s, chars: int) -> list[TracedSample]:
    """Return (n,) samples of a split with their documents.

    Args:
        data: the split.
        samples: their natural indices, each in [0, len).
        chars: the text of each document is cut to this many characters; 0 for no text.

    Raises:
        StoreError: a shard or its document table is missing or can't be read.
        FormatError: one of them is damaged.
        TokenizerError: the tokenizer that makes the text can't be loaded.
    """
    inputs = read_inputs(data.files.store, data.files.manifest)
    shards = data.shards_of(samples)
    if chars and len(samples):
        data.decode([])  # loads the tokenizer before threads ask for it

    def trace_shard(shard: int) -> Iterator[tuple[int, TracedSample]]:
        places = np.flatnonzero(shards == shard)
        return zip(places.tolist(), _ShardTracer(data, shard, inputs, chars).trace(samples[places]), strict=True)

    with ThreadPoolExecutor(_READERS if data.files.is_remote else 1) as readers:
        traced = [pair for pairs in readers.map(trace_shard, sorted(set(shards.tolist()))) for pair in pairs]
    return [sample for _, sample in sorted(traced, key=lambda pair: pair[0])]


def stored_plan(data: SplitSamples, index: int) -> tuple[StoredShard, ShardPlan]:
    """Return a shard of a split, to read from the store, and where its samples are; errors as StoredShard.

    Raises FormatError if there are not as many samples as were counted.
    """
    shard = StoredShard(data.files.store, data.files.manifest.version, data.files.entries[index])
    plan = plan_shard(data.packing, data.seq_len, shard.header.num_tokens, shard.offsets)
    if len(plan) != data.counts[index]:
        raise data.wrong_count(index, len(plan), shard.place)
    return shard, plan


class _ShardTracer:
    """Traces samples of one shard."""

    def __init__(self, data: SplitSamples, shard: int, inputs: Sequence[InputEntry], chars: int) -> None:
        self._data, self._inputs, self._chars = data, inputs, chars
        self._shard, self._plan = stored_plan(data, shard)
        self._first = data.first_sample(shard)

    def trace(self, samples: Int64s) -> list[TracedSample]:
        """Return the samples, (n,), with their documents."""
        row_offsets, starts, lengths = self._plan.pieces(samples - self._first)
        traced: list[TracedSample] = []
        table = self._shard.table(len(self._inputs))
        for row, sample in enumerate(samples.tolist()):
            pieces = slice(row_offsets[row], row_offsets[row + 1])
            traced.append(
                {
                    "sample": sample,
                    "split": self._data.split,
                    "shard": self._shard.entry.name,
                    "index": sample - self._first,
                    "documents": list(self._documents(table, starts[pieces], lengths[pieces])),
                }
            )
        return traced

    def _documents(self, table: DocumentTable, starts: Int64s, lengths: Int64s) -> Iterator[TracedDocument]:
        """Yield the documents of the pieces of a sample, in order."""
        piece_start = 0
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            found = self._shard.documents(table, start, start + length)
            for i in np.flatnonzero(found.num_tokens).tolist():
                yield self._document(found, i, start, start + length, piece_start)
            piece_start += length + -length % self._data.format.pad_documents  # a full row has one piece

    def _document(self, found: DocumentColumns, i: int, start: int, end: int, piece_start: int) -> TracedDocument:
        """Return document i of those found, as far as it is in tokens [start, end) of the shard."""
        first, num_tokens = int(found.start[i]), int(found.num_tokens[i])
        begin, stop = max(start, first), min(end, first + num_tokens)
        return {
            "start": begin - start + piece_start,
            "end": stop - start + piece_start,
            "document_start": begin - first,
            "num_tokens": num_tokens,
            **found.origin(i, self._inputs),
            "text": self._text(begin, min(stop, first + num_tokens - 1)) if self._chars else None,
            **self._learned(begin, stop),
        }

    def _learned(self, start: int, end: int) -> TracedClasses:
        """Return what a mask says of tokens [start, end) of the shard; nothing without one."""
        learn = self._data.format.learn
        if learn is None:
            return {}
        classes = self._shard.classes(start, end)
        counts = np.bincount(classes & ROLE_BITS).tolist()
        roles = {name: count for name, count in zip(ROLES, counts, strict=False) if count}
        return {"roles": roles, "targets": int(learned_classes(learn)[classes].sum())}

    def _text(self, start: int, end: int) -> str:
        """Return the beginning of the text of tokens [start, end) of the shard, without the end-of-text id."""
        end = min(end, start + _TOKENS_OF_CHAR * self._chars)
        return self._data.decode(self._shard.tokens(start, end))[: self._chars] if start < end else ""
