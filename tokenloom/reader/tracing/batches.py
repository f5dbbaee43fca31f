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


def step_position(steps: Steps, step: int, start: int = 0) -> int:
    """Return the position of the stream at which a step begins; raise IndexError if there is no such step.

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
    ranks = [replace(steps, ranks=Ranks(rank, world_size, origin)) for rank in range(world_size)]
    return [sample for of_rank in ranks for sample in trace_batch(stream, of_rank, position, chars)]
