"""From a block's rows to batches of tensors: on the host, or over pinned buffers and a side stream to a CUDA device.

Several batches are made at a time (a chunk). On the host their memory is used again once no tensor over it is alive.
On a device tokens arrive in their stored width and are widened there.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.reader.feeding.timing import StepTimes
from tokenloom.reader.shards.assembly import IGNORED, BatchFormat, Block, widen

Batch = dict[str, Any]


class Feed(Protocol):
    """Makes several batches at a time (in the thread), and finishes each (for the consumer)."""

    def make(self, block: Block, first: int, num_batches: int) -> list[Any]:
        """Return the batches of rows [first, first + num_batches * batch_size) of a block; missing rows are padding."""

    def finish(self, made: Any) -> Batch:
        """Return one of the batches made, each once; those on the CPU need it not."""


def make_feed(
    form: BatchFormat, batch_size: int, chunk_batches: int, prefetch: int, device: torch.device, times: StepTimes
) -> Feed:
    """Return the feed for a device that makes at most `chunk_batches` batches at a time, `prefetch` of them ahead."""
    num_chunks = -(-prefetch // chunk_batches) + 3  # one more is being made, one taken, one in use
    if device.type == "cuda":
        from tokenloom.reader.feeding.cuda_feed import CudaFeed

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

    Each tensor is made from an array, not cut from another tensor: torch would take a change of one batch's labels for
    one of all batches that wait for their backward pass.

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
        self._pool = ArrayPool((chunk_batches, 2, batch_size, form.seq_len), np.int64, num_chunks)
        shape = (chunk_batches * batch_size, form.seq_len)
        self._field_pools = {name: ArrayPool(shape, np.int32, num_chunks) for name in form.row_fields}

    def make(self, block: Block, first: int, num_batches: int) -> list[Batch]:
        """See Feed."""
        end = first + num_batches * self._batch_size
        with self._times.step("gather"):
            tokens = block.tokens(first, end)
        with self._times.step("copy"):
            ids_and_labels = self._pool.take()[:num_batches]
            widen(self._form, tokens, ids_and_labels)
        with torch.inference_mode(False):  # in which the consumer may be, who gets some of them later
            tensors = self._tensors(ids_and_labels, 2 * num_batches)
            batches: list[Batch] = [
                {"input_ids": ids, "labels": labels} for ids, labels in zip(tensors[::2], tensors[1::2], strict=True)
            ]
            if self._form.needs_marks or block.has_padding:
                with self._times.step("pack"):
                    self._ignore_labels(block, first, end, ids_and_labels)
                    self._add_fields(block, first, end, batches)
        return batches

    def _tensors(self, array: NDArray[Any], count: int) -> list[torch.Tensor]:
        return list(map(torch.from_numpy, array.reshape(count, self._batch_size, self._form.seq_len)))

    def _ignore_labels(self, block: Block, first: int, end: int, ids_and_labels: NDArray[np.int64]) -> None:
        places = block.boundaries.ignored_labels(first, end)
        batch, place = np.divmod(places, self._batch_size * self._form.seq_len)
        ids_and_labels.reshape(len(ids_and_labels), 2, -1)[batch, 1, place] = IGNORED

    def _add_fields(self, block: Block, first: int, end: int, batches: list[Batch]) -> None:
        for name, pool in self._field_pools.items():
            field = pool.take()[: end - first]
            block.boundaries.write(name, first, end, field)
            for batch, tensor in zip(batches, self._tensors(field, len(batches)), strict=True):
                batch[name] = tensor
        if "cu_seqlens" in self._form.fields:
            for index, batch in enumerate(batches):
                start = first + index * self._batch_size
                cu_seqlens, batch["max_seqlen"] = sequence_lengths(block, start, self._batch_size)
                batch["cu_seqlens"] = torch.from_numpy(cu_seqlens)

    def finish(self, made: Batch) -> Batch:
        """See Feed; for the CPU there is nothing to finish."""
        return {name: value.to(self._device) if hasattr(value, "to") else value for name, value in made.items()}


def sequence_lengths(block: Block, first: int, batch_size: int) -> tuple[NDArray[np.int32], int]:
    """Return cu_seqlens and max_seqlen of a batch of a block."""
    cu_seqlens = block.boundaries.cu_seqlens(first, first + batch_size)
    return cu_seqlens, int(np.diff(cu_seqlens).max())
