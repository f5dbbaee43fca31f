"""Batches on a CUDA device: rows are gathered into pinned buffers, copied on a side stream, widened on the device.

A token travels in its stored width: two bytes of a uint16 shard. The consumer's stream waits for the copy, never the
consumer; a buffer is filled again once the widening that read it is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from tokenloom.reader.feeding.feeds import Batch, sequence_lengths
from tokenloom.reader.feeding.timing import StepTimes
from tokenloom.reader.shards.assembly import IGNORED, BatchFormat, Block

_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # kernels for unsigned types beyond uint8 are few


@dataclass
class _Slot:
    """A pinned buffer for each array and its twin on the device."""

    host: dict[str, torch.Tensor]
    device: dict[str, torch.Tensor]
    copied: torch.cuda.Event
    used: list[torch.cuda.Event] = field(default_factory=list)  # the widening of each batch taken
    batches_left: int = 0


@dataclass
class _Made:
    """One batch of a slot, not widened yet."""

    slot: _Slot
    index: int
    ignored: torch.Tensor | None = None  # flat places of labels to leave out, pinned
    cu_seqlens: torch.Tensor | None = None
    max_seqlen: int = 0


class CudaFeed:
    """Feed for a CUDA device; see Feed.

    Args:
        form, batch_size: of the batches.
        chunk_batches: made at a time, at most.
        num_chunks: that may be on their way at once; each has buffers of its own.
        device: without an index it is the current one.
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
        with torch.cuda.stream(self._stream):  # so that their memory is given back after the copies into them
            device = {name: torch.empty_like(tensor, device=self._device) for name, tensor in host.items()}
        return _Slot(host, device, torch.cuda.Event())  # type: ignore[no-untyped-call]

    def make(self, block: Block, first: int, num_batches: int) -> list[_Made]:
        """See Feed."""
        with torch.cuda.device(self._device):  # the thread's own: pinned memory belongs to the current device
            return self._make(block, first, num_batches)

    def _make(self, block: Block, first: int, num_batches: int) -> list[_Made]:
        slot = self._free_slot()
        slot.batches_left = num_batches
        slot.copied.synchronize()  # the pinned buffer is free again
        num_rows = num_batches * self._batch_size
        end = first + num_rows
        with self._times.step("gather"):
            slot.host["tokens"].numpy().view(self._form.dtype)[:num_rows] = block.tokens(first, end)
        batches = [_Made(slot, index) for index in range(num_batches)]
        if self._form.needs_marks or block.has_padding:
            with self._times.step("pack"):
                for name in self._form.row_fields:
                    block.boundaries.write(name, first, end, slot.host[name].numpy()[:num_rows])
                for batch in batches:
                    self._add_boundaries(batch, block, first + batch.index * self._batch_size)
        with self._times.step("copy"):
            self._copy(slot, num_rows)
        return batches

    def _free_slot(self) -> _Slot:
        place = self._next % len(self._slots)
        self._next += 1
        if self._slots[place].batches_left:  # the consumer has not taken all of it: leave it to it
            self._slots[place] = self._make_slot(len(self._slots[place].host["tokens"]))
        return self._slots[place]

    def _add_boundaries(self, made: _Made, block: Block, first: int) -> None:
        ignored = block.boundaries.ignored_labels(first, first + self._batch_size)
        made.ignored = torch.from_numpy(ignored).pin_memory()
        if "cu_seqlens" in self._form.fields:
            cu_seqlens, made.max_seqlen = sequence_lengths(block, first, self._batch_size)
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
            buffer.record_stream(stream)  # it must outlive what reads it there
        rows = slice(made.index * self._batch_size, (made.index + 1) * self._batch_size)
        tokens = slot.device["tokens"][rows].to(torch.int64)
        if self._form.dtype.itemsize > 1:
            tokens &= 2 ** (8 * self._form.dtype.itemsize) - 1
        shifted = tokens[:, 1:] if self._form.labels == "shifted" else tokens[:, :-1]
        own = torch.contiguous_format  # of a batch of one row, contiguous() would give both the same memory
        batch: Batch = {
            "input_ids": tokens[:, :-1].clone(memory_format=own),
            "labels": shifted.clone(memory_format=own),
        }
        batch |= {name: x[rows].clone() for name, x in slot.device.items() if name != "tokens"}
        if made.ignored is not None:
            places = made.ignored.to(self._device, non_blocking=True)
            batch["labels"].view(-1).index_fill_(0, places, IGNORED)
        if made.cu_seqlens is not None:
            batch["cu_seqlens"] = made.cu_seqlens.to(self._device, non_blocking=True)
            batch["max_seqlen"] = made.max_seqlen
        slot.used.append(stream.record_event())
        slot.batches_left -= 1
        return batch
