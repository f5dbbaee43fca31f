"""The data-parallel ranks: which one this process is, which positions it takes, and whether all read the same stream.

Tensor, context and pipeline parallel ranks need the same rows, so they are one data rank. With the dimensions
("dp", "tp") of sizes 2 and 4, ranks 4 to 7 are data rank 1 of 2.

Before their first batch, ranks compare what they read, through the store of torch's default process group. It is no
collective, which would hang where a pipeline stage makes no loader: one loader of each data rank is enough, and those
that never come are named after a time limit. A rank makes some small requests, however many ranks there are.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from tokenloom.errors import TokenloomError, checked_int, message_of
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.wording import counted

if TYPE_CHECKING:
    from torch.distributed import Store
    from torch.distributed.device_mesh import DeviceMesh


_DATA_DIMS = ({"dp"}, {"batch"}, {"dp_replicate", "dp_shard"}, {"replicate", "shard"})
_EVERY_DATA_DIM = {"dp", "batch", "dp_replicate", "dp_shard", "replicate", "shard"}
_MODEL_DIMS = {"cp", "ep", "pp", "sp", "tp"}
_WITH_CONTEXT = {"dp_cp", "dp_shard_cp", "fsdp", "loss", "loss_mesh"}  # names of data and context parallelism together
_SWITCH = "compare_ranks=None turns this comparison off"


@dataclass(frozen=True)
class DataRank:
    """A data-parallel rank in [0, world_size), and where both numbers come from."""

    rank: int
    world_size: int
    origin: str
    peers: tuple[int, ...] = ()  # the ranks of the process group that get the same rows, as far as a mesh says


def place_in_mesh(mesh: DeviceMesh, dims: Sequence[str] | None) -> DataRank:
    """Return the place of this process in a mesh, its data-parallel dimensions flattened in the mesh's order.

    Args:
        mesh: with names; or of one dimension, the data-parallel ranks. A part of a mesh counts as the whole.
        dims: the data-parallel dimensions; None for dp, batch, dp_replicate with dp_shard, or replicate with shard.

    Raises:
        ValueError: the dimensions are not there, leave out ranks that need other rows, or span context parallel
            ranks; or this process is not in the mesh.
    """
    # A torch without this method knows no whole.
    whole = getattr(mesh, "_get_root_mesh", lambda: mesh)()
    chosen = _chosen_dims(mesh, whole, (dims,) if isinstance(dims, str) else dims)
    if {*chosen} <= {*_names(whole)}:
        mesh = whole  # it has the ranks that get the same rows
    axes = sorted(map(_names(mesh).index, chosen)) or [0]
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError("this process is not in the mesh: make no loader in it, or pass the mesh that it is in")
    ranks = np.array(mesh.mesh.tolist(), np.int64)
    sizes, own = [ranks.shape[axis] for axis in axes], [coordinate[axis] for axis in axes]
    rank, world_size = int(np.ravel_multi_index(own, sizes)), int(np.prod(sizes))
    of_data_ranks = np.moveaxis(ranks, axes, range(len(axes))).reshape(world_size, -1)  # (world_size, ranks of each)
    return DataRank(rank, world_size, "mesh", tuple(sorted(of_data_ranks[rank].tolist())))


def _names(mesh: DeviceMesh) -> tuple[str, ...]:
    return tuple(mesh.mesh_dim_names or ())


def _chosen_dims(mesh: DeviceMesh, whole: DeviceMesh, dims: Sequence[str] | None) -> tuple[str, ...]:
    """Choose the data-parallel dimensions of a mesh as place_in_mesh says, none if its only one has no name."""
    names, every = _names(mesh), {*_names(mesh), *_names(whole)}
    if dims is None and mesh is whole and mesh.ndim == 1 and not every & _MODEL_DIMS:
        return names
    chosen = _known_dims({*names}, {*_names(whole)}) if dims is None else tuple(dims)
    for spans in {*chosen} & _WITH_CONTEXT if "cp" in every else ():
        raise ValueError(
            f"the dimension {spans!r} contains the context parallel ranks, which need the same rows: pass a mesh with "
            "the dimension 'batch', or with dp_replicate and dp_shard"
        )
    if not chosen or len({*chosen}) < len(chosen) or not {*chosen} <= {*names}:
        raise ValueError(
            f"the mesh has the dimensions {names or '() (pass mesh_dim_names to init_device_mesh)'}, a part of "
            f"{_names(whole)}: name all those of data parallelism, each once, with dims=(...); without it they are "
            '"dp", "batch", "dp_replicate" with "dp_shard", or "replicate" with "shard", and no other data rank may be '
            "beside them"
        )
    return chosen


def _known_dims(names: set[str], of_whole: set[str]) -> tuple[str, ...]:
    """Pick the data-parallel dimensions among names; none if that leaves a doubt.

    One of two stands alone only if the whole mesh has it, and nothing else but dimensions of the model.
    """
    is_of_whole = names & _EVERY_DATA_DIM <= of_whole
    every = names | of_whole if is_of_whole else names  # torchtitan's meshes are parts of one that does not know them
    found = every & _EVERY_DATA_DIM
    stands_alone = len(found) == 1 and is_of_whole and every - found <= _MODEL_DIMS
    return tuple(found) if (found in _DATA_DIMS or stands_alone) and found <= names else ()


def ranks_text(ranks: Sequence[int]) -> str:
    """Write out ascending ranks: [3] -> "rank 3", [4, 5, 6] -> "ranks 4 to 6", [1, 3] -> "ranks 1 and 3"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    shown = [str(rank) for rank in ranks[:8]] + [f"{len(ranks) - 8} others"] * (len(ranks) > 8)
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


