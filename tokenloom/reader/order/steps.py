"""How a rank walks over the stream: which positions each of its training steps takes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from tokenloom.reader.arguments import checked_int
from tokenloom.reader.ranks import DataRank
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.wording import counted


@dataclass(frozen=True)
class Steps:
    """The steps of one rank over the stream; a step takes one batch on every rank.

    Args:
        ranks: this rank, and the number of ranks.
        batch_size: samples in a batch on one rank.
        end: the stream has the positions [0, end); None if it is endless.
        drop_last: whether to drop the last step if it is short; else it is padded, on all ranks.
    """

    ranks: DataRank
    batch_size: int
    end: int | None
    drop_last: bool

    @property
    def samples(self) -> int:
        """The number of samples that one step takes on all ranks together."""
        return self.batch_size * self.ranks.world_size

    def left(self, position: int) -> int | None:
        """Return the number of steps from `position` to the end; None if the stream is endless."""
        if self.end is None:
            return None
        left = max(0, self.end - position)
        return left // self.samples if self.drop_last else -(-left // self.samples)

    def check_from(self, position: int) -> None:
        """Raise ValueError if no step is left at `position`."""
        if self.end is not None and self.left(position) == 0:
            raise ValueError(
                f"{counted(max(0, self.end - position), 'sample')} are too few for a step of "
                f"{counted(self.batch_size, 'sample')} on {counted(self.ranks.world_size, 'rank')}: "
                "use a smaller batch_size, more epochs, or drop_last=False"
            )

    def warn_of_repeats(self, num_samples: int | None) -> None:
        """Warn if a step takes more samples than an epoch has, from more than one epoch."""
        if num_samples is not None and self.samples > num_samples != self.end:
            warnings.warn(
                f"a step of all ranks takes {counted(self.samples, 'sample')}, and there are {num_samples:,}: it "
                "repeats some of them; use a smaller batch_size",
                stacklevel=4,  # who makes the loader
            )

    def after(self, position: int, num_steps: int) -> int:
        """Return the position after `num_steps` steps; the last step, if padded, ends with the stream."""
        after = position + num_steps * self.samples
        return after if self.end is None else min(after, self.end)

    def positions(self, position: int, num_steps: int) -> Int64s:
        """Return this rank's positions in the next steps, those congruent to its rank; the last step may be short."""
        first = position + (self.ranks.rank - position) % self.ranks.world_size
        found = first + self.ranks.world_size * np.arange(num_steps * self.batch_size, dtype=np.int64)
        return found if self.end is None else found[found < self.end]

    def places(self, positions: Int64s, start: int = 0) -> tuple[Int64s, Int64s, Int64s]:
        """Return the steps, counted from `start`, the ranks and the rows of the batch that take (n,) positions.

        It is the inverse of `positions`, for all ranks; each position is at least `start`.
        """
        world_size = self.ranks.world_size
        ranks = positions % world_size
        steps, rows = np.divmod((positions - start - (ranks - start) % world_size) // world_size, self.batch_size)
        return steps, ranks, rows


def stream_end(num_samples: int | None, num_epochs: int | None) -> int | None:
    """Return the end of a stream's positions, None if it is endless; raise ValueError if it has no epochs to count."""
    if num_epochs is None:
        return None
    if num_samples is None:
        raise ValueError("a mixture has no epochs: leave out num_epochs, and stop after as many steps as you want")
    return num_samples * checked_int("num_epochs", num_epochs, 1)
