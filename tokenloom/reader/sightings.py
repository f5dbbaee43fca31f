"""Which steps of a training run see a document; trace.py says when a document is in a sample, and what is read for it.

A sighting is a plain dict, which `--json` prints; docs/reference/format-json.md has the fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, NotRequired, TypedDict

import numpy as np

from tokenloom.reader.samples import SplitSamples
from tokenloom.reader.streams.ranks import Steps
from tokenloom.reader.streams.stream import Member, Stream
from tokenloom.reader.trace import MAX_POSITION, stored_plan
from tokenloom.storage.formats.arrays import Int64s


class Sighting(TypedDict):
    """A sample that holds a document: row `index` of the batch that `rank` takes in `step`.

    `step` counts from the start of the stream, `epoch` is that of the dataset, and `position` is the sample's in the
    stream: a checkpoint whose state has more `samples` has seen it.
    """

    epoch: int
    step: int
    rank: int
    index: int
    position: int
    sample: int
    member: NotRequired[str]  # given in a mixture
    seen: NotRequired[bool]  # given with a state: whether the run had taken it by then


class ShardTokens(NamedTuple):
    """Tokens [start, end) of a shard of a split."""

    shard: int
    start: int
    end: int


def find_sightings(
    stream: Stream, version: str, split: str, tokens: Sequence[ShardTokens], steps: Steps, epochs: range
) -> list[Sighting]:
    """Find when ranks take samples with one of some tokens, in the order of the stream, each sample once.

    Args:
        stream: of a dataset or a mixture.
        version: whose tokens these are; other members of a mixture are ignored.
        split: the split of the tokens.
        tokens: ranges of tokens, such as those of documents.
        steps: which positions the ranks take; the rank of `steps` does not matter.
        epochs: of the dataset, or of each member's own stream, as check_epochs allows.
    """
    found: list[Sighting] = []
    for member, own in stream.members.items():
        shards = own.dataset.shards
        if (shards.manifest.version, shards.split) == (version, split):
            samples = samples_with(own.dataset, tokens)
            for epoch in epochs:
                found += _sightings(stream, member, own, samples, steps, epoch)
    return sorted(found, key=lambda sighting: sighting["position"])


def check_epochs(stream: Stream, epochs: range) -> None:
    """Raise IndexError if the epochs of a dataset or a member end past the last position of a stream."""
    for own in stream.members.values():
        if epochs.stop * own.order.num_samples > MAX_POSITION:
            raise IndexError(f"epoch {epochs.stop - 1:,} is past the last position of a stream, 2**62")


def samples_with(data: SplitSamples, tokens: Sequence[ShardTokens]) -> Int64s:
    """Find the samples that have at least one of some tokens, sorted, each once, (n,)."""
    found = [np.zeros(0, dtype=np.int64)]
    for shard in sorted({each.shard for each in tokens}):
        ranges = np.array([each[1:] for each in tokens if each.shard == shard], dtype=np.int64)  # (k, 2)
        found += [data.table.firsts[shard] + local for local in _shard_samples(data, shard, ranges)]
    return np.unique(np.concatenate(found))


def _shard_samples(data: SplitSamples, shard: int, ranges: Int64s) -> Iterator[Int64s]:
    """Yield the samples of a shard, as numbers in it, that have one of the tokens of each range, (k, 2)."""
    _, plan = stored_plan(data, shard)
    row_offsets, starts, lengths = plan.pieces(np.arange(len(plan)))
    row_of_piece = np.repeat(np.arange(len(plan)), np.diff(row_offsets))
    for start, end in ranges.tolist():
        yield row_of_piece[(starts < end) & (starts + lengths > start)]


def _sightings(
    stream: Stream, member: str | None, own: Member, samples: Int64s, steps: Steps, epoch: int
) -> Iterator[Sighting]:
    positions = stream.positions(member, own.order.positions(samples, epoch))
    is_taken = positions >= 0
    if steps.end is not None:
        is_taken &= positions < steps.end
    taken, positions = samples[is_taken], positions[is_taken]
    columns = (taken, positions, *steps.places(positions))
    for sample, position, step, rank, index in zip(*(column.tolist() for column in columns), strict=True):
        sighting: Sighting = {
            "epoch": epoch,
            "step": step,
            "rank": rank,
            "index": index,
            "position": position,
            "sample": sample,
        }
        yield sighting if member is None else {**sighting, "member": member}