_log = logging.getLogger("tokenloom")


def find_ranks(
    rank: int | None, world_size: int | None, mesh: DeviceMesh | None = None, dims: Sequence[str] | None = None
) -> DataRank:
    """Return the rank and the world size: of mesh, the arguments, torch.distributed, RANK and WORLD_SIZE, or 0 of 1.

    Args:
        rank: in [0, world_size), with world_size; None for neither.
        world_size: at least 1.
        mesh: a DeviceMesh; see place_in_mesh.
        dims: the data-parallel dimensions of mesh, None to find them; see place_in_mesh.

    Raises ValueError if they contradict each other, or the rank is out of range.
    """
    if mesh is None and dims is not None:
        raise ValueError("dims are those of a mesh: pass mesh too")
    if mesh is not None and (rank is not None or world_size is not None):
        raise ValueError("pass mesh, or rank and world_size, not both")
    if (rank is None) != (world_size is None):
        raise ValueError("rank and world_size belong together: pass both or neither")
    if mesh is not None:
        found = place_in_mesh(mesh, dims)
    elif rank is not None and world_size is not None:
        found = DataRank(checked_int("rank", rank), checked_int("world_size", world_size, 1), "arguments")
    elif group := process_group():
        found = DataRank(group.get_rank(), group.get_world_size(), "torch.distributed")
    else:
        found = _of_environment()
    if not 0 <= found.rank < found.world_size:
        raise ValueError(f"rank {found.rank} of {found.world_size} ({found.origin}): a rank is in [0, world_size)")
    _log.info("data-parallel rank %d of %d, from %s", found.rank, found.world_size, found.origin)
    return found


def process_group() -> ModuleType | None:
    """Return torch.distributed if it has a default process group."""
    distributed = sys.modules.get("torch.distributed")  # without it, there is no group; numpy needs no torch
    if distributed is None:
        return None
    return distributed if distributed.is_available() and distributed.is_initialized() else None


def _of_environment() -> DataRank:
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world_size is None:
        return DataRank(0, 1, "default: one process")
    try:
        return DataRank(int(rank or ""), int(world_size or ""), "RANK and WORLD_SIZE")
    except ValueError as error:
        message = (
            f"RANK={rank!r} and WORLD_SIZE={world_size!r} in the environment must both be integers, or neither set"
        )
        raise ValueError(message) from error


def compare_ranks(ranks: DataRank, describe: Callable[[], tuple[str, str]], seconds: float) -> None:
    """Raise TokenloomError if ranks of the default process group would read other streams, or wrong rows of it.

    Nothing is compared where the group can't hold all data ranks.

    Args:
        ranks: of this process.
        describe: says what it reads, which must be the same on all ranks, and where it reads it, for the message: each
            node may have its own copy.
        seconds: how long to wait for a loader of each data rank.
    """
    distributed = process_group()
    if distributed is None or distributed.get_backend() in ("fake", "mpi"):  # which have no store that ranks share
        return
    if max(2, ranks.world_size) > distributed.get_world_size():
        return
    from torch.distributed.distributed_c10d import _get_default_store  # torch has no public name for it

    store, rank = distributed.PrefixStore("tokenloom", _get_default_store()), distributed.get_rank()
    try:
        number = store.add(f"comparisons of rank {rank}", 1)  # comparison k of a rank is with those k of the others
        store = distributed.PrefixStore(str(number), store)
        compare_in_store(store, rank, distributed.get_world_size(), ranks, describe(), seconds)
    except distributed.DistError as error:
        raise TokenloomError(
            "the store of the process group does not answer while ranks compare what they read: the process that "
            f"holds it, mostly rank 0, may have ended; its log says why ({message_of(error)})"
        ) from error


