"""The data-parallel rank of this process, and the number of ranks."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from tokenloom.reader.arguments import checked_int
from tokenloom.reader.meshes import place_in_mesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_log = logging.getLogger("tokenloom")


@dataclass(frozen=True)
class DataRank:
    """A data-parallel rank in [0, world_size), and where both numbers come from."""

    rank: int
    world_size: int
    origin: str
    peers: tuple[int, ...] = ()  # the ranks of the process group that get the same rows, as far as a mesh says


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
    found = (
        _of_mesh(mesh, dims, rank, world_size) or _of_arguments(rank, world_size) or _of_torch() or _of_environment()
    )
    if not 0 <= found.rank < found.world_size:
        raise ValueError(f"rank {found.rank} of {found.world_size} ({found.origin}): a rank is in [0, world_size)")
    _log.info("data-parallel rank %d of %d, from %s", found.rank, found.world_size, found.origin)
    return found


def _of_mesh(
    mesh: DeviceMesh | None, dims: Sequence[str] | None, rank: int | None, world_size: int | None
) -> DataRank | None:
    if mesh is None:
        if dims is not None:
            raise ValueError("dims are those of a mesh: pass mesh too")
        return None
    if rank is not None or world_size is not None:
        raise ValueError("pass mesh, or rank and world_size, not both")
    place = place_in_mesh(mesh, dims)
    return DataRank(place.rank, place.world_size, "mesh", place.peers)


def _of_arguments(rank: int | None, world_size: int | None) -> DataRank | None:
    if (rank is None) != (world_size is None):
        raise ValueError("rank and world_size belong together: pass both or neither")
    if rank is None or world_size is None:
        return None
    return DataRank(checked_int("rank", rank), checked_int("world_size", world_size, 1), "arguments")


def process_group() -> ModuleType | None:
    """Return torch.distributed if it has a default process group."""
    distributed = sys.modules.get("torch.distributed")  # without it, there is no group; numpy needs no torch
    if distributed is None:
        return None
    return distributed if distributed.is_available() and distributed.is_initialized() else None


def _of_torch() -> DataRank | None:
    distributed = process_group()
    if not distributed:
        return None
    return DataRank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


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
