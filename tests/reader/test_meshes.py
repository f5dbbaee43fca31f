"""Data ranks of meshes: their dimensions, who gets the same rows, and what a loader refuses."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.reader.mesh import Mesh
from tests.reader.oracle import make_store
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.meshes import place_in_mesh, ranks_text


@pytest.fixture(scope="module")
def reference(folder: Path) -> str:
    return make_store(folder / "meshes", (300, 90, 500))


@pytest.mark.parametrize(
    ("sizes", "dims"),
    [
        ({"dp": 4, "tp": 2}, ["dp"]),
        ({"pp": 2, "batch": 2, "cp": 2, "tp": 2}, ["batch"]),
        ({"dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2}, ["dp_replicate", "dp_shard"]),
        ({"pp": 2, "dp_replicate": 2, "tp": 2, "dp_shard": 2}, ["dp_replicate", "dp_shard"]),
        ({"replicate": 2, "shard": 4}, ["replicate", "shard"]),
        ({"shard": 2, "replicate": 4}, ["shard", "replicate"]),  # in the order of the mesh
    ],
)
def test_data_dimensions_are_found_and_flattened_in_mesh_order(sizes: dict[str, int], dims: list[str]) -> None:
    place_of = dict(enumerate(itertools.product(*map(range, sizes.values()))))
    axes = [list(sizes).index(name) for name in dims]
    data_places = sorted({tuple(place[axis] for axis in axes) for place in place_of.values()})
    for rank, place in place_of.items():
        found = place_in_mesh(Mesh(sizes, rank), None)
        own = tuple(place[axis] for axis in axes)
        assert found.rank == data_places.index(own)
        assert found.world_size == len(data_places) == math.prod(sizes[name] for name in dims)
        assert list(found.peers) == [r for r, p in place_of.items() if tuple(p[axis] for axis in axes) == own]
        assert place_in_mesh(Mesh(sizes, rank), dims[::-1]) == found


def test_dims_name_other_dimensions() -> None:
    assert place_in_mesh(Mesh({"workers": 4, "tp": 2}, 5), "workers") == (2, 4, (4, 5))
    assert place_in_mesh(Mesh({"fsdp": 4, "tp": 2}, 5), ["fsdp"]) == (2, 4, (4, 5))
    assert place_in_mesh(Mesh({"anything": 4}, 3), None) == (3, 4, (3,))


@pytest.mark.parametrize(
    ("mesh", "dims", "message"),
    [
        (Mesh({"tp": 2, "pp": 2}, 0), None, r"dimensions \('tp', 'pp'\): name those of data parallelism"),
        (Mesh({"dp_shard": 2, "tp": 2}, 0), None, "name those of data parallelism"),
        (Mesh({"fsdp": 2, "tp": 2}, 0), None, "name those of data parallelism"),
        (Mesh({"dp": 2}, 0), ["tp"], r"the mesh has the dimensions \('dp',\): name those"),
        (Mesh({"dp": 2}, 0), [], "each once"),
        (Mesh({"dp": 2, "tp": 2}, 0), ["dp", "dp"], "each once"),
        (Mesh({"fsdp": 2, "cp": 2}, 0), None, "'fsdp' beside 'cp' contains the context parallel ranks"),
        (Mesh({"fsdp": 2, "cp": 2}, 0), ["fsdp"], "'fsdp' beside 'cp' contains the context parallel ranks"),
        (Mesh({"dp_shard_cp": 4}, 0, Mesh({"dp_shard": 2, "cp": 2}, 0)), None, "'dp_shard_cp' beside 'cp'"),
        (Mesh({"dp_shard": 2}, 0, Mesh({"dp_replicate": 2, "dp_shard": 2}, 0)), None, "'dp_replicate' need other rows"),
        (Mesh({"dp": 2}, 7), None, "this process is not in the mesh"),
    ],
)
def test_meshes_that_would_give_wrong_rows_are_refused(mesh: Any, dims: list[str] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place_in_mesh(mesh, dims)


def test_a_loader_says_who_gets_the_same_rows(reference: str) -> None:
    data = TokenDataset(reference, seq_len=8)

    def described(sizes: dict[str, int], rank: int) -> str:
        return TokenLoader(data, 2, mesh=Mesh(sizes, rank)).describe()

    assert "data rank 3 of 8 (from mesh); ranks 12 to 15 get the same rows: positions g with g % 8 == 3" in described(
        {"dp": 8, "tp": 4}, 13
    )
    assert "data rank 1 of 2 (from mesh); ranks 1 and 3 get the same rows" in described({"pp": 2, "dp": 2}, 3)
    assert "data rank 3 of 4 (from mesh): positions" in described({"replicate": 2, "shard": 2}, 3)
    assert ranks_text([4]) == "rank 4"
    assert ranks_text(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 others"


def test_an_iterable_takes_the_rows_of_the_mesh_too(reference: str) -> None:
    data = TokenDataset(reference, seq_len=8)
    mesh: Any = Mesh({"workers": 2, "tp": 2}, 3)
    streamed = next(iter(data.iterable(batch_size=2, mesh=mesh, dims=["workers"])))
    loaded = next(TokenLoader(data, 2, rank=1, world_size=2))
    assert streamed["input_ids"].equal(loaded["input_ids"])


_FAKE_GROUP = """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from tokenloom.reader.meshes import place_in_mesh

dist.init_process_group("fake", rank=13, world_size=16, store=FakeStore())
mesh = init_device_mesh("cpu", (2, 2, 2, 2), mesh_dim_names=("pp", "dp_replicate", "dp_shard", "tp"))
print(*place_in_mesh(mesh, None))
print(*place_in_mesh(mesh["dp_replicate", "dp_shard"], None))
print(*place_in_mesh(mesh["dp_replicate", "dp_shard"]._flatten("batch"), None))
try:
    place_in_mesh(mesh["dp_shard"], None)
except ValueError as error:
    print(error)
print(*place_in_mesh(init_device_mesh("cpu", (16,)), None))
"""


def test_meshes_of_torch_are_read() -> None:
    done = subprocess.run([sys.executable, "-c", _FAKE_GROUP], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [
        "2 4 (4, 5, 12, 13)",
        "2 4 (13,)",
        "2 4 (13,)",
        "the ranks of 'dp_replicate' need other rows too: pass a mesh with 'dp_shard' and 'dp_replicate'",
        "13 16 (13,)",
    ], done.stderr
