"""Batches in host memory, as tensors or numpy arrays; the memory of a chunk is reused once none over it is alive."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.reader.feeding.timing import PhaseTimes
from tokenloom.reader.shards.batch_format import Batch, BatchFormat
from tokenloom.reader.shards.targets import Targets
from tokenloom.reader.shards.window import TokenWindow, widen
from tokenloom.storage.formats.arrays import AnyArray

if TYPE_CHECKING:
    import torch

    from tokenloom.reader.shards.batch_format import BatchValue

Number = TypeVar("Number", np.int32, np.int64)


class ArrayPool(Generic[Number]):
    """Arrays of one shape; each is handed out again once nothing else refers to it."""

    def __init__(self, shape: tuple[int, ...], dtype: type[Number], max_arrays: int) -> None:
        self._shape, self._max_arrays = shape, max_arrays
        self._dtype: type[Number] = dtype
        self._arrays: list[NDArray[Number]] = []

    def take(self) -> NDArray[Number]:
        """Return an array with arbitrary values."""
        for index in range(len(self._arrays)):
            if sys.getrefcount(self._arrays[index]) == 2:  # this list and the argument of getrefcount
                return self._arrays[index]
        array = np.empty(self._shape, self._dtype)
        if len(self._arrays) < self._max_arrays:
            self._arrays.append(array)
        return array


def torch_device(device: str | int | torch.device | None) -> torch.device | None:
    """Return the device of torch that a name means, or None for "numpy": arrays, which need no torch.

    Raises ValueError if torch or the machine has no such device, ModuleNotFoundError if torch is not installed.
    """
    if device == "numpy":
        return None
    try:
        import torch
    except ModuleNotFoundError as error:
        message = 'tensors need torch: pip install torch, or pass device="numpy" for batches of numpy arrays'
        raise ModuleNotFoundError(message, name="torch") from error
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ValueError(
            f'torch has no device {device!r}: "cuda" or "cuda:1" is a GPU, "mps" that of a Mac; "numpy" gives arrays'
        ) from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device}: torch finds no CUDA device on this machine")
    return found


class HostFeed:
    """Makes batches in host memory; batches for a device other than CUDA are copied there when they are taken.

    Each tensor is made from an array and not cut from another tensor: otherwise torch would treat a change to the
    labels of one batch as a change to every batch whose backward pass is pending.

    Args:
        form: what a batch holds.
        batch_size: B.
        chunk_batches: how many batches are made at a time, at most.
        num_chunks: how many chunks of memory are kept for reuse.
        device: where batches go; None for numpy arrays.
        times: adds up the seconds of each phase.
    """

    def __init__(
        self,
        form: BatchFormat,
        batch_size: int,
        chunk_batches: int,
        num_chunks: int,
        device: torch.device | None,
        times: PhaseTimes,
    ) -> None:
        self._form, self._batch_size, self._device, self._times = form, batch_size, device, times
        self._tensor: Callable[[AnyArray], BatchValue] = lambda array: array
        self._outside_inference: Callable[[], AbstractContextManager[object]] = nullcontext
        if device is not None:
            torch = import_module("torch")
            # The consumer may be in inference mode, and use some of the batches outside of it.
            self._tensor, self._outside_inference = torch.from_numpy, partial(torch.inference_mode, False)
        self._pool = ArrayPool((chunk_batches, 2, batch_size, form.seq_len), np.int64, num_chunks)
        shape = (chunk_batches * batch_size, form.seq_len)
        self._num_labels = batch_size * (form.seq_len + form.shift - 1)
        #: whether a label may be ignored in a row without padding
        self._needs_targets = form.learn is not None or form.needs_marks
        self._field_pools = {name: ArrayPool(shape, np.int32, num_chunks) for name in form.row_fields}

    def make(self, window: TokenWindow, first: int, num_batches: int) -> list[Batch]:
        """See Feed."""
        end = first + num_batches * self._batch_size
        with self._times.gather:
            tokens = window.tokens(first, end)
            classes = window.classes(first, end)
        counts = [self._num_labels] * num_batches
        if not (self._needs_targets or window.has_padding):
            with self._times.copy:
                ids_and_labels = self._pool.take()[:num_batches]
                widen(self._form, tokens, ids_and_labels)
        else:
            with self._times.pack:
                targets = Targets(window, first, end, self._batch_size, classes)
                counts = targets.counts()
            with self._times.copy:
                ids_and_labels = self._pool.take()[:num_batches]
                targets.write(tokens, ids_and_labels)
        with self._outside_inference():
            tensors = [*map(self._tensor, ids_and_labels.reshape(2 * num_batches, *ids_and_labels.shape[2:]))]
            batches: list[Batch] = [
                {"input_ids": ids, "labels": labels, "num_targets": count}
                for ids, labels, count in zip(tensors[::2], tensors[1::2], counts, strict=True)
            ]
            if self._form.fields:
                with self._times.pack:
                    self._add_fields(window, first, end, batches, classes)
        return batches

    def _add_fields(
        self, window: TokenWindow, first: int, end: int, batches: list[Batch], classes: NDArray[np.uint8] | None
    ) -> None:
        fields: dict[str, AnyArray] = {}
        if classes is not None and "classes" in self._form.fields:
            fields["classes"] = self._form.of_labels(classes).copy()
        for name, pool in self._field_pools.items():
            fields[name] = pool.take()[: end - first]
            window.boundaries.write(name, first, end, fields[name])
        if "member" in self._form.fields:
            fields["member"] = window.members(first, end)
        for name, array in fields.items():
            of_batches = array.reshape(len(batches), self._batch_size, *array.shape[1:])
            for batch, of_batch in zip(batches, of_batches, strict=True):
                batch[name] = self._tensor(of_batch)
        if "cu_seqlens" in self._form.fields:
            for index, batch in enumerate(batches):
                start = first + index * self._batch_size
                cu_seqlens, batch["max_seqlen"] = window.boundaries.sequences(start, start + self._batch_size)
                batch["cu_seqlens"] = self._tensor(cu_seqlens)

    def finish(self, made: Batch) -> Batch:
        """See Feed."""
        return {name: value.to(self._device) if hasattr(value, "to") else value for name, value in made.items()}
