"""Meshes without processes."""

from __future__ import annotations

from typing import Any

import torch


class Mesh:
    """The parts of a DeviceMesh that a loader uses, as one rank of it has them.

    Args:
        sizes: {dimension: size}.
        rank: of the process.
        whole: the mesh that this one is a part of.
    """

    def __init__(self, sizes: dict[str, int], rank: int, whole: Any = None) -> None:
        self.mesh = torch.arange(torch.Size(sizes.values()).numel()).reshape(*sizes.values())
        self.ndim, self.mesh_dim_names = len(sizes), tuple(sizes)
        self._rank, self._whole = rank, whole

    def get_coordinate(self) -> list[int] | None:
        """Return where the process is in the mesh."""
        found = (self.mesh == self._rank).nonzero().tolist()
        return found[0] if found else None

    def _get_root_mesh(self) -> Any:
        return self._whole or self
