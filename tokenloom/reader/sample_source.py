"""What a loader reads: a dataset or a mixture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenloom.reader.streams import Stream


class SampleSource(ABC):
    """What a loader reads: a TokenDataset or a Mixture."""

    @abstractmethod
    def stream(self, order: str, seed: int, lanes: int | None) -> Stream:
        """Return the stream of samples in an order; raise ValueError if an argument is out of range."""


def make_stream(source: SampleSource, order: str, seed: int, lanes: int | None) -> Stream:
    """Return the stream of a source; raise TypeError if it is not one, ValueError if an argument is out of range."""
    if not isinstance(source, SampleSource):
        raise TypeError(f"the source must be a TokenDataset or a Mixture, not a {type(source).__name__}")
    return source.stream(order, seed, lanes)
