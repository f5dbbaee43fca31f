"""The arguments of a loader on the command line; opened_stream.py opens what they name."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from tokenloom.cli.argument_types import count, positive


@dataclass(frozen=True)
class LoaderArguments:
    """The arguments of a dataset and its loader, as given; None for what is not given."""

    seq_len: int | None
    packing: str | None
    order: str | None
    seed: int | None
    lanes: int | None
    batch_size: int | None
    world_size: int | None
    state: str | None
    store: list[str]
    split: str | None = None  # this and the next only of trace
    rank: int | None = None
    num_epochs: int | None = None
    pad_last: bool | None = None

    @property
    def is_given(self) -> bool:
        """Whether any of them is given."""
        return any(value not in (None, []) for value in vars(self).values())


def add_loader_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the arguments of a loader, and return their group; their values are those of LoaderArguments."""
    group = parser.add_argument_group("the loader")
    group.add_argument("--seq-len", type=positive, metavar="T", help="tokens per sample")
    group.add_argument("--packing", help="concat (default), document, document_padded or best_fit")
    group.add_argument("--batch-size", type=positive, metavar="B", help="samples in a batch on one rank")
    group.add_argument("--world-size", type=positive, metavar="W", help="number of data-parallel ranks (default: 1)")
    group.add_argument("--seed", type=count, metavar="S", help="seed of the loader's order (default: 0)")
    group.add_argument("--order", help="block (default), full or sequential")
    group.add_argument("--lanes", type=positive, metavar="N", help="of the order block (default: the loader's)")
    group.add_argument(
        "--state", metavar="FILE", help="JSON of loader.state_dict(), in place of split, seq-len, packing and order"
    )
    group.add_argument(
        "--store",
        action="append",
        default=[],
        metavar="[MEMBER=]STORE",
        help="with --state: the store of its dataset, or of a member of its mixture (default: the store of REF)",
    )
    return group
