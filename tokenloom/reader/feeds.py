"""From a block's rows to batches of tensors: on the host, or over pinned buffers and a side stream to a CUDA device.

Several batches are made at a time (a chunk). On the host their memory is used again once no tensor over it is alive.
On a device tokens arrive in their stored width and are widened there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.reader.assembly import IGNORED, BatchFormat, Block, widen
from tokenloom.reader.timing import StepTimes

Batch = dict[str, Any]


class Feed(Protocol):
    """Makes several batches at a time (in the thread), and finishes each (for the consumer)."""

    def make(self, block: Block, first: int, num_batches: int) -> list[Any]:
        """Return the batches of rows [first, first + num_batches * batch_size) of a block; missing rows are padding."""

    def finish(self, made: Any) -> Batch:
        """Return one of the batches made, each once."""


def make_feed(
    form: BatchFormat, batch_size: int, chunk_batches: int, prefetch: int, device: torch.device, times: StepTimes
) -> Feed:
    """Return the feed for a device that makes at most `chunk_batches` batches at a time, `prefetch` of them ahead."""
    num_chunks = -(-prefetch // chunk_batches) + 3  # one more is being made, one taken, one in use
    if device.type == "cuda":
        from tokenloom.reader.cuda_feed import CudaFeed

        return CudaFeed(form, batch_size, chunk_batches, num_chunks, device, times)
    return HostFeed(form, batch_size, chunk_batches, num_chunks, device, times)


class ArrayPool:
    """Arrays of one shape that are handed out again once nobody else refers to them."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, max_arrays: int) -> None:
        self._shape, self._dtype, self._max_arrays = shape, dtype, max_arrays
        self._arrays: list[NDArray[Any]] = []

    def take(self) -> NDArray[Any]:
        """Return an array with arbitrary values."""
        for index in range(len(self._arrays)):
            if sys.getrefcount(self._arrays[index]) == 2:  # this list and the argument of getrefcount
                return self._arrays[index]
        array: NDArray[Any] = np.empty(self._shape, self._dtype)
        if len(self._arrays) < self._max_arrays:
            self._arrays.append(array)
        return array


class HostFeed:
    """Batches in host memory; for another device than CUDA they are copied there when taken.

    Args:
        form, batch_size: of the batches.
        chunk_batches: made at a time, at most.
        num_chunks: whose memory is kept, to be used again.
        device: where batches go.
        times: gets the seconds of each step.
    """

    def __init__(
        self,
        form: BatchFormat,
        batch_size: int,
        chunk_batches: int,
        num_chunks: int,
        device: torch.device,
        times: StepTimes,
    ) -> None:
        self._form, self._batch_size, self._device, self._times = form, batch_size, device, times
        shape = (batch_size * chunk_batches, form.seq_len)
        self._pool = ArrayPool((2, *shape), np.int64, num_chunks)

    def make(self, block: Block, first: int, num_batches: int) -> list[Batch]:
        """See Feed."""
        arrays = self._arrays(block, first, first + num_batches * self._batch_size)
        ids, labels = (self._tensors(arrays.pop(name), num_batches) for name in ("input_ids", "labels"))
        batches: list[Batch] = [{"input_ids": i, "labels": j} for i, j in zip(ids, labels, strict=True)]
        for name, array in arrays.items():
            for batch, tensor in zip(batches, self._tensors(array, num_batches), strict=True):
                batch[name] = tensor
        if "cu_seqlens" in self._form.fields:
            for index, batch in enumerate(batches):
                start = first + index * self._batch_size
                cu_seqlens, batch["max_seqlen"] = sequence_lengths(block, start, self._batch_size)
                batch["cu_seqlens"] = torch.from_numpy(cu_seqlens)
        return batches

    def _tensors(self, array: NDArray[Any], num_batches: int) -> Sequence[torch.Tensor]:
        shape = (self._batch_size, self._form.seq_len)
        if num_batches == 1:
            return (torch.from_numpy(array.reshape(shape)),)
        return torch.from_numpy(array.reshape(num_batches, *shape)).unbind()

    def _arrays(self, block: Block, first: int, end: int) -> dict[str, NDArray[Any]]:
        with self._times.step("gather"):
            tokens = block.tokens(first, end)
        with self._times.step("copy"):
            both = self._pool.take()[:, : end - first]
            widen(self._form, tokens, both)
        ids, labels = both
        arrays: dict[str, NDArray[Any]] = {"input_ids": ids, "labels": labels}
        if self._form.needs_marks or block.has_padding:
            with self._times.step("pack"):
                labels.reshape(-1)[block.boundaries.ignored_labels(first, end)] = IGNORED
                arrays |= {name: block.boundaries.field(name, first, end) for name in self._form.row_fields}
        return arrays

    def finish(self, made: Batch) -> Batch:
        """See Feed."""
        if self._device.type == "cpu":
            return made
        return {name: value.to(self._device) if hasattr(value, "to") else value for name, value in made.items()}


def sequence_lengths(block: Block, first: int, batch_size: int) -> tuple[NDArray[np.int32], int]:
    """Return cu_seqlens and max_seqlen of a batch of a block."""
    cu_seqlens = block.boundaries.cu_seqlens(first, first + batch_size)
    return cu_seqlens, int(np.diff(cu_seqlens).max())
