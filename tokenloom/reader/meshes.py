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
_WITH_CONTEXT = ("fsdp", "dp_shard_cp")  # torchtitan's names of dp_shard and cp together


class MeshPlace(NamedTuple):
    """The data rank of this process in a mesh, their number, and the ranks that get the same rows, with this one."""

    rank: int
    world_size: int
    peers: tuple[int, ...]


def place_in_mesh(mesh: DeviceMesh, dims: Sequence[str] | None) -> MeshPlace:
    """Return the place of this process in a mesh, its data-parallel dimensions flattened in the mesh's order.

    Args:
        mesh: of one dimension, the data-parallel ranks, or with names.
        dims: the data-parallel dimensions; None for dp, batch, dp_replicate with dp_shard, or replicate with shard.

    Raises ValueError if the dimensions are not there, leave out ranks that need other rows, or span context parallel
    ranks; or if this process is not in the mesh.
    """
    axes = _data_axes(mesh, [dims] if isinstance(dims, str) else dims)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ValueError("this process is not in the mesh: make no loader in it, or pass the mesh that it is in")
    ranks = np.array(mesh.mesh.tolist(), np.int64)
    sizes, own = [ranks.shape[axis] for axis in axes], [coordinate[axis] for axis in axes]
    rank, world_size = int(np.ravel_multi_index(own, sizes)), int(np.prod(sizes))
    of_data_ranks = np.moveaxis(ranks, axes, range(len(axes))).reshape(world_size, -1)  # (world_size, ranks of each)
    return MeshPlace(rank, world_size, tuple(sorted(of_data_ranks[rank].tolist())))


def _data_axes(mesh: DeviceMesh, dims: Sequence[str] | None) -> list[int]:
    names = tuple(mesh.mesh_dim_names or ())
    # A part of a mesh knows the whole; a torch without this method has no names to add.
    whole = getattr(mesh, "_get_root_mesh", lambda: mesh)()
    every = {*names, *(whole.mesh_dim_names or ())}
    chosen = _known_dims(mesh.ndim, names) if dims is None else tuple(dims)
    if "cp" in every and (spans := {*_WITH_CONTEXT} & {*(chosen or names)}):
        raise ValueError(
            f"the dimension {spans.pop()!r} beside 'cp' contains the context parallel ranks, which need the same rows: "
            "pass a mesh with the dimension 'batch', or with dp_replicate and dp_shard"
        )
    if dims is None and (left_out := _other_half(chosen, every)):
        raise ValueError(
            f"the ranks of {left_out!r} need other rows too: pass a mesh with {chosen[0]!r} and {left_out!r}"
        )
    if mesh.ndim == 1 and dims is None:
        return [0]
    if not chosen or len({*chosen}) < len(chosen) or not {*chosen} <= {*names}:
        raise ValueError(
            f"the mesh has the dimensions {names}: name those of data parallelism, each once, with dims=(...); without "
            'it they are "dp", "batch", "dp_replicate" with "dp_shard", or "replicate" with "shard"'
        )
    return sorted(map(names.index, chosen))


def _known_dims(ndim: int, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the data-parallel dimensions by their usual names; none if there are none."""
    return names if ndim == 1 else next((known for known in _DATA_DIMS if {*known} <= {*names}), ())


def _other_half(chosen: tuple[str, ...], every: set[str]) -> str | None:
    """Return the dimension that belongs to the only chosen one and is in the whole mesh, such as dp_replicate."""
    pairs = [known for known in _DATA_DIMS if len(known) == 2 and len({*known} & {*chosen}) == 1]
    return next((name for pair in pairs for name in pair if name in every and name not in chosen), None)


def peers_text(peers: Sequence[int]) -> str:
    """Return which ranks get the same rows, for people: "; ranks 12 to 15 get the same rows"; "" for one rank."""
    if len(peers) < 2:
        return ""
    return f"; {ranks_text(peers)} get the same rows"


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ascending ranks for people: [3] -> "rank 3", [4, 5, 6] -> "ranks 4 to 6", [1, 3] -> "ranks 1 and 3"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    shown = [str(rank) for rank in ranks[:8]] + [f"{len(ranks) - 8} others"] * (len(ranks) > 8)
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
