"""The batches of one rank, of a dataset or a mixture: a loader, exact from any step; and a pass for validation."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Unpack

import numpy as np

from tokenloom.errors import TokenloomError, checked_int
from tokenloom.reader.batch import Batch, torch_device
from tokenloom.reader.dataset import DatasetOptions, OrderOptions, SharedOptions, TokenDataset
from tokenloom.reader.feed import CudaFeed, HostFeed
from tokenloom.reader.mixture import open_source
from tokenloom.reader.prefetch import LoaderStats, PhaseTimes, Prefetcher, Waits
from tokenloom.reader.producer import Made, Producer, block_bytes
from tokenloom.reader.streams.ranks import Steps, compare_ranks, find_ranks, ranks_text
from tokenloom.reader.streams.stream import Consumed, LoaderState, SampleSource, Stream, check_state, make_state
from tokenloom.wording import counted

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from tokenloom.reader.trace import Trace


_CHUNK_BATCHES, _CHUNK_BYTES = 16, 2**23
_AHEAD_BATCHES, _AHEAD_BYTES = 32, 2**27


class ResumeOptions(SharedOptions, total=False):
    """The keyword arguments of TokenLoader.from_state."""

    device: str | int | torch.device | None
    prefetch: int | None
    io_threads: int
    compare_ranks: float | None


class LoaderOptions(OrderOptions, ResumeOptions, total=False):
    """The keyword arguments of TokenLoader."""


class TokenLoader:
    """The batches of this rank: {"input_ids", "labels"}, (batch_size, seq_len) int64, and the fields of the dataset.

    All ranks share one global stream of samples. Rank r takes the positions g with g % world_size == r, so the stream
    does not depend on the number of ranks, and one number says where a training run is. `cu_seqlens` is
    (num_runs + 1,) int32 over the flattened batch, `max_seqlen` an int. Threads may share a loader: each batch goes to
    one of them.

    Args:
        source: a TokenDataset or a Mixture.
        batch_size: samples in a batch on this rank, at least 1.
        seed: the seed of the order, in [0, 2**56).
        rank: the data-parallel rank, in [0, world_size), with world_size; None to find it as find_ranks does.
        world_size: the number of data-parallel ranks.
        mesh: a DeviceMesh in place of rank and world_size: with the dimension "dp" or "batch", or "dp_replicate" with
            "dp_shard", or "replicate" with "shard"; or of one dimension. A part of a mesh counts as the whole.
        dims: the names of the data-parallel dimensions of the mesh, where they are others.
        device: where batches go; None for the CPU, "numpy" for numpy arrays, without torch.
        order: "block": `lanes` runs of shards side by side, samples shuffled inside each shard; "full": all samples
            shuffled; "sequential". Each epoch has its own order.
        lanes: the number of runs in the order "block", at least 1; None for min(64, number of shards).
        drop_last: whether to drop the last step of the last epoch if it is short; else it is padded (labels -100) on
            all ranks.
        num_epochs: at least 1; None for an endless stream.
        prefetch: how many batches a thread makes ahead. The thread rests while the next batch is requested at once.
            0: no thread; up to eight batches are made together when one is requested. None: 32, fewer if a batch
            is larger than 4 MiB.
        io_threads: how many threads read files ahead of need; 0 for none. At least one opens shards ahead, and plans
            their samples.
        compare_ranks: before the first batch, compare through the store of torch's default process group what its ranks
            read, and wait so many seconds for a loader of each data rank; None not to. All ranks take the first batches
            of several loaders in the same order.

    Attributes:
        source: as given.
        ranks: the DataRank: the rank, the world size, and where both come from.
        prefetch: how many batches a thread makes ahead.

    Raises:
        ValueError: an argument is out of range, or there are no samples.
    """

    def __init__(
        self,
        source: SampleSource,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        dims: Sequence[str] | None = None,
        device: str | int | torch.device | None = None,
        order: str = "block",
        lanes: int | None = None,
        drop_last: bool = True,
        num_epochs: int | None = None,
        prefetch: int | None = None,
        io_threads: int = 8,
        compare_ranks: float | None = 600.0,
    ) -> None:
        batch_size = checked_int("batch_size", batch_size, 1)
        self.source = source
        self.stream = Stream(source, order, seed, lanes)
        self.device = torch_device(device)
        self.ranks = find_ranks(rank, world_size, mesh, dims)
        num_samples = self.stream.num_samples
        self.steps = Steps(self.ranks, batch_size, num_samples, num_epochs, drop_last)
        if num_samples is not None and self.steps.samples > num_samples != self.steps.end:
            warnings.warn(
                f"a step of all ranks takes {counted(self.steps.samples, 'sample')}, and there are {num_samples:,}: it "
                "repeats some of them; use a smaller batch_size",
                stacklevel=2,
            )
        self._batch_bytes = batch_size * self.stream.format.seq_len * 2 * 8  # inputs and labels, int64
        default = max(4, min(_AHEAD_BATCHES, _AHEAD_BYTES // self._batch_bytes))
        self.prefetch = default if prefetch is None else checked_int("prefetch", prefetch)
        most = min(_CHUNK_BATCHES, (self.prefetch or _CHUNK_BATCHES) // 2, _CHUNK_BYTES // self._batch_bytes)
        self._chunk_batches = max(1, most)  # batches that are made at a time
        self._io_threads = checked_int("io_threads", io_threads)
        if compare_ranks is not None and not compare_ranks > 0:
            raise ValueError(f"compare_ranks must be a positive number of seconds, or None, not {compare_ranks}")
        is_alone = self.ranks.origin == "arguments" and self.ranks.world_size == 1
        self._compare_ranks = None if is_alone else compare_ranks
        self._position = 0  # how many samples of the stream all ranks together have taken
        self._finishes = self.device is not None and self.device.type != "cpu"
        self._times, self._waits = PhaseTimes(), Waits()
        self._producer: Producer | None = None
        self._prefetcher: Prefetcher[Made] | None = None
        self._feed: HostFeed | CudaFeed | None = None
        self._ready: list[Made] = []  # batches taken from the thread
        # Reentrant: a handler of a signal may close the loader, or save its state, in the middle of `__next__`.
        self._lock = threading.RLock()
        _LOADERS.add(self)

    def __repr__(self) -> str:
        rank = f"rank {self.ranks.rank} of {self.ranks.world_size}"
        return f"TokenLoader({self.source!r}, batch_size={self.steps.batch_size}, {rank}, at sample {self._position:,})"

    def __len__(self) -> int:
        """Return the number of batches in all epochs; raise TypeError if the loader is endless."""
        left = self.steps.left(0)
        if left is None:
            raise TypeError("an endless loader has no length: pass num_epochs")
        return left

    def __iter__(self) -> TokenLoader:
        """Continue from where the loader is; raise TokenloomError if its last epoch is over."""
        if self.steps.left(self._position) == 0 and self._position > 0:
            raise TokenloomError(
                "the last epoch of this loader is over: make another loader, load a state, or use EvaluationPass, "
                "which starts from the beginning each time"
            )
        return self

    def __next__(self) -> Batch:
        with self._lock:
            begin = time.perf_counter()
            try:
                if not self._ready:
                    if self._compare_ranks is not None:
                        compare_ranks(self.ranks, self._summary, self._compare_ranks)
                        self._compare_ranks = None  # once is enough
                    self.start()
                    assert self._producer is not None  # just started
                    take = self._prefetcher.take if self._prefetcher else partial(self._producer.make, _CHUNK_BATCHES)
                    self._ready = take()
                    if not self._ready:
                        raise StopIteration
                made: Made = self._ready.pop(0)
                batch: Batch = self._feed.finish(made) if self._feed is not None and self._finishes else made
                self._waits.add(begin, time.perf_counter())
            except BaseException:
                self.close()  # so that the next call makes the same batch again
                raise
            after = self._position + self.steps.samples
            self._position = after if self.steps.end is None else min(after, self.steps.end)  # a padded step ends there
            return batch

    def start(self) -> None:
        """Begin to make batches ahead, before the first is requested."""
        with self._lock:
            if self._producer is not None and self._producer.pid == os.getpid():
                return
            self._ready = []  # a forked child makes them again
            form, batch_size, chunk_batches = self.stream.format, self.steps.batch_size, self._chunk_batches
            if self.device is not None and self.device.type == "cuda":
                self._feed = CudaFeed(form, batch_size, self.device, self._times)
            else:
                num_chunks = -(-self.prefetch // chunk_batches) + 3  # and one being made, one taken and one in use
                self._feed = HostFeed(form, batch_size, chunk_batches, num_chunks, self.device, self._times)
            producer = Producer(
                self.stream, self.steps, self._feed, self._position, chunk_batches, self._io_threads, self._times
            )
            # Before the producer is set: an interrupt may come in between, and `close` needs both.
            self._abandon_producer = weakref.finalize(self, producer.abandon)
            self._producer = producer
            self._prefetcher = Prefetcher(self._producer.make, self.prefetch) if self.prefetch else None

    def _summary(self) -> tuple[str, str]:
        """Say what the loader reads, which must be the same on all ranks, and where it reads it."""
        steps = {"batch_size": self.steps.batch_size, "end": self.steps.end, "drop_last": self.steps.drop_last}
        return json.dumps({**self.state_dict(), **steps}, sort_keys=True), repr(self.source)

    def close(self) -> None:
        """End the thread; the next batch continues from where the loader is, with a new thread."""
        with self._lock:
            producer, prefetcher = self._producer, self._prefetcher
            self._producer, self._prefetcher, self._ready = None, None, []  # now: an interrupt may end the wait below
            try:
                if prefetcher is not None:
                    prefetcher.close()
            finally:
                if producer is not None:
                    self._abandon_producer.detach()
                    producer.close()

    def state_dict(self) -> LoaderState:
        """Return where the loader is, as JSON: its stream's fingerprint, and the number of samples all ranks took."""
        return make_state(self.stream.fingerprint(), self._position)

    def consumed(self, samples: int | None = None) -> dict[str, Consumed]:
        """Count what all ranks together read of each member: {name: (samples, tokens, epochs, is_exact)}.

        Tokens are exact for whole epochs, else estimated by the mean of the member's samples. A dataset alone has its
        own name.

        Args:
            samples: of the stream, from 0; None for those before the loader's position.
        """
        return self.stream.consumed(self._position if samples is None else checked_int("samples", samples))

    def load_state_dict(self, state: Mapping[str, object], *, amend: bool = False) -> None:
        """Continue from a state; the batch size and the world size may differ.

        Args:
            state: what state_dict() returned.
            amend: whether a mixture may differ from the state in what comes after its samples: later weights, members.

        Raises TokenloomError if the state belongs to a different stream; the message names the differences.
        """
        position = check_state(state, self.stream.fingerprint(), amend=amend)
        with self._lock:
            self.close()
            self._position = position

    @classmethod
    def from_state(
        cls,
        store: str | Mapping[str, str],
        state: Mapping[str, object],
        batch_size: int,
        *,
        dataset: DatasetOptions | None = None,
        **options: Unpack[ResumeOptions],
    ) -> TokenLoader:
        """Open the version that a state names, and continue from there.

        Args:
            store: the store of the dataset; for a mixture, one store or {member: store}.
            state: what state_dict() returned.
            batch_size: as in TokenLoader.
            dataset: options of TokenDataset (fields, cache, ...).
            options: those of TokenLoader, except order, seed and lanes, which the state determines.
        """
        source, order = open_source(store, state, dataset or {})
        loader = cls(source, batch_size, **options, **order)
        loader.load_state_dict(state)
        return loader

    def trace(self, step: int, chars: int = 300) -> Trace:
        """Return the documents of this rank's batch in a step, as JSON; docs/guides/trace.md describes the fields.

        Steps count from 0 at the start of the stream, with this loader's batch size and number of ranks, wherever the
        loader is now. A padded batch has fewer samples.

        Args:
            step: at least 0.
            chars: the text of each document is cut to this many characters; 0 for no text, and then no tokenizer.

        Raises IndexError if the step is past the last epoch; StoreError, FormatError as TokenDataset.trace.
        """
        from tokenloom.reader.trace import step_position, trace_step  # training does not need it

        position = step_position(self.steps, checked_int("step", step))
        ranks = [self.ranks.rank]
        return {"samples": trace_step(self.stream, self.steps, position, ranks, checked_int("chars", chars))}

    def batch_at(self, step: int, rows: range | None = None, *, numpy: bool = False) -> Batch:
        """Return rows of the global batch of a step, wherever the loader is now, and without moving it.

        Steps count from 0 at the start of the stream. Row i of the global batch, of batch_size * world_size rows, is
        the sample at position step * batch_size * world_size + i of the stream. Nothing is made ahead.

        Args:
            step: at least 0.
            rows: of the global batch, such as range(0, 8), or range(3, 8, 2) for rows 3, 5 and 7; None for those that
                this rank gets in the step.
            numpy: return numpy arrays in place of tensors, as a loader with device="numpy" does.

        Raises:
            IndexError: the step is past the last epoch; there are no rows, they descend, or are outside of the batch.
        """
        from tokenloom.reader.trace import step_position  # training does not need it

        begin = step_position(self.steps, checked_int("step", step))
        if rows is None:
            rows = range((self.ranks.rank - begin) % self.ranks.world_size, self.steps.samples, self.ranks.world_size)
        if not rows or rows.step < 0 or rows[0] < 0 or rows[-1] >= self.steps.samples:
            raise IndexError(f"rows must be an ascending range of [0, {self.steps.samples:,}), not {rows}")
        positions = begin + np.array(rows, np.int64)
        if self.steps.end is not None:
            positions = positions[positions < self.steps.end]  # the others are padding
        feed = HostFeed(self.stream.format, len(rows), 1, 1, None if numpy else self.device, PhaseTimes())
        (batch,) = feed.make(self.stream.window(positions, len(rows)), 0, 1)
        return feed.finish(batch)

    def stats(self) -> LoaderStats:
        """Sum up what the loader has done so far, and name what limits it."""
        batch_tokens = self.steps.batch_size * self.stream.format.seq_len
        memory = {"mapped": self.stream.mapped_bytes(), "batches ahead": self.prefetch * self._batch_bytes}
        return self._waits.stats(self._times, batch_tokens, memory)

    def describe(self) -> str:
        """Return how a batch is made, as text: shards, packing, order, and the shapes and types on the way."""
        form, steps, ranks = self.stream.format, self.steps, self.ranks
        made = f"{self.prefetch} made ahead by a thread" if self.prefetch else "up to eight made when one is requested"
        fields = "".join(f", {name}" for name in form.fields)
        peers = f"; {ranks_text(ranks.peers)} get the same rows" if len(ranks.peers) > 1 else ""
        lines = [
            *self.stream.describe(),
            f"ranks     data rank {ranks.rank} of {ranks.world_size} (from {ranks.origin}){peers}: "
            f"positions g with g % {ranks.world_size} == {ranks.rank}",
            f"rows      ({steps.batch_size}, {form.row_tokens}) {form.dtype.name}, copied from the maps; read ahead in "
            f"blocks of {block_bytes(self.stream) // 1024:,} KiB",
            f"batch     input_ids, labels ({form.labels}) ({steps.batch_size}, {form.seq_len}) int64{fields} on "
            f"{self.device or 'the CPU, as numpy arrays'}; {made}",
        ]
        return "\n".join(lines)


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
        self, dataset: TokenDataset, batch_size: int, source: str | None = None, **options: Unpack[LoaderOptions]
    ) -> None:
        self._dataset, self._batch_size = dataset if source is None else dataset.of_source(source), batch_size
        self._options: LoaderOptions = {"order": "sequential", "num_epochs": 1, "drop_last": False, **options}
        self._num_batches = len(self._make())

    def _make(self) -> TokenLoader:
        return TokenLoader(self._dataset, self._batch_size, **self._options)

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Batch]:
        with closing(self._make()) as loader:
            for batch in loader:
                self._options["compare_ranks"] = None  # once is enough: a pass has the same stream each time
                yield batch


_LOADERS: weakref.WeakSet[TokenLoader] = weakref.WeakSet()
#: What loaders held when this process was forked: torch ends a child that frees a CUDA event of its parent.
_HELD_BY_PARENT: list[object] = []


def _leave_to_parent() -> None:
    """Replace the locks in a forked child, which threads of its parent may hold, and free nothing of the parent's."""
    for loader in _LOADERS:
        loader._lock = threading.RLock()
        _HELD_BY_PARENT.append((list(loader._ready), loader._prefetcher, loader._feed))


os.register_at_fork(after_in_child=_leave_to_parent)
