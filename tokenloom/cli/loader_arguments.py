"""The arguments of a loader on the command line, and the stream of samples that they or a state in a file determine.

The reader is imported only when a stream is opened.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tokenloom.cli.arguments import Argument, count, option, positive
from tokenloom.errors import SpecError, TokenloomError
from tokenloom.storage.packing.packings import PACKINGS
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.storage.versions.references import parse_reference

if TYPE_CHECKING:
    from tokenloom.reader.dataset import TokenDataset
    from tokenloom.reader.streams.ranks import Steps
    from tokenloom.reader.streams.stream import Stream

_OF_STATE = ("split", "seq_len", "packing", "order", "seed", "lanes")  # a state determines these


@dataclass(frozen=True, kw_only=True)
class LoaderArguments:
    """The arguments of a dataset and its loader; None for what is not given.

    Args:
        seq_len: tokens per sample
        batch_size: samples in a batch on one rank
        world_size: number of data-parallel ranks (default: 1)
        seed: seed of the loader's order (default: 0)
        order: the order of samples: block, full or sequential (default: block)
        lanes: of the order block: how many runs of shards are read side by side (default: min(64, number of shards))
        state: a file with the JSON of loader.state_dict(), in place of split, seq-len, packing, order, seed and lanes
        store: with --state: the store of its dataset, or of a member of its mixture (default: the store of REF)
    """

    seq_len: Annotated[int | None, Argument("T", positive)] = None
    packing: Annotated[
        str | None,
        Argument("NAME", help=f"how tokens become samples: {', '.join(PACKINGS)} (default: concat)"),
    ] = None
    batch_size: Annotated[int | None, Argument("B", positive)] = None
    world_size: Annotated[int | None, Argument("W", positive)] = None
    seed: Annotated[int | None, Argument("S", count)] = None
    order: Annotated[str | None, Argument("NAME")] = None
    lanes: Annotated[int | None, Argument("N", positive)] = None
    state: Annotated[str | None, Argument("FILE")] = None
    store: Annotated[Sequence[str], Argument("[MEMBER=]STORE")] = ()

    @property
    def given(self) -> list[str]:
        """The names of those that are given."""
        return [name for name, value in vars(self).items() if value is not None and value is not False and value != []]


@dataclass(frozen=True, kw_only=True)
class TracedLoader(LoaderArguments):
    """The arguments of the loader whose batches `trace` shows.

    Args:
        split: the split that it reads (default: train)
        rank: show only this rank's batch, in [0, world size) (default: all ranks)
        num_epochs: where the stream ends (default: endless)
        pad_last: the loader has drop_last=False: with --num-epochs, its last step may be short
    """

    split: str | None = None
    rank: Annotated[int | None, Argument("R", count)] = None
    num_epochs: Annotated[int | None, Argument("N", positive)] = None
    pad_last: bool = False


@contextmanager
def as_usage_errors() -> Iterator[None]:
    """Raise SpecError for an argument that the reader refuses."""
    try:
        yield
    except (ValueError, TypeError, IndexError) as error:
        if isinstance(error, TokenloomError):
            raise
        raise SpecError(str(error)) from error


def open_stream(reference: str | None, arguments: TracedLoader) -> tuple[Stream, int]:
    """Open the stream that the arguments or the state determine.

    Args:
        reference: STORE/DATASET@TAG_OR_VERSION; None if the state and --store say what to open.
        arguments: the arguments of the loader.

    Returns:
        The stream, and how many of its samples the state has taken, 0 without a state.

    Raises:
        SpecError: an argument is missing, contradicts the state, or is out of range; the split has no samples.
        StoreError: the version or split does not exist.
    """
    from tokenloom.reader.mixture import open_source
    from tokenloom.reader.streams.stream import Stream, check_state, decode_state

    if arguments.state is None:
        if arguments.store:
            raise SpecError("--store: only --state needs it; omit it")
        data = open_dataset(reference, arguments)
        if not len(data):
            raise SpecError(data.why_empty())
        with as_usage_errors():
            return Stream(data, arguments.order or "block", arguments.seed or 0, arguments.lanes), 0
    for name in _OF_STATE:
        if name in arguments.given:
            raise SpecError(f"{option(name)}: --state determines it; omit it")
    with _naming_state(arguments.state):
        state = decode_state(json.loads(read_regular(arguments.state)))
    stores = _stores_of(reference, arguments.store, state["stream"].get("members", {}))
    with as_usage_errors():
        source, order = open_source(stores, state, {})
        stream = Stream(source, **order)
    with _naming_state(arguments.state):
        return stream, check_state(state, stream.fingerprint())


def make_steps(arguments: TracedLoader, num_samples: int | None = None) -> Steps:
    """Return the steps of a rank; raise SpecError if an argument is missing or out of range.

    Args:
        arguments: the arguments of the loader; without a rank, the steps are those of rank 0.
        num_samples: the samples of an epoch; only a number of epochs needs it.
    """
    from tokenloom.reader.streams.ranks import Steps, find_ranks

    with as_usage_errors():
        ranks = find_ranks(arguments.rank or 0, arguments.world_size or 1)
        batch_size, drop_last = _required(arguments.batch_size, "--batch-size"), not arguments.pad_last
        return Steps(ranks, batch_size, num_samples, arguments.num_epochs, drop_last)


def open_dataset(reference: str | None, arguments: TracedLoader) -> TokenDataset:
    """Open the split that the arguments name; raise SpecError if one of them is missing or out of range."""
    from tokenloom.reader.dataset import TokenDataset

    if reference is None:
        raise SpecError("REF is required unless --state and --store are given")
    seq_len = _required(arguments.seq_len, "--seq-len")
    with as_usage_errors():
        return TokenDataset(reference, arguments.split or "train", seq_len, packing=arguments.packing or "concat")


def _stores_of(reference: str | None, given: Sequence[str], members: Collection[str]) -> str | dict[str, str]:
    """Return the store of a state's dataset, or that of each member of its mixture; --store wins over that of REF."""
    stores = {"": parse_reference(reference).store} if reference is not None else {}
    for text in given:
        member, _, store = text.partition("=")
        stores |= {member: store} if member in members else {"": text}
    if "" not in stores and (not members or (missing := sorted(set(members) - stores.keys()))):
        raise SpecError(f"--store: give the store of {f'member {missing[0]}' if members else 'the dataset, or REF'}")
    return {name: stores.get(name) or stores[""] for name in members} or stores[""]


@contextmanager
def _naming_state(path: str) -> Iterator[None]:
    """Raise SpecError with the file if it has no state, or that of another stream."""
    try:
        yield
    except TokenloomError as error:
        raise SpecError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not JSON; write json.dumps(loader.state_dict()) into it") from error


def _required(value: int | None, name: str) -> int:
    if value is None:
        raise SpecError(f"{name} is required")
    return value
