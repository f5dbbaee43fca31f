"""Open the stream of samples that the arguments of a loader, or its state in a file, determine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenloom.cli.given_state import check_same_version, read_state, samples_taken, stores_of
from tokenloom.cli.loader_arguments import LoaderArguments
from tokenloom.console import print_status
from tokenloom.errors import SpecError, TokenloomError
from tokenloom.storage.versions.published import check_split
from tokenloom.storage.versions.references import parse_reference, resolve

if TYPE_CHECKING:  # a command imports the reader when it runs
    from tokenloom.reader.dataset import TokenDataset
    from tokenloom.reader.mixture import Mixture
    from tokenloom.reader.order.steps import Steps
    from tokenloom.reader.state import LoaderState
    from tokenloom.reader.streams import OrderOptions, Stream

_OF_STATE = ("split", "seq_len", "packing", "order", "seed", "lanes")  # what a state determines


class NoSamples(SpecError):
    """The split has no sample for the packing and the length that the arguments name."""


@dataclass(frozen=True)
class OpenedStream:
    """A stream; its first position to count steps from, 0 without a state; and its datasets by member, or None."""

    stream: Stream
    taken: int
    datasets: dict[str | None, TokenDataset]


@contextmanager
def as_usage_errors() -> Iterator[None]:
    """Raise SpecError for an argument that the reader refuses."""
    try:
        yield
    except (ValueError, TypeError, IndexError) as error:
        if isinstance(error, TokenloomError):
            raise
        raise SpecError(str(error)) from error


def open_loaded(reference: str | None, arguments: LoaderArguments) -> OpenedStream:
    """Open the stream that the arguments or the state determine.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION; None if the state and --store say what to open.
        arguments: of the loader.

    Raises:
        SpecError: an argument is missing, contradicts the state, or is out of range.
        NoSamples: the split has none.
        StoreError: there is no such version or split.
    """
    from tokenloom.reader.dataset import TokenDataset
    from tokenloom.reader.sample_source import make_stream

    state = None if arguments.state is None else read_state(arguments.state)
    source, order = _of_arguments(reference, arguments) if state is None else _of_state(reference, arguments, state)
    with as_usage_errors():
        stream = make_stream(source, order["order"], order["seed"], order["lanes"])
    taken = 0 if state is None else samples_taken(stream, state, str(arguments.state))
    datasets: dict[str | None, TokenDataset] = (
        {None: source} if isinstance(source, TokenDataset) else dict(source.datasets.items())
    )
    return OpenedStream(stream, taken, datasets)


def make_steps(arguments: LoaderArguments, num_samples: int | None = None) -> Steps:
    """Return the steps of a rank; raise SpecError if an argument is missing or out of range.

    Args:
        arguments: of the loader; without a rank, the steps of rank 0.
        num_samples: of an epoch; only a number of epochs needs it.
    """
    from tokenloom.reader.order.steps import Steps, stream_end
    from tokenloom.reader.ranks import find_ranks

    with as_usage_errors():
        ranks = find_ranks(arguments.rank or 0, arguments.world_size or 1)
        end = stream_end(num_samples, arguments.num_epochs)
        return Steps(ranks, _required(arguments.batch_size, "--batch-size"), end, drop_last=not arguments.pad_last)


def open_dataset(reference: str, split: str, seq_len: int, packing: str) -> TokenDataset:
    """Open a split, and say so if its samples must be counted first; raise SpecError for a bad argument."""
    from tokenloom.reader.dataset import TokenDataset

    with as_usage_errors():
        _announce_counting(reference, split, packing, seq_len)
        return TokenDataset(reference, split, seq_len, packing=packing)


def _announce_counting(reference: str, split: str, packing: str, seq_len: int) -> None:
    """Say so if opening a split reads all of its shards; raise ValueError or StoreError as opening would."""
    from tokenloom.storage.cache.cache_settings import default_cache_folder
    from tokenloom.storage.packing.plans import check_packing, sample_key
    from tokenloom.storage.packing.sample_counts import has_counts

    check_packing(packing, seq_len)
    if packing == "concat":
        return
    store, manifest = resolve(parse_reference(reference))
    check_split(reference, manifest, split)
    if not has_counts(manifest, split, packing, seq_len, default_cache_folder()):
        print_status(
            f"{store.root}@{manifest.version}: counting the samples of {split} for {sample_key(packing, seq_len)} "
            "first, because the manifest does not list them: this reads the document offsets of every shard. `packs` "
            f"in the spec or `tokenloom pack REF --seq-len {seq_len} --packing {packing}` counts them ahead of time"
        )


def _of_arguments(reference: str | None, arguments: LoaderArguments) -> tuple[TokenDataset | Mixture, OrderOptions]:
    """Return the source and its order."""
    if reference is None:
        raise SpecError("REF is required unless --state and --store are given")
    if arguments.store:
        raise SpecError("--store: only --state needs it; omit it")
    seq_len = _required(arguments.seq_len, "--seq-len")
    data = open_dataset(reference, arguments.split or "train", seq_len, arguments.packing or "concat")
    if not len(data):
        raise NoSamples(data.why_empty())
    return data, {"order": arguments.order or "block", "seed": arguments.seed or 0, "lanes": arguments.lanes}


def _of_state(
    reference: str | None, arguments: LoaderArguments, state: LoaderState
) -> tuple[TokenDataset | Mixture, OrderOptions]:
    """Return the source and its order."""
    from tokenloom.reader.resume import open_source
    from tokenloom.reader.state import is_mixture

    for name in _OF_STATE:
        if vars(arguments)[name] is not None:
            raise SpecError(f"--{name.replace('_', '-')}: --state determines it; omit it")
    members = state["stream"]["members"] if is_mixture(state["stream"]) else {}
    store = stores_of(reference, arguments.store, list(members))
    if reference is not None and not members:
        check_same_version(reference, str(arguments.state), state)
    streams: dict[str, Any] = {**members} if members else {"": state["stream"]}
    for name, stream in streams.items():
        place = store if isinstance(store, str) else store[name]
        named = f"{place}/{stream['dataset']}@{stream['version']}"
        with as_usage_errors():
            _announce_counting(named, stream["split"], stream["packing"], stream["seq_len"])
    with as_usage_errors():
        return open_source(store, state, {})


def _required(value: int | None, name: str) -> int:
    if value is None:
        raise SpecError(f"{name} is required")
    return value
