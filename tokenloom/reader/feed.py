"""Rows of a window become batches: their targets, and their tensors in host memory or on a CUDA device.

Targets are the labels that a model learns; the others are IGNORED. Without masks, few are ignored, which follow from
where documents and padding begin: a list of positions. With masks, the class of each token decides.

Host memory of a chunk of batches is reused once no tensor refers to it. For a CUDA device, rows are gathered in pinned
memory, copied on a side stream in their stored type (two bytes for a uint16 shard), and widened on the device. The
consumer's stream waits for the copy; the consumer never does. torch's allocators reuse pinned memory once the copies
that read it are done, and memory on the device in the order of the side stream, which waits until a batch is widened.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tokenloom.reader.batch import IGNORED, Batch, BatchFormat
from tokenloom.reader.prefetch import PhaseTimes
from tokenloom.reader.window import TokenWindow
from tokenloom.storage.formats.arrays import AnyArray, AnyDtype, Int32s, Int64s, Tokens
from tokenloom.storage.formats.classes import learned_classes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokenloom.reader.batch import BatchValue


_NONE = np.zeros(0, np.int64)


class Targets:
    """The targets of n batches, which are rows [first, end) of a window.

    Args:
        window: the rows.
        first, end: which of them.
        batch_size: B, the rows of a batch.
        classes: of their tokens, (n * B, T + 1); None if the batch format needs none.
    """

    def __init__(
        self, window: TokenWindow, first: int, end: int, batch_size: int, classes: NDArray[np.uint8] | None
    ) -> None:
        self._form = form = window.form
        self._batch_size, self._num_batches = batch_size, (end - first) // batch_size
        #: 0 for tokens that are learned, else IGNORED, (n * B, T + 1); None without masks
        self._ignored: NDArray[np.int8] | None = None
        if form.learn is not None and classes is not None:
            self._ignored = _ignored(classes, form.learn)
            self._ignored[:, 0 if form.shift else -1] = IGNORED  # the token of a row that has no label
        #: of the labels that losses ignore, without masks: the batch, and the position in the flattened batch
        self.batches = self.positions = _NONE
        if form.mask_documents or (window.has_padding and self._ignored is None):  # a class keeps padding out
            flat = window.boundaries.ignored_labels(first, end)
            if self._ignored is None:
                self.batches, self.positions = np.divmod(flat, batch_size * form.seq_len)
            else:
                self._ignored.reshape(-1)[flat + flat // form.seq_len + form.shift] = IGNORED

    def counts(self) -> list[int]:
        """Count the targets of each batch: the labels that losses do not ignore.

        With labels="same", models shift the labels, so that the first one of a row is never a target.
        """
        seq_len, shift = self._form.seq_len, self._form.shift
        if self._ignored is not None:
            ignored = self._ignored.reshape(self._num_batches, -1)
            counts = [ignored.shape[1] - int(np.count_nonzero(batch)) for batch in ignored]
            return counts if shift else np.subtract(counts, (ignored[:, :: seq_len + 1] == 0).sum(1)).tolist()
        num_labels = self._batch_size * (seq_len + shift - 1)
        batches = self.batches if shift else self.batches[self.positions % seq_len > 0]
        ends = np.searchsorted(batches, np.arange(self._num_batches + 1)).tolist()  # they ascend
        return [num_labels - (end - first) for first, end in pairwise(ends)]

    def write(self, tokens: Tokens, out: Int64s) -> None:
        """Write the inputs and labels of the batches to `out`, (n, 2, B, T), from their tokens, (n * B, T + 1)."""
        if self._ignored is not None:
            widen(self._form, tokens, out, _label_ids(tokens, self._ignored))
            return
        widen(self._form, tokens, out)
        out.reshape(len(out), 2, -1)[self.batches, 1, self.positions] = IGNORED

    def ignored(self) -> NDArray[np.bool_] | None:
        """Flag the labels that losses ignore, (n * B, T); None without masks."""
        return None if self._ignored is None else self._form.of_labels(self._ignored) != 0


def _ignored(classes: NDArray[np.uint8], learn: str | tuple[str, ...]) -> NDArray[np.int8]:
    """Map the classes of tokens to 0 for those that are learned, else IGNORED.

    A few operations on whole arrays take a fifth of the time of looking up each class in a table.
    """
    bits, runs = _learned_values(learn)
    values = classes & bits
    ignored: NDArray[np.int8] | np.int8 = np.int8(IGNORED)
    for step, last in runs:
        values -= step  # below the first of a run, the difference wraps around
        outside = (values > last).view(np.int8)  # numpy's `<` would take twice as long
        ignored = np.multiply(outside, ignored, out=outside)
    return outside


@cache
def _learned_values(learn: str | tuple[str, ...]) -> tuple[np.uint8, list[tuple[np.uint8, np.uint8]]]:
    """Find the bits of a class that decide whether it is learned, and the values of these bits that are.

    The values are runs of neighbours: how far the first one is from that of the run before, and from the last one.
    """
    learned = learned_classes(learn)
    numbers = np.arange(256)
    bits = sum(1 << bit for bit in range(8) if (learned != learned[numbers ^ 1 << bit]).any())
    values = np.unique(numbers[learned] & bits)
    runs = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1)
    steps = np.diff([run[0] for run in runs], prepend=0)
    return np.uint8(bits), [(np.uint8(step), np.uint8(run[-1] - run[0])) for step, run in zip(steps, runs, strict=True)]


def _label_ids(tokens: Tokens, ignored: NDArray[np.int8]) -> Int32s:
    """Take the ids of tokens that are learned, and IGNORED for the others, in the shape of both.

    As an unsigned number, IGNORED is larger than every id. Writing it where a flag says so would take twice as long.
    """
    ids: AnyArray = ignored.astype(np.int32).view(np.uint32)
    return np.maximum(tokens, ids, out=ids).view(np.int32)


def widen(form: BatchFormat, tokens: Tokens, out: Int64s, labels: Int32s | None = None) -> None:
    """Write the inputs and labels of n batches to `out`, (n, 2, B, T), from their rows, (n * B, T + 1).

    Args:
        form: what a batch holds.
        tokens: of the rows.
        out: what is written to.
        labels: in place of the tokens from which labels are made, (n * B, T + 1).
    """
    if labels is not None:
        for place, rows in enumerate((tokens[:, : form.seq_len], form.of_labels(labels))):
            np.copyto(out[:, place], rows.reshape(len(out), -1, form.seq_len))
        return
    row, token = tokens.strides
    strides = (out.shape[2] * row, form.shift * token, row, token)
    np.copyto(out, np.ndarray(out.shape, tokens.dtype, tokens, strides=strides))  # one call for all of them


def row_fields(
    window: TokenWindow, first: int, end: int, classes: NDArray[np.uint8] | None, out: dict[str, AnyArray]
) -> dict[str, AnyArray]:
    """Make the fields that have an entry for each of the rows [first, end) of a window: {name: (n, ...)}.

    Args:
        window: the rows.
        first, end: which of them.
        classes: of their tokens, (n, T + 1), if the batch format needs them.
        out: arrays of at least n rows for the fields that follow from where documents begin.
    """
    form, fields = window.form, {name: array[: end - first] for name, array in out.items()}
    for name, array in fields.items():
        window.boundaries.write(name, first, end, array)
    if classes is not None and "classes" in form.fields:
        fields["classes"] = form.of_labels(classes).copy()
    if "source_ids" in form.fields:
        fields["source_ids"] = form.of_labels(window.sources(first, end)).copy()
    if "member" in form.fields:
        fields["member"] = window.members(first, end)
    return fields


@dataclass
class ArrayPool:
    """Arrays of one shape; each is handed out again once nothing else refers to it."""

    shape: tuple[int, ...]
    dtype: AnyDtype
    max_arrays: int
    _arrays: list[AnyArray] = field(default_factory=list)

    def take(self) -> AnyArray:
        """Hand out an array with arbitrary values."""
        for index in range(len(self._arrays)):
            if sys.getrefcount(self._arrays[index]) == 2:  # this list and the argument of getrefcount
                return self._arrays[index]
        array = np.empty(self.shape, self.dtype)
        if len(self._arrays) < self.max_arrays:
            self._arrays.append(array)
        return array


class HostFeed:
    """Makes batches in host memory; batches for a device other than CUDA are copied there when they are taken.

    Each tensor is made from an array and not cut from another tensor: otherwise torch would treat a change to the
    labels of one batch as a change to every batch whose backward pass is pending.

    Args:
        form, batch_size: what a batch holds, and B.
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
        self._pool = ArrayPool((chunk_batches, 2, batch_size, form.seq_len), np.dtype(np.int64), num_chunks)
        shape = (chunk_batches * batch_size, form.seq_len)
        self._num_labels = batch_size * (form.seq_len + form.shift - 1)
        #: whether a label may be ignored in a row without padding
        self._needs_targets = form.learn is not None or form.needs_marks
        self._field_pools = {name: ArrayPool(shape, np.dtype(np.int32), num_chunks) for name in form.row_fields}

    def make(self, window: TokenWindow, first: int, num_batches: int) -> list[Batch]:
        """Make the batches of rows [first, first + num_batches * batch_size) of a window."""
        end, begin = first + num_batches * self._batch_size, time.perf_counter()
        tokens = window.tokens(first, end)
        classes = window.classes(first, end) if self._form.needs_classes else None
        begin = self._times.add("gather", begin)
        ids_and_labels, counts = self._pool.take()[:num_batches], [self._num_labels] * num_batches
        if self._needs_targets or window.has_padding:
            targets = Targets(window, first, end, self._batch_size, classes)
            counts = targets.counts()
            begin = self._times.add("pack", begin)
            targets.write(tokens, ids_and_labels)
        else:
            widen(self._form, tokens, ids_and_labels)
        begin = self._times.add("copy", begin)
        with self._outside_inference():
            tensors = [*map(self._tensor, ids_and_labels.reshape(2 * num_batches, *ids_and_labels.shape[2:]))]
            batches: list[Batch] = [
                {"input_ids": ids, "labels": labels, "num_targets": count}
                for ids, labels, count in zip(tensors[::2], tensors[1::2], counts, strict=True)
            ]
            if self._form.fields:
                self._add_fields(window, first, batches, classes)
                self._times.add("pack", begin)
        return batches

    def _add_fields(
        self, window: TokenWindow, first: int, batches: list[Batch], classes: NDArray[np.uint8] | None
    ) -> None:
        out = {name: pool.take() for name, pool in self._field_pools.items()}
        for name, array in row_fields(window, first, first + len(batches) * self._batch_size, classes, out).items():
            of_batches = array.reshape(len(batches), self._batch_size, *array.shape[1:])
            for batch, of_batch in zip(batches, of_batches, strict=True):
                batch[name] = self._tensor(of_batch)
        if "cu_seqlens" in self._form.fields:
            for index, batch in enumerate(batches):
                start = first + index * self._batch_size
                cu_seqlens, max_seqlen = window.boundaries.sequences(start, start + self._batch_size)
                batch |= {"cu_seqlens": self._tensor(cu_seqlens), "max_seqlen": max_seqlen}

    def finish(self, made: Batch) -> Batch:
        """Copy a batch to a device other than the CPU."""
        return {name: value.to(self._device) if hasattr(value, "to") else value for name, value in made.items()}


