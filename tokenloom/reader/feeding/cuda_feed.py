"""Batches on a CUDA device: rows are gathered in pinned memory, copied on a side stream, and widened on the device.

A token travels in its stored type: two bytes for a uint16 shard. The consumer's stream waits for the copy; the consumer
never does. Memory belongs to torch's allocators. They reuse pinned memory once the copies that read it are done, and
memory on the device in the order of the side stream, which waits until a batch is widened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from tokenloom.reader.feeding.timing import PhaseTimes
from tokenloom.reader.shards.batch_format import IGNORED, Batch, BatchFormat
from tokenloom.reader.shards.targets import Targets
from tokenloom.reader.shards.window import TokenWindow
from tokenloom.storage.formats.arrays import AnyArray

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
        form: what a batch holds.
        batch_size: B.
        device: the current device if it has no index.
        times: adds up the seconds of each phase.

    Raises:
        RuntimeError: this process is a fork of one that uses CUDA; torch's message names the remedy.
    """

    def __init__(self, form: BatchFormat, batch_size: int, device: torch.device, times: PhaseTimes) -> None:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # raises in a forked child
        index = torch.cuda.current_device() if device.index is None else device.index
        self._form, self._batch_size, self._times = form, batch_size, times
        self._device = torch.device(device.type, index)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def make(self, window: TokenWindow, first: int, num_batches: int) -> list[_NarrowBatch]:
        """See Feed."""
        end, by_rows = first + num_batches * self._batch_size, [self._batch_size] * num_batches
        with self._times.gather:
            shared: dict[str, _Shared] = {"tokens": (window.tokens(first, end), by_rows)}
            classes = window.classes(first, end)
        max_seqlens: list[int] = []
        with self._times.pack:
            targets = Targets(window, first, end, self._batch_size, classes)
            counts = targets.counts()
            if (flags := targets.ignored()) is not None:
                shared["flags"] = (flags, by_rows)
            elif len(targets.positions):
                shared["positions"] = (targets.positions, np.bincount(targets.batches, minlength=num_batches).tolist())
            shared |= self._row_fields(window, first, num_batches)
            if "cu_seqlens" in self._form.fields:
                shared["cu_seqlens"], max_seqlens = self._cu_seqlens(window, first, num_batches)
        if classes is not None and "classes" in self._form.fields:
            shared["classes"] = (self._form.of_labels(classes), by_rows)
        if "member" in self._form.fields:
            shared["member"] = (window.members(first, end), by_rows)
        with self._times.copy:
            copied, parts = self._copy(shared)
        return [
            _NarrowBatch(
                copied,
                {name: part[i] for name, part in parts.items()},
                counts[i],
                max_seqlens[i] if max_seqlens else None,
            )
            for i in range(num_batches)
        ]

    def _row_fields(self, window: TokenWindow, first: int, num_batches: int) -> dict[str, _Shared]:
        num_rows = num_batches * self._batch_size
        fields: dict[str, _Shared] = {}
        for name in self._form.row_fields:
            values = np.empty((num_rows, self._form.seq_len), np.int32)
            window.boundaries.write(name, first, first + num_rows, values)
            fields[name] = (values, [self._batch_size] * num_batches)
        return fields

    def _cu_seqlens(self, window: TokenWindow, first: int, num_batches: int) -> tuple[_Shared, list[int]]:
        starts = range(first, first + num_batches * self._batch_size, self._batch_size)
        sequences = [window.boundaries.sequences(start, start + self._batch_size) for start in starts]
        arrays, longest = zip(*sequences, strict=True)
        return (np.concatenate(arrays), list(map(len, arrays))), list(longest)

    def _copy(self, shared: dict[str, _Shared]) -> tuple[torch.cuda.Event, dict[str, tuple[Tensor, ...]]]:
        """Begin to copy arrays to the device; return the event of the end, and the part of each batch."""
        parts = {}
        # The device comes first: a new thread that leaves a stream returns to device 0, and would open a context there.
        with torch.inference_mode(False), torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            for name, (array, sizes) in shared.items():
                dtype = getattr(torch, array.dtype.name)
                host = torch.empty(array.shape, dtype=dtype, device="cpu", pin_memory=True)
                host.numpy()[...] = array
                parts[name] = torch.split(host.to(self._device, non_blocking=True), sizes)
            return self._stream.record_event(), parts

    def finish(self, made: _NarrowBatch) -> Batch:
        """Widen one batch on the consumer's stream; see Feed."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(made.copied)
        with torch.inference_mode(False):  # the consumer may use the batch outside of that mode
            batch = self._widen(made)
        self._stream.wait_stream(stream)  # later copies may be given the memory of this batch's arrays
        return batch

    def _widen(self, made: _NarrowBatch) -> Batch:
        arrays, own = made.arrays, torch.contiguous_format
        inputs = arrays["tokens"][:, :-1]
        labels = arrays["tokens"][:, 1:] if self._form.labels == "shifted" else inputs
        batch: Batch = {
            "input_ids": inputs.to(torch.int64, memory_format=own),
            "labels": labels.to(torch.int64, memory_format=own),
            "num_targets": made.num_targets,
        }
        if "flags" in arrays:
            batch["labels"].masked_fill_(arrays["flags"], IGNORED)
        if "positions" in arrays:
            batch["labels"].view(-1).index_fill_(0, arrays["positions"], IGNORED)
        names = ("classes", *self._form.row_fields, "member")
        batch |= {name: arrays[name].clone() for name in names if name in arrays}
        if made.max_seqlen is not None:
            batch |= {"max_seqlen": made.max_seqlen, "cu_seqlens": arrays["cu_seqlens"].clone()}
        return batch
