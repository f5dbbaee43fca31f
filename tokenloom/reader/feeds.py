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

from tokenloom.reader.assembly import IGNORED, BatchFormat, Block, widen
from tokenloom.reader.timing import StepTimes

Batch = dict[str, Any]


class Feed(Protocol):
    """Makes several batches at a time (in the thread), and finishes each (for the consumer)."""

    def make(self, block: Block, first: int, num_batches: int) -> list[Any]:
        """Return the batches of rows [first, first + num_batches * batch_size) of a block; missing rows are padding."""

    def finish(self, made: Any) -> Batch:
        """Return one of the batches made, each once."""


def make_feed(form: BatchFormat, batch_size: int, chunk_batches: int, device: torch.device, times: StepTimes) -> Feed:
    """Return the feed for a device; a chunk has at most `chunk_batches` batches."""
    if device.type == "cuda":
        from tokenloom.reader.cuda_feed import CudaFeed

        return CudaFeed(form, batch_size, chunk_batches, device, times)
    return HostFeed(form, batch_size, chunk_batches, device, times)


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


class Gatherer:
    """Copies the rows of a chunk in their stored width, and finds the documents in them."""

    def __init__(self, form: BatchFormat, batch_size: int, times: StepTimes) -> None:
        self.form, self.batch_size, self._times = form, batch_size, times

    def gather(self, block: Block, first: int, tokens: NDArray[Any]) -> Any:
        """Fill `tokens`, (n, T + 1), with rows from `first`, eot where the block has no more; return its boundaries."""
        end = min(block.num_rows, first + len(tokens))
        with self._times.step("gather"):
            block.copy_tokens(first, end, tokens[: end - first])
            tokens[end - first :] = self.form.eot_id
        if not self.form.needs_marks and end - first == len(tokens):
            return None
        with self._times.step("pack"):
            return block.boundaries(first, first + len(tokens))


class HostFeed:
    """Batches in host memory; for another device than CUDA they are copied there when taken."""

    def __init__(
        self, form: BatchFormat, batch_size: int, chunk_batches: int, device: torch.device, times: StepTimes
    ) -> None:
        self._gatherer = Gatherer(form, batch_size, times)
        self._form, self._batch_size, self._device, self._times = form, batch_size, device, times
        rows = batch_size * chunk_batches
        self._tokens = np.empty((rows, form.row_tokens), form.dtype)
        shape = (rows, form.seq_len)
        names: dict[str, Any] = {"input_ids": np.int64, "labels": np.int64}
        names |= {name: np.int32 for name in form.fields if name != "cu_seqlens"}
        self._pools = {name: ArrayPool(shape, dtype, 4) for name, dtype in names.items()}

    def make(self, block: Block, first: int, num_batches: int) -> list[Batch]:
        """See Feed."""
        rows = num_batches * self._batch_size
        tokens = self._tokens[:rows]
        found = self._gatherer.gather(block, first, tokens)
        arrays = {name: pool.take()[:rows] for name, pool in self._pools.items()}
        with self._times.step("copy"):
            widen(self._form, tokens, arrays["input_ids"], arrays["labels"])
        if found is not None:
            with self._times.step("pack"):
                arrays["labels"].reshape(-1)[found.ignored_labels()] = IGNORED
                fill_fields(found, arrays)
        shape = (num_batches, self._batch_size, self._form.seq_len)
        columns = [torch.from_numpy(array.reshape(shape)).unbind() for array in arrays.values()]
        batches: list[Batch] = [dict(zip(arrays, values, strict=True)) for values in zip(*columns, strict=True)]
        lengths = sequence_lengths(self._form, found, self._batch_size, num_batches)
        for batch, (cu_seqlens, max_seqlen) in zip(batches, lengths, strict=False):
            batch |= {"cu_seqlens": torch.from_numpy(cu_seqlens), "max_seqlen": max_seqlen}
        return batches

    def finish(self, made: Batch) -> Batch:
        """See Feed."""
        if self._device.type == "cpu":
            return made
        return {name: value.to(self._device) if hasattr(value, "to") else value for name, value in made.items()}


def fill_fields(found: Any, arrays: dict[str, NDArray[Any]]) -> None:
    """Write document_ids and position_ids where `arrays` has them."""
    if "document_ids" in arrays:
        found.fill_document_ids(arrays["document_ids"])
    if "position_ids" in arrays:
        found.fill_position_ids(arrays["position_ids"])


def sequence_lengths(
    form: BatchFormat, found: Any, batch_size: int, num_batches: int
) -> list[tuple[NDArray[np.int32], int]]:
    """Return cu_seqlens and max_seqlen of each batch, nothing if nobody asked."""
    if "cu_seqlens" not in form.fields:
        return []
    offsets = [found.cu_seqlens(i * batch_size, (i + 1) * batch_size) for i in range(num_batches)]
    return [(cu_seqlens, int(np.diff(cu_seqlens).max())) for cu_seqlens in offsets]
