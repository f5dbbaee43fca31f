"""Positions and steps of a stream to documents."""

from __future__ import annotations

from dataclasses import replace

from tokenloom.reader.order.steps import Steps
from tokenloom.reader.ranks import Ranks
from tokenloom.reader.streams import Stream
from tokenloom.reader.tracing.records import TracedSample
from tokenloom.reader.tracing.samples import trace_samples
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.wording import counted

MAX_POSITION = 2**62  # as in a state


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


def trace_step(
    stream: Stream, steps: Steps, step: int, chars: int, start: int = 0, all_ranks: bool = False
) -> list[TracedSample]:
    """Return the batch of a rank in a step, or of all ranks, each sample with its documents and rank.

    A batch that is padded has fewer samples. See trace_samples for more errors.

    Args:
        stream: the samples.
        steps: which positions the rank takes.
        step: counted from `start`, at least 0.
        chars: the text of each document is cut to this many characters; 0 for no text.
        start: a position of the stream, such as that of a state.
        all_ranks: return the batches of all ranks, one after the other.

    Raises IndexError if there is no such step.
    """
    left = steps.left(start)
    if left is not None and step >= left:
        raise IndexError(f"step {step:,} is past the last epoch, which ends after {counted(left, 'step')} (from 0)")
    position = start + step * steps.samples
    if position + steps.samples > MAX_POSITION:
        raise IndexError(f"step {step:,} is past the last position of a stream, 2**62")
    world_size = steps.ranks.world_size
    found: list[TracedSample] = []
    for rank in range(world_size) if all_ranks else [steps.ranks.rank]:
        of_rank = replace(steps, ranks=Ranks(rank, world_size, steps.ranks.origin))
        batch = trace_positions(stream, of_rank.positions(position, 1), chars)
        found += [{**sample, "rank": rank} for sample in batch]
    return found
