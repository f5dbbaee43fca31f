"""Which data-parallel rank this process is, and of how many."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import TokenloomError
from tokenloom.reader.arguments import whole

_log = logging.getLogger("tokenloom")


@dataclass(frozen=True)
class Ranks:
    """A data-parallel rank, in [0, world_size), and where it was read."""

    rank: int
    world_size: int
    origin: str

    def is_process_group(self) -> bool:
        """Return whether these are rank and size of torch's default process group, and others are in it."""
        distributed = _process_group()
        return bool(distributed) and (self.rank, self.world_size) == (
            distributed.get_rank(),
            distributed.get_world_size(),
        )


def find_ranks(rank: int | None, world_size: int | None, mesh: Any = None) -> Ranks:
    """Return rank and world size from, in this order: mesh, arguments, torch.distributed, RANK and WORLD_SIZE, 0 of 1.

    Args:
        rank: in [0, world_size); None if not given, together with world_size.
        world_size: at least 1.
        mesh: a one-dimensional DeviceMesh of data-parallel ranks, or one with a dimension "dp".

    Raises ValueError if they contradict each other.
    """
    found = _of_mesh(mesh, rank, world_size) or _of_arguments(rank, world_size) or _of_torch() or _of_environment()
    if not 0 <= found.rank < found.world_size:
        raise ValueError(f"rank {found.rank} of {found.world_size} ({found.origin}): a rank lies in [0, world_size)")
    _log.info("data-parallel rank %d of %d, from %s", found.rank, found.world_size, found.origin)
    return found


def _of_mesh(mesh: Any, rank: int | None, world_size: int | None) -> Ranks | None:
    if mesh is None:
        return None
    if rank is not None or world_size is not None:
        raise ValueError("give mesh, or rank and world_size, not both")
    if mesh.ndim > 1:
        if "dp" not in (mesh.mesh_dim_names or ()):
            raise ValueError(f'a mesh of dimensions {mesh.mesh_dim_names}: give the data-parallel one, mesh["dp"]')
        mesh = mesh["dp"]
    return Ranks(mesh.get_local_rank(), mesh.size(), "mesh")


def _of_arguments(rank: int | None, world_size: int | None) -> Ranks | None:
    if (rank is None) != (world_size is None):
        raise ValueError("rank and world_size belong together: give both or none")
    if rank is None or world_size is None:
        return None
    return Ranks(whole("rank", rank), whole("world_size", world_size, 1), "arguments")


def _process_group() -> Any:
    import torch.distributed as distributed

    return distributed if distributed.is_available() and distributed.is_initialized() else None


def _of_torch() -> Ranks | None:
    distributed = _process_group()
    if not distributed:
        return None
    return Ranks(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _of_environment() -> Ranks:
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world_size is None:
        return Ranks(0, 1, "nothing else: one process")
    if rank is None or world_size is None:
        raise ValueError("only one of RANK and WORLD_SIZE is in the environment: set both or none")
    try:
        return Ranks(int(rank), int(world_size), "RANK and WORLD_SIZE")
    except ValueError as error:
        raise ValueError(f"RANK={rank!r} and WORLD_SIZE={world_size!r} of the environment are no numbers") from error


def check_same_on_all_ranks(ranks: Ranks, summary: str, place: str) -> None:
    """Raise TokenloomError if the ranks of the process group would read different streams; they must all call this.

    Args:
        ranks: nothing is checked unless they are those of the process group.
        summary: what this rank reads; a difference is shown.
        place: where it reads it; shown, and free to differ: each node may have a copy of its own.
    """
    if ranks.world_size == 1 or not ranks.is_process_group():
        return
    found: list[Any] = [None] * ranks.world_size
    _process_group().all_gather_object(found, (summary, place))
    for other, (theirs, their_place) in enumerate(found):
        if theirs != found[0][0]:
            raise TokenloomError(
                f"ranks would read different streams: rank 0 reads {found[0][1]}: {found[0][0]}; rank {other} reads "
                f"{their_place}: {theirs}. Give all of them one version, by its 16 digits and not by a tag that may "
                "move, one state, and the same arguments"
            )