#: an array that several batches share, and how many of its entries belong to each
_Shared: TypeAlias = tuple[AnyArray, list[int]]


@dataclass(frozen=True)
class _NarrowBatch:
    """A batch that is not widened yet: its arrays on the device, valid once they are copied."""

    copied: torch.cuda.Event
    arrays: dict[str, Tensor]
    num_targets: int
    max_seqlen: int | None


class CudaFeed:
    """Makes batches on a CUDA device; see Feed.

    Args:
        form, batch_size: what a batch holds, and B.
        device: the current device if it has no index.
        times: adds up the seconds of each phase.

    Raises:
        RuntimeError: this process is a fork of one that uses CUDA; torch's message names the remedy.
    """

    def __init__(self, form: BatchFormat, batch_size: int, device: torch.device, times: PhaseTimes) -> None:
        import torch

        torch.cuda.init()  # type: ignore[no-untyped-call]  # raises in a forked child
        index = torch.cuda.current_device() if device.index is None else device.index
        self._form, self._batch_size, self._times = form, batch_size, times
        self._device = torch.device(device.type, index)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def make(self, window: TokenWindow, first: int, num_batches: int) -> list[_NarrowBatch]:
        """Gather the rows of the batches, and begin to copy them to the device."""
        end, by_rows = first + num_batches * self._batch_size, [self._batch_size] * num_batches
        begin = time.perf_counter()
        shared: dict[str, _Shared] = {"tokens": (window.tokens(first, end), by_rows)}
        classes = window.classes(first, end) if self._form.needs_classes else None
        begin = self._times.add("gather", begin)
        max_seqlens: list[int] = []
        targets = Targets(window, first, end, self._batch_size, classes)
        counts = targets.counts()
        if (flags := targets.ignored()) is not None:
            shared["flags"] = (flags, by_rows)
        elif len(targets.positions):
            shared["positions"] = (targets.positions, np.bincount(targets.batches, minlength=num_batches).tolist())
        out = {name: np.empty((end - first, self._form.seq_len), np.int32) for name in self._form.row_fields}
        shared |= {name: (values, by_rows) for name, values in row_fields(window, first, end, classes, out).items()}
        if "cu_seqlens" in self._form.fields:
            shared["cu_seqlens"], max_seqlens = self._cu_seqlens(window, first, num_batches)
        begin = self._times.add("pack", begin)
        copied, parts = self._copy(shared)
        self._times.add("copy", begin)
        return [
            _NarrowBatch(
                copied,
                {name: part[i] for name, part in parts.items()},
                counts[i],
                max_seqlens[i] if max_seqlens else None,
            )
            for i in range(num_batches)
        ]

    def _cu_seqlens(self, window: TokenWindow, first: int, num_batches: int) -> tuple[_Shared, list[int]]:
        starts = range(first, first + num_batches * self._batch_size, self._batch_size)
        sequences = [window.boundaries.sequences(start, start + self._batch_size) for start in starts]
        arrays, longest = zip(*sequences, strict=True)
        return (np.concatenate(arrays), list(map(len, arrays))), list(longest)

    def _copy(self, shared: dict[str, _Shared]) -> tuple[torch.cuda.Event, dict[str, tuple[Tensor, ...]]]:
        """Begin to copy arrays to the device; return the event of the end, and the part of each batch."""
        import torch

        parts = {}
        # The device comes first: a new thread that leaves a stream returns to device 0, and would open a context there.
        with torch.inference_mode(False), torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            for name, (array, sizes) in shared.items():
                host = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name), device="cpu", pin_memory=True)
                host.numpy()[...] = array
                parts[name] = torch.split(host.to(self._device, non_blocking=True), sizes)
            return self._stream.record_event(), parts

    def finish(self, made: _NarrowBatch) -> Batch:
        """Widen one batch on the consumer's stream."""
        import torch

        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(made.copied)
        with torch.inference_mode(False):  # the consumer may use the batch outside of that mode
            batch = self._widen(made)
        self._stream.wait_stream(stream)  # later copies may be given the memory of this batch's arrays
        return batch

    def _widen(self, made: _NarrowBatch) -> Batch:
        arrays = made.arrays
        inputs = arrays["tokens"][:, :-1]
        labels = arrays["tokens"][:, 1:] if self._form.labels == "shifted" else inputs
        batch: Batch = {
            "input_ids": inputs.long().contiguous(),
            "labels": labels.long().contiguous(),
            "num_targets": made.num_targets,
        }
        if "flags" in arrays:
            batch["labels"].masked_fill_(arrays["flags"], IGNORED)
        if "positions" in arrays:
            batch["labels"].view(-1).index_fill_(0, arrays["positions"], IGNORED)
        batch |= {name: array.clone() for name, array in arrays.items() if name in self._form.fields}
        if made.max_seqlen is not None:
            batch["max_seqlen"] = made.max_seqlen
        return batch
