"""A pass over the samples of a dataset, for validation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from tokenloom.reader.arguments import EvaluationOptions
from tokenloom.reader.batch import Batch
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader


class EvaluationPass:
    """One epoch in natural order, from its start in each iteration; the last step is padded (labels -100).

    Args:
        dataset: what to evaluate on; its documents are already in random order.
        batch_size: samples in a batch on this rank, at least 1.
        source: the name of a source, to read only its documents; None for all. The packing must keep documents apart.
        options: those of TokenLoader: rank, world_size, mesh, dims, device, prefetch, io_threads, order, seed,
            lanes, compare_ranks.
    """

    def __init__(
        self, dataset: TokenDataset, batch_size: int, source: str | None = None, **options: Unpack[EvaluationOptions]
    ) -> None:
        if not isinstance(dataset, TokenDataset):
            raise TypeError(f"an EvaluationPass needs a TokenDataset, not a {type(dataset).__name__}")
        self._dataset, self._batch_size = dataset if source is None else dataset.of_source(source), batch_size
        self._options: EvaluationOptions = {"order": "sequential", **options}
        self._num_batches = len(self._make())

    def _make(self) -> TokenLoader:
        return TokenLoader(self._dataset, self._batch_size, drop_last=False, num_epochs=1, **self._options)

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Batch]:
        loader = self._make()
        try:
            for batch in loader:
                self._options["compare_ranks"] = None  # once is enough: a pass has the same stream each time
                yield batch
        finally:
            loader.close()
