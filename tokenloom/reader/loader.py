"""TokenLoader: one rank's batches of a dataset or a mixture, exactly, from any step, made ahead by a thread."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from tokenloom.errors import TokenloomError
from tokenloom.reader.arguments import whole
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.description import describe
from tokenloom.reader.feeding.feeds import Batch, make_feed
from tokenloom.reader.feeding.prefetch import Prefetcher
from tokenloom.reader.feeding.timing import LoaderStats, StepTimes, Waits, name_bottleneck
from tokenloom.reader.mixture import Mixture
from tokenloom.reader.producer import Producer, Steps, end_of
from tokenloom.reader.ranks import check_same_on_all_ranks, find_ranks
from tokenloom.reader.state import check_state, make_state, open_source
from tokenloom.reader.streams import make_stream

_CHUNK_BATCHES = 16
_CHUNK_BYTES = 2**23
_AHEAD_BATCHES = 32
_AHEAD_BYTES = 2**27


class TokenLoader:
    """Batches of this rank: {"input_ids", "labels"}, (batch_size, seq_len) int64, and the fields of the dataset.

    All ranks share one global stream of samples: rank r takes the positions g with g % world_size == r, so the
    stream does not depend on the number of ranks, and one number says where it is. `cu_seqlens` is (runs + 1,) int32
    over the flattened batch, `max_seqlen` a number.

    Args:
        source: a TokenDataset or a Mixture.
        batch_size: samples of a batch on this rank, at least 1.
        seed: of the order, in [0, 2**56).
        rank: data-parallel rank in [0, world_size), with world_size; None: see find_ranks.
        world_size: data-parallel ranks.
        mesh: a DeviceMesh instead of rank and world_size.
        device: where batches go; None for the CPU.
        order: "block": `lanes` runs of shards side by side, samples shuffled inside each shard; "full": all samples
            shuffled; "sequential". Each epoch has an order of its own.
        lanes: of "block", at least 1; None for min(64, number of shards).
        drop_last: leave out the last step of the last epoch if it is short, else pad it (labels -100) on all ranks.
        num_epochs: at least 1; None for an endless stream.
        prefetch: batches made ahead by a thread, which rests beside a consumer that never lets go of Python's lock;
            0: no thread, they are made when one is asked for, up to eight together; None: 32, fewer of more than 4 MiB.
        io_threads: threads that read cold files ahead; 0: none do. At least one opens coming shards.

    Raises:
        ValueError: an argument out of range, or no sample.
    """

    def __init__(
        self,
        source: TokenDataset | Mixture,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        device: str | int | torch.device | None = None,
        order: str = "block",
        lanes: int | None = None,
        drop_last: bool = True,
        num_epochs: int | None = None,
        prefetch: int | None = None,
        io_threads: int = 4,
    ) -> None:
        batch_size = whole("batch_size", batch_size, 1)
        self.source = source
        self.stream = make_stream(source, order, seed, lanes)
        self.device = torch.device("cpu" if device is None else device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device {device}: torch sees no CUDA device here")
        self.ranks = find_ranks(rank, world_size, mesh)
        self.steps = Steps(self.ranks, batch_size, end_of(self.stream.num_samples, num_epochs), drop_last)
        usual = max(4, min(_AHEAD_BATCHES, _AHEAD_BYTES // self._batch_bytes))
        self.prefetch = usual if prefetch is None else whole("prefetch", prefetch)
        self.steps.check_from(0)
        self._io_threads = whole("io_threads", io_threads)
        self._start, self._taken = 0, 0  # position of the stream, and steps since
        self._finishes = self.device.type != "cpu"
        self._checked_ranks = False
        self._times, self._waits = StepTimes(), Waits()
        self._producer: Producer | None = None
        self._prefetcher: Prefetcher[Any] | None = None
        self._ready: list[Any] = []  # made, and no longer the thread's

    def __repr__(self) -> str:
        rank = f"rank {self.ranks.rank} of {self.ranks.world_size}"
        return f"TokenLoader({self.source!r}, batch_size={self.steps.batch_size}, {rank}, at sample {self._position:,})"

    def __len__(self) -> int:
        """Return the batches of all epochs; TypeError if they have no end."""
        left = self.steps.left(0)
        if left is None:
            raise TypeError("an endless loader has no length: give num_epochs")
        return left

    def __iter__(self) -> TokenLoader:
        """Go on from where the loader is; raises TokenloomError if its last epoch is over."""
        if self.steps.left(self._position) == 0 and self._position > 0:
            raise TokenloomError(
                "the last epoch of this loader is over: make another, load a state, or use EvaluationPass, which "
                "starts again each time"
            )
        return self

    def __next__(self) -> Batch:
        begin = time.perf_counter()
        try:
            if not self._ready:
                self._ready = self._take()
            batch: Batch = self._ready.pop(0)
            if self._finishes:
                batch = self._feed.finish(batch)
            self._waits.add(begin, time.perf_counter())
        except BaseException:
            self.close()  # the next call makes the same batch again
            raise
        self._taken += 1
        return batch

    @property
    def _position(self) -> int:
        """Samples of the stream that all ranks have taken."""
        return self.steps.after(self._start, self._taken)

    def _take(self) -> list[Any]:
        """Return the next batches, in order; StopIteration at the end of the stream."""
        self._check_ranks()
        self.start()
        assert self._producer is not None  # just started
        made = self._prefetcher.take() if self._prefetcher else self._producer.make(_CHUNK_BATCHES)
        if not made:
            raise StopIteration
        return made

    def start(self) -> None:
        """Make batches ahead from now on, before the first is asked for."""
        if self._producer is not None and self._producer.is_mine:
            return
        self._ready = []  # in a child of a fork they are made again
        chunk_batches = self._chunk_batches()
        form, batch_size = self.stream.format, self.steps.batch_size
        self._feed = make_feed(form, batch_size, chunk_batches, self.prefetch, self.device, self._times)
        self._producer = Producer(
            self.stream, self.steps, self._feed, self._position, chunk_batches, self._io_threads, self._times
        )
        self._close_producer = weakref.finalize(self, self._producer.close)
        self._prefetcher = Prefetcher(self._producer.make, self.prefetch) if self.prefetch else None

    def _chunk_batches(self) -> int:
        return max(1, min(_CHUNK_BATCHES, (self.prefetch or _CHUNK_BATCHES) // 2, _CHUNK_BYTES // self._batch_bytes))

    @property
    def _batch_bytes(self) -> int:
        return self.steps.batch_size * self.stream.format.seq_len * 2 * 8  # inputs and labels, int64

    def _check_ranks(self) -> None:
        if not self._checked_ranks:
            steps = {"batch_size": self.steps.batch_size, "end": self.steps.end, "drop_last": self.steps.drop_last}
            check_same_on_all_ranks(
                self.ranks, json.dumps(self.state_dict() | steps, sort_keys=True), repr(self.source)
            )
            self._checked_ranks = True

    def close(self) -> None:
        """End the thread; the loader can go on from where it is, with a new one."""
        producer, prefetcher = self._producer, self._prefetcher
        self._producer, self._prefetcher, self._ready = None, None, []  # first: an interrupt may end the waiting below
        if prefetcher is not None:
            prefetcher.close()
        if producer is not None:
            self._close_producer()

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is, as JSON: the fingerprint of its stream, and the samples all ranks have taken."""
        return make_state(self.stream.fingerprint(), self._position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; batch size and world size may have changed.

        Raises TokenloomError if the state is one of another stream; both are named.
        """
        position = check_state(state, self.stream.fingerprint())
        self.close()
        self._start, self._taken = position, 0

    @classmethod
    def from_state(
        cls, store: str | Mapping[str, str], state: Mapping[str, Any], batch_size: int, **options: Any
    ) -> TokenLoader:
        """Open the version that a state names, and go on from there.

        Args:
            store: where its dataset lies; for a mixture, one store or {member: store}.
            state: of state_dict().
            batch_size: as in TokenLoader, and so are the options; order, seed and lanes come from the state, and
                `dataset` holds options of TokenDataset (fields, cache, ...).
        """
        source, choices = open_source(store, state, options.pop("dataset", {}))
        if doubled := choices.keys() & options:
            raise TypeError(
                f"{', '.join(sorted(doubled))}: from the state, so that the order is the same; leave it out"
            )
        loader = cls(source, batch_size, **options, **choices)
        loader.load_state_dict(state)
        return loader

    def stats(self) -> LoaderStats:
        """Return what has been done so far, and what holds it up."""
        waits, steps = self._waits, dict(self._times.seconds)
        elapsed = waits.elapsed or float("inf")
        idle_ratio = waits.total / elapsed
        tokens = waits.num_batches * self.steps.batch_size * self.stream.format.seq_len
        return LoaderStats(
            batches=waits.num_batches + (waits.first is not None),
            tokens_per_second=tokens / elapsed,
            first_batch=waits.first or 0.0,
            wait_mean=waits.total / max(1, waits.num_batches),
            wait_p50=waits.quantile(0.5),
            wait_p99=waits.quantile(0.99),
            idle_ratio=idle_ratio,
            steps=steps,
            memory=self.stream.memory() | {"batches ahead": self.prefetch * self._batch_bytes},
            bottleneck=name_bottleneck(waits.num_batches, idle_ratio, steps),
        )

    def describe(self) -> str:
        """Return the way of a batch as text: shards, order, packing, shapes and types at each step."""
        return describe(self.stream, self.steps, self.device, self.prefetch)
