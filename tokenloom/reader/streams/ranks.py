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
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from tokenloom.errors import TokenloomError, message_of
from tokenloom.reader.arguments import checked_int
from tokenloom.storage.formats.arrays import Int64s
from tokenloom.wording import counted

if TYPE_CHECKING:
    from torch.distributed import Store
    from torch.distributed.device_mesh import DeviceMesh


_DATA_DIMS = (("dp",), ("batch",), ("dp_replicate", "dp_shard"), ("replicate", "shard"))
_EVERY_DATA_DIM = {name for known in _DATA_DIMS for name in known}
_MODEL_DIMS = {"cp", "ep", "pp", "sp", "tp"}
_WITH_CONTEXT = {"dp_cp", "dp_shard_cp", "fsdp", "loss", "loss_mesh"}  # names of data and context parallelism together
_LONGEST_PAUSE = 0.25  # seconds
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
        TypeError: the mesh is not one.
        ValueError: the dimensions are not there, leave out ranks that need other rows, or span context parallel
            ranks; or this process is not in the mesh.
    """
    if not hasattr(mesh, "mesh_dim_names"):
        raise TypeError(f"mesh must be a DeviceMesh, not a {type(mesh).__name__}; or pass rank and world_size")
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
    if not names and mesh.ndim > 1:
        raise ValueError("the dimensions of the mesh have no names: pass mesh_dim_names to init_device_mesh")
    if dims is None and mesh is whole and mesh.ndim == 1 and not every & _MODEL_DIMS:
        return names
    suspects = {*names} if dims is None else {*dims} if "cp" in every else set()
    for spans in suspects & _WITH_CONTEXT:
        raise ValueError(
            f"the dimension {spans!r} contains the context parallel ranks if there are any, and they need the same "
            "rows: pass a mesh with the dimension 'batch', or with dp_replicate and dp_shard; without context "
            "parallelism, name the data-parallel dimensions with dims=(...)"
        )
    chosen = _known_dims({*names}, {*_names(whole)}) if dims is None else tuple(dims)
    if not chosen or len({*chosen}) < len(chosen) or not {*chosen} <= {*names}:
        raise ValueError(
            f"the mesh has the dimensions {names}: name those of data parallelism, each once, with dims=(...); without "
            'it they are "dp", "batch", "dp_replicate" with "dp_shard", or "replicate" with "shard"'
        )
    return chosen


def _known_dims(names: set[str], of_whole: set[str]) -> tuple[str, ...]:
    """Pick the data-parallel dimensions among names; raise ValueError if the mesh has others beside them.

    One of two stands alone only if the whole mesh has it, and nothing else but dimensions of the model.
    """
    for known in _DATA_DIMS:
        if found := tuple(name for name in known if name in names):
            is_of_whole = of_whole.issuperset(found)
            beside = (of_whole if is_of_whole else names).difference(found)
            if others := sorted(beside & _EVERY_DATA_DIM):
                raise ValueError(
                    f"the ranks of {others[0]!r} need other rows too: pass a mesh with {found[0]!r} and {others[0]!r}, "
                    "or name both with dims=(...)"
                )
            if found == known or (is_of_whole and beside <= _MODEL_DIMS):
                return found
    return ()


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
    if rank is None or world_size is None:
        raise ValueError("only one of RANK and WORLD_SIZE is set in the environment: set both or neither")
    try:
        return DataRank(int(rank), int(world_size), "RANK and WORLD_SIZE")
    except ValueError as error:
        raise ValueError(f"RANK={rank!r} and WORLD_SIZE={world_size!r} in the environment must be integers") from error


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
        Comparison(store, rank, distributed.get_world_size(), ranks).run(*describe(), seconds)
    except distributed.DistError as error:
        raise TokenloomError(
            "the store of the process group does not answer while ranks compare what they read: the process that "
            f"holds it, mostly rank 0, may have ended; its log says why ({message_of(error)})"
        ) from error


class Comparison:
    """One comparison of rank `group_rank` of `group_size` in a store that all ranks share, empty at first."""

    def __init__(self, store: Store, group_rank: int, group_size: int, ranks: DataRank) -> None:
        self._store, self._group_rank, self._group_size, self._ranks = store, group_rank, group_size, ranks

    def run(self, summary: str, place: str, seconds: float) -> None:
        """Compare what this rank reads, and wait for the others."""
        self._compare_streams(f"{summary}, data ranks: {self._ranks.world_size}", place)
        self._compare_rows()
        self._wait(seconds)

    def _fail(self, message: str) -> None:
        """Raise TokenloomError, here and in the ranks that wait."""
        self._store.set("difference", f"{message} ({_SWITCH})")
        self._wait(0)

    def _compare_streams(self, summary: str, place: str) -> None:
        """Compare with the rank that came first."""
        mine = f"rank {self._group_rank} reads {place}: {summary}"
        if self._store.add("first", 1) == 1:
            self._store.set("first summary", summary)
            self._store.set("first text", mine)
        elif self._store.get("first summary").decode() != summary:
            other = self._store.get("first text").decode()
            self._fail(
                f"ranks would read different streams: {'; '.join(sorted([mine, other]))}. Pass the same state and the "
                "same arguments to all of them, take the first batches of several loaders in the same order on all "
                "ranks, and name the version by its 16 digits, because a tag may move"
            )

    def _compare_rows(self) -> None:
        """Compare with the ranks that read the same rows; only then does this rank count as present."""
        own, most = self._ranks.rank, self._group_size // self._ranks.world_size
        count = self._store.add(f"ranks of {own}", 1)
        self._store.set(f"rank {count} of {own}", str(self._group_rank))
        self._check_mesh(own, most)
        if count > most:
            self._fail(
                f"{ranks_text(self._ranks_of(own))} would read the rows of data rank {own}, but with "
                f"{self._ranks.world_size} data ranks, each has {most} of the {self._group_size} ranks: pass the mesh, "
                "or its own data rank to each process"
            )
        if count == 1:
            self._store.add("data ranks", 1)

    def _check_mesh(self, own: int, most: int) -> None:
        """Compare with the first rank of the data rank that has a mesh; it checks those that came before it."""
        key = f"mesh of {own}"
        if len(self._ranks.peers) == most and self._store.add(f"meshes of {own}", 1) == 1:
            self._store.set(key, json.dumps(self._ranks.peers))
            peers, unchecked = list(self._ranks.peers), self._ranks_of(own)
        elif self._store.check([key]):
            peers, unchecked = json.loads(self._store.get(key)), [self._group_rank]
        else:
            return
        if wrong := sorted({*unchecked} - {*peers}):
            self._fail(
                f"{ranks_text(wrong)} would read the rows of data rank {own}, which the mesh of other ranks gives to "
                f"{ranks_text(peers)}: pass the same mesh to the loaders of all ranks"
            )

    def _ranks_of(self, data_rank: int) -> list[int]:
        """List the ranks of the process group that have come for the rows of a data rank, ascending."""
        count = self._store.add(f"ranks of {data_rank}", 0)
        return sorted(int(self._store.get(f"rank {number} of {data_rank}")) for number in range(1, count + 1))

    def _wait(self, seconds: float) -> None:
        """Wait until each data rank has a loader; raise TokenloomError at a difference, or if one has none."""
        end, pause = time.monotonic() + seconds, 0.001
        while True:
            num_data_ranks = self._store.add("data ranks", 0)
            if self._store.check(["difference"]):
                raise TokenloomError(self._store.get("difference").decode())
            if num_data_ranks == self._ranks.world_size:
                return
            if time.monotonic() > end:
                raise TokenloomError(self._describe_missing(seconds))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _describe_missing(self, seconds: float) -> str:
        world_size = self._ranks.world_size
        found = [self._ranks_of(data_rank) for data_rank in range(world_size)]
        missing = [data_rank for data_rank in range(world_size) if not found[data_rank]]
        absent = sorted({*range(self._group_size)}.difference(*found))
        return (
            f"no loader of data {ranks_text(missing)}, of {world_size}, asks for its first batch within {seconds:g} s. "
            f"Of the process group, {ranks_text(absent)} did not come: they may have failed, or read fewer loaders; a "
            f"longer limit is compare_ranks=seconds, and {_SWITCH}"
        )


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
