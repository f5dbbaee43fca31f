"""The data-parallel ranks of a DeviceMesh: which of its dimensions share rows out, and which ranks get the same rows.

Tensor, context and pipeline parallel ranks need the same rows, so they are one data rank. With the dimensions
("dp", "tp") of sizes 2 and 4, ranks 4 to 7 are data rank 1 of 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_DATA_DIMS = (("dp",), ("batch",), ("dp_replicate", "dp_shard"), ("replicate", "shard"))
_EVERY_DATA_DIM = {name for known in _DATA_DIMS for name in known}
_MODEL_DIMS = {"cp", "ep", "pp", "sp", "tp"}
_WITH_CONTEXT = {"dp_cp", "dp_shard_cp", "fsdp", "loss", "loss_mesh"}  # names of data and context parallelism together


class MeshPlace(NamedTuple):
    """The data rank of this process in a mesh, their number, and the ranks that get the same rows, with this one."""

    rank: int
    world_size: int
    peers: tuple[int, ...]


def place_in_mesh(mesh: DeviceMesh, dims: Sequence[str] | None) -> MeshPlace:
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
    return MeshPlace(rank, world_size, tuple(sorted(of_data_ranks[rank].tolist())))


def _names(mesh: DeviceMesh) -> tuple[str, ...]:
    return tuple(mesh.mesh_dim_names or ())


def _chosen_dims(mesh: DeviceMesh, whole: DeviceMesh, dims: Sequence[str] | None) -> tuple[str, ...]:
    """Return the data-parallel dimensions of a mesh, none if its only one has no name; see place_in_mesh."""
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
    """Return the data-parallel dimensions among names; raise ValueError if the mesh has others beside them.

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
    """Return ascending ranks for people: [3] -> "rank 3", [4, 5, 6] -> "ranks 4 to 6", [1, 3] -> "ranks 1 and 3"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    shown = [str(rank) for rank in ranks[:8]] + [f"{len(ranks) - 8} others"] * (len(ranks) > 8)
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
