"""Batches on a CUDA device: rows are gathered in pinned buffers, copied on a side stream, and widened on the device.

A token travels in its stored type: two bytes for a uint16 shard. The consumer's stream waits for the copy; the consumer
never does. A buffer is refilled once the widening that reads it is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from tokenloom.reader.feeding.feed import Batch, sequence_lengths
from tokenloom.reader.feeding.timing import PhaseTimes
from tokenloom.reader.shards.batch_format import IGNORED, BatchFormat
from tokenloom.reader.shards.window import RowWindow

_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # torch has few kernels for unsigned types other than uint8


@dataclass
class _Slot:
    """A pinned buffer for each array, and a buffer on the device."""

    host: dict[str, torch.Tensor]
    device: dict[str, torch.Tensor]
    copied: torch.cuda.Event
    used: list[torch.cuda.Event] = field(default_factory=list)  # the widening of each batch that was taken
    batches_left: int = 0


@dataclass
class _Made:
    """A batch of a slot that is not widened yet."""

    slot: _Slot
    index: int
    ignored: torch.Tensor | None = None  # positions of ignored labels in the flattened batch, pinned
    cu_seqlens: torch.Tensor | None = None
    max_seqlen: int = 0


class CudaFeed:
    """Makes batches on a CUDA device; see Feed.

    Args:
        form: what a batch holds.
        batch_size: B.
        chunk_batches: how many batches are made at a time, at most.
        num_chunks: how many chunks may be under way at once; each has its own buffers.
        device: the current device if it has no index.
        times: adds up the seconds of each phase.
    """

    def __init__(
        self,
        form: BatchFormat,
        batch_size: int,
        chunk_batches: int,
        num_chunks: int,
        device: torch.device,
        times: PhaseTimes,
    ) -> None:
        device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
        self._form, self._batch_size, self._device, self._times = form, batch_size, device, times
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            self._slots = [self._make_slot(batch_size * chunk_batches) for _ in range(num_chunks)]
        self._next = 0

    def _make_slot(self, num_rows: int) -> _Slot:
        shapes = {"tokens": ((num_rows, self._form.row_tokens), _SIGNED[self._form.dtype.itemsize])}
        for name in self._form.row_fields:
            shapes[name] = ((num_rows, self._form.seq_len), torch.int32)
        host = {name: torch.empty(shape, dtype=dtype, pin_memory=True) for name, (shape, dtype) in shapes.items()}
        with torch.cuda.stream(self._stream):  # so that their memory is freed only after the copies into them
            device = {name: torch.empty_like(tensor, device=self._device) for name, tensor in host.items()}
        return _Slot(host, device, torch.cuda.Event())  # type: ignore[no-untyped-call]

    def make(self, window: RowWindow, first: int, num_batches: int) -> list[_Made]:
        """See Feed."""
        with torch.cuda.device(self._device):  # set in each thread: pinned memory belongs to the current device
            return self._make(window, first, num_batches)

    def _make(self, window: RowWindow, first: int, num_batches: int) -> list[_Made]:
        slot = self._free_slot()
        slot.batches_left = num_batches
        slot.copied.synchronize()  # the pinned buffer is free again
        num_rows = num_batches * self._batch_size
        end = first + num_rows
        with self._times.phase("gather"):
            slot.host["tokens"].numpy().view(self._form.dtype)[:num_rows] = window.tokens(first, end)
        batches = [_Made(slot, index) for index in range(num_batches)]
        if self._form.needs_marks or window.has_padding:
            with self._times.phase("pack"):
                for name in self._form.row_fields:
                    window.boundaries.write(name, first, end, slot.host[name].numpy()[:num_rows])
                for batch in batches:
                    self._add_boundaries(batch, window, first + batch.index * self._batch_size)
        with self._times.phase("copy"):
            self._copy(slot, num_rows)
        return batches

    def _free_slot(self) -> _Slot:
        place = self._next % len(self._slots)
        self._next += 1
        if self._slots[place].batches_left:  # the consumer still needs it: replace it
            self._slots[place] = self._make_slot(len(self._slots[place].host["tokens"]))
        return self._slots[place]

    def _add_boundaries(self, made: _Made, window: RowWindow, first: int) -> None:
        ignored = window.boundaries.ignored_labels(first, first + self._batch_size)
        made.ignored = torch.from_numpy(ignored).pin_memory()
        if "cu_seqlens" in self._form.fields:
            cu_seqlens, made.max_seqlen = sequence_lengths(window, first, self._batch_size)
            made.cu_seqlens = torch.from_numpy(cu_seqlens).pin_memory()

    def _copy(self, slot: _Slot, rows: int) -> None:
        with torch.cuda.stream(self._stream):
            for event in slot.used:
                self._stream.wait_event(event)
            slot.used.clear()
            for name, host in slot.host.items():
                slot.device[name][:rows].copy_(host[:rows], non_blocking=True)
            slot.copied.record(self._stream)

    def finish(self, made: _Made) -> Batch:
        """Widen one batch on the consumer's stream; see Feed."""
        slot = made.slot
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(slot.copied)
        for buffer in slot.device.values():
            buffer.record_stream(stream)  # it must outlive the work on that stream
        rows = slice(made.index * self._batch_size, (made.index + 1) * self._batch_size)
        tokens = slot.device["tokens"][rows].to(torch.int64)
        if self._form.dtype.itemsize > 1:
            tokens &= 2 ** (8 * self._form.dtype.itemsize) - 1
        shifted = tokens[:, 1:] if self._form.labels == "shifted" else tokens[:, :-1]
        own = torch.contiguous_format  # for a batch of one row, contiguous() would return the same memory twice
        batch: Batch = {
            "input_ids": tokens[:, :-1].clone(memory_format=own),
            "labels": shifted.clone(memory_format=own),
        }
        for name in self._form.row_fields:
            batch[name] = slot.device[name][rows].clone()
        if made.ignored is not None:
            places = made.ignored.to(self._device, non_blocking=True)
            batch["labels"].view(-1).index_fill_(0, places, IGNORED)
        if made.cu_seqlens is not None:
            batch["cu_seqlens"] = made.cu_seqlens.to(self._device, non_blocking=True)
            batch["max_seqlen"] = made.max_seqlen
        slot.used.append(stream.record_event())
        slot.batches_left -= 1
        return batch
