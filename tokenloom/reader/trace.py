"""Which documents are in a batch; sightings.py has the other direction.

A document is in a sample if at least one of the sample's T + 1 tokens is one of its tokens. So the token that two
neighbours of "concat" share belongs to both of them: a document that begins with it is in both.

A shard is read from the store by ranges: its header, the document offsets (8 bytes a document, whose checksum is
verified), the batches of the document table that are asked for (65,536 documents each), and tokens only for text.
It returns plain dicts, which `--json` prints; docs/reference/format-json.md has the fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NotRequired, TypedDict

import numpy as np

from tokenloom.reader.samples import SplitSamples
from tokenloom.reader.streams.ranks import Steps
from tokenloom.reader.streams.stream import Stream
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.formats.classes import ROLE_BITS, ROLES, learned_classes
from tokenloom.storage.formats.document_table import DocumentColumns, DocumentTable
from tokenloom.storage.formats.manifest import InputEntry
from tokenloom.storage.packing.base import ShardPlan
from tokenloom.storage.versions.document_tables import VersionTables
from tokenloom.storage.versions.published import read_inputs
from tokenloom.storage.versions.stored_shard import StoredShard
from tokenloom.wording import counted

MAX_POSITION = 2**62  # a state has the same limit
_READERS = 8  # shards of a remote store that are read at the same time
_TOKENS_OF_CHAR = 4  # at most this many tokens are decoded for a character of text


class TracedClasses(TypedDict):
    """What the mask of a shard says of some tokens; given if the version has conversations.

    `roles` counts the tokens of each role, and `targets` those that the dataset's policy makes targets.
    """

    roles: NotRequired[dict[str, int]]
    targets: NotRequired[int]


class TracedDocument(TracedClasses):
    """The part of a document that is in a sample.

    Tokens [start, end) of the sample are the tokens from `document_start` on of the document, which has `num_tokens`.
    `text` is the beginning of that part; None if no text was asked for.
    """

    start: int
    end: int
    document_start: int
    num_tokens: int
    source: str
    path: str
    row: int
    content: str
    id: NotRequired[str | None]  # given if a source of the version names ids
    copy: NotRequired[int]  # given if the version repeats documents, see Origin
    marks: NotRequired[dict[str, object]]  # that the command `trace` finds
    text: str | None


class TracedSample(TypedDict):
    """A sample and its documents: sample `sample` of the split is sample `index` of its shard."""

    sample: int
    split: str
    shard: str
    index: int
    documents: list[TracedDocument]
    rank: NotRequired[int]  # given in a batch
    member: NotRequired[str]  # given in a mixture
    dataset: NotRequired[str]  # given in a mixture: STORE/DATASET@VERSION


class Trace(TypedDict):
    """Samples and their documents."""

    samples: list[TracedSample]


def trace_positions(stream: Stream, positions: Int64s, chars: int) -> list[TracedSample]:
    """Trace the samples at (n,) positions of a stream to their documents; see trace_samples for errors."""
    traced: dict[int, TracedSample] = {}
    numbers, own = stream.turns(positions)
    for number, (name, member) in enumerate(stream.members.items()):
        rows = np.flatnonzero(numbers == number)
        found = trace_samples(member.dataset, member.order.samples(own[rows]), chars) if len(rows) else []
        if name is not None:
            found = [{**sample, "member": name, "dataset": member.dataset.reference} for sample in found]
        traced |= zip(rows.tolist(), found, strict=True)
    return [traced[row] for row in range(len(positions))]


def step_position(steps: Steps, step: int, start: int = 0) -> int:
    """Find the position of the stream at which a step begins; raise IndexError if it is outside the stream.

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


def trace_step(stream: Stream, steps: Steps, position: int, ranks: Sequence[int], chars: int) -> list[TracedSample]:
    """Trace the batches of some ranks in the step that begins at a position, one after the other.

    Each sample has its rank, too. A batch that is padded has fewer samples. See trace_samples for errors.
    """
    batches = ((rank, trace_positions(stream, steps.positions(position, 1, rank), chars)) for rank in ranks)
    return [{**sample, "rank": rank} for rank, batch in batches for sample in batch]