def compare_in_store(
    store: Store, group_rank: int, group_size: int, ranks: DataRank, reads: tuple[str, str], seconds: float
) -> None:
    """Compare rank `group_rank` of `group_size` with the others in a store that all share, empty at first.

    Args:
        store: of torch; each rank leaves there what it reads for those that come later.
        group_rank, group_size: of this process in the process group.
        ranks, reads, seconds: as compare_ranks has them; `reads` is what `describe` returns.

    Raises TokenloomError, here and in the ranks that wait, if this one differs, or if a data rank does not come.
    """
    came = [f"data rank {number} came" for number in range(ranks.world_size)]
    if difference := _difference(store, group_rank, group_size, ranks, reads):
        store.set("difference", f"{difference} ({_SWITCH})")
        for key in came:  # ends the wait of the others
            store.set(key, "")
    store.set(came[ranks.rank], "")
    try:
        store.wait(came, timedelta(seconds=seconds))
    except RuntimeError as error:
        missing = [number for number, key in enumerate(came) if not store.check([key])]
        raise TokenloomError(
            f"no loader of data {ranks_text(missing)}, of {ranks.world_size}, asks for its first batch within "
            f"{seconds:g} s: it may have failed; a longer limit is compare_ranks=seconds, and {_SWITCH}"
        ) from error
    if store.check(["difference"]):
        raise TokenloomError(store.get("difference").decode())


def _difference(store: Store, group_rank: int, group_size: int, ranks: DataRank, reads: tuple[str, str]) -> str | None:
    """Say how a rank differs from the first of all, or from the first of its data rank; None if it does not."""
    own, most = ranks.rank, group_size // ranks.world_size
    summary = f"{reads[0]}, data ranks: {ranks.world_size}"
    text = f"rank {group_rank} reads {reads[1]}: {summary}"
    mine = json.dumps([group_rank, text, summary, ranks.peers])
    _, its_text, its_summary, _ = json.loads(store.compare_set("first", "", mine))
    if its_summary != summary:
        return (
            f"ranks would read different streams: {'; '.join(sorted([text, its_text]))}. Pass the same state and the "
            "same arguments to all of them, take the first batches of several loaders in the same order on all ranks, "
            "and name the version by its 16 digits, because a tag may move"
        )
    peer, _, _, its_peers = json.loads(store.compare_set(f"first of {own}", "", mine))
    for rank, peers in ((group_rank, its_peers), (peer, ranks.peers)):
        if len(peers) == most and rank not in peers:
            return (
                f"rank {rank} would read the rows of data rank {own}, which the mesh of other ranks gives to "
                f"{ranks_text(peers)}: pass the same mesh to the loaders of all ranks"
            )
    if store.add(f"loaders of {own}", 1) > most:
        return (
            f"{ranks_text(sorted([peer, group_rank]))} would read the rows of data rank {own}, but with "
            f"{ranks.world_size} data ranks, each has {most} of the {group_size} ranks: pass the mesh, or its own data "
            "rank to each process"
        )
    return None


class Steps:
    """The steps of one rank over the stream; a step takes one batch on every rank.

    Args:
        ranks: this rank, and the number of ranks.
        batch_size: samples in a batch on one rank.
        num_samples: in an epoch; None for a mixture, which has no epochs.
        num_epochs: after which the stream ends; None if it is endless.
        drop_last: whether to drop the last step if it is short; else it is padded, on all ranks.
        start: the position of the first step.

    Attributes:
        end: the stream has the positions [0, end); None if it is endless.
        samples: how many samples a step takes on all ranks together.

    Raises ValueError if a mixture should end, or no step is left at `start`.
    """

    def __init__(
        self,
        ranks: DataRank,
        batch_size: int,
        num_samples: int | None,
        num_epochs: int | None = None,
        drop_last: bool = True,
        start: int = 0,
    ) -> None:
        self.ranks, self.batch_size, self.drop_last = ranks, batch_size, drop_last
        self.samples = batch_size * ranks.world_size
        self.end: int | None = None
        if num_epochs is not None:
            if num_samples is None:
                raise ValueError(
                    "a mixture has no epochs: leave out num_epochs, and stop after as many steps as you want"
                )
            self.end = num_samples * checked_int("num_epochs", num_epochs, 1)
            if self.left(start) == 0:
                raise ValueError(
                    f"{counted(max(0, self.end - start), 'sample')} are too few for a step of "
                    f"{counted(batch_size, 'sample')} on {counted(ranks.world_size, 'rank')}: "
                    "use a smaller batch_size, more epochs, or drop_last=False"
                )

    def left(self, position: int) -> int | None:
        """Count the steps from `position` to the end; None if the stream is endless."""
        if self.end is None:
            return None
        left = max(0, self.end - position)
        return left // self.samples if self.drop_last else -(-left // self.samples)

    def positions(self, position: int, num_steps: int, rank: int | None = None) -> Int64s:
        """List the positions that a rank, this one if it is None, takes in the next steps; the last may be short."""
        rank = self.ranks.rank if rank is None else rank
        first = position + (rank - position) % self.ranks.world_size
        found = first + self.ranks.world_size * np.arange(num_steps * self.batch_size, dtype=np.int64)
        return found if self.end is None else found[found < self.end]

    def places(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Find the steps, the ranks and the rows of the batch that take (n,) positions, the inverse of `positions`."""
        world_size = self.ranks.world_size
        ranks = positions % world_size
        steps, rows = np.divmod(positions // world_size, self.batch_size)
        return steps, ranks, rows