def trace_samples(data: SplitSamples, samples: Int64s, chars: int) -> list[TracedSample]:
    """Trace (n,) samples of a split to their documents.

    Args:
        data: the split.
        samples: their natural indices, each in [0, len).
        chars: the text of each document is cut to this many characters; 0 for no text.

    Raises:
        StoreError: a shard or its document table is missing or can't be read.
        FormatError: one of them is damaged.
        TokenizerError: the tokenizer that makes the text can't be loaded.
    """
    inputs = read_inputs(data.shards.store, data.shards.manifest)
    shards = data.table.shards_of(samples)
    if chars and len(samples):
        data.decode([])  # loads the tokenizer before threads ask for it

    def trace_shard(shard: int) -> Iterator[tuple[int, TracedSample]]:
        places = np.flatnonzero(shards == shard)
        return zip(places.tolist(), _ShardTracer(data, shard, inputs, chars).trace(samples[places]), strict=True)

    with ThreadPoolExecutor(_READERS if data.shards.cache else 1) as readers:
        traced = [pair for pairs in readers.map(trace_shard, sorted(set(shards.tolist()))) for pair in pairs]
    return [sample for _, sample in sorted(traced, key=lambda pair: pair[0])]


def stored_plan(data: SplitSamples, index: int) -> tuple[StoredShard, ShardPlan]:
    """Open a shard of a split in its store, and plan its samples; errors as StoredShard.

    Raises FormatError if there are not as many samples as were counted.
    """
    shard = StoredShard(data.shards.store, data.shards.manifest.version, data.shards.entries[index])
    plan = data.plan(index, shard.offsets)
    if len(plan) != data.counts[index]:
        raise data.wrong_count(index, len(plan), shard.place)
    return shard, plan


class _ShardTracer:
    """Traces samples of one shard."""

    def __init__(self, data: SplitSamples, shard: int, inputs: Sequence[InputEntry], chars: int) -> None:
        self._data, self._inputs, self._chars = data, inputs, chars
        self._shard, self._plan = stored_plan(data, shard)
        self._first = int(data.table.firsts[shard])
        self._tables = VersionTables(self._shard.store, data.shards.manifest)

    def trace(self, samples: Int64s) -> list[TracedSample]:
        """Trace (n,) samples to their documents."""
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
        """Describe document i of those found, as far as it is in tokens [start, end) of the shard."""
        first, num_tokens = int(found.start[i]), int(found.num_tokens[i])
        begin, stop = max(start, first), min(end, first + num_tokens)
        traced: TracedDocument = {
            "start": begin - start + piece_start,
            "end": stop - start + piece_start,
            "document_start": begin - first,
            "num_tokens": num_tokens,
            **found.origin(i, self._inputs),
            "text": self._text(begin, min(stop, first + num_tokens - 1)) if self._chars else None,
            **self._learned(begin, stop),
        }
        if self._tables.rules.max_copies > 1:
            traced["copy"] = self._tables.copy_number(found, i)
        return traced

    def _learned(self, start: int, end: int) -> TracedClasses:
        """Count roles and targets in the mask of tokens [start, end) of the shard; nothing without a mask."""
        learn = self._data.format.learn
        if learn is None:
            return {}
        classes = self._shard.classes(start, end)
        counts = np.bincount(classes & ROLE_BITS).tolist()
        roles = {name: count for name, count in zip(ROLES, counts, strict=False) if count}
        return {"roles": roles, "targets": int(learned_classes(learn)[classes].sum())}

    def _text(self, start: int, end: int) -> str:
        """Decode the beginning of the text of tokens [start, end) of the shard, without the end-of-text id."""
        end = min(end, start + _TOKENS_OF_CHAR * self._chars)
        return self._data.decode(self._shard.tokens(start, end))[: self._chars] if start < end else ""
