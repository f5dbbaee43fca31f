"""Data ranks of meshes: their dimensions, who gets the same rows, and what a loader refuses."""

from __future__ import annotations

import itertools
import json
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
from tokenloom.reader.streams.ranks import place_in_mesh, ranks_text


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


def _place(mesh: Any, dims: str | list[str] | None) -> tuple[int, int, tuple[int, ...]]:
    found = place_in_mesh(mesh, dims)
    return found.rank, found.world_size, found.peers


def test_dims_name_other_dimensions() -> None:
    assert _place(Mesh({"workers": 4, "tp": 2}, 5), "workers") == (2, 4, (4, 5))
    assert _place(Mesh({"fsdp": 4, "tp": 2}, 5), ["fsdp"]) == (2, 4, (4, 5))
    assert _place(Mesh({"dp_replicate": 2, "fsdp": 4}, 5), ["dp_replicate", "fsdp"]) == (5, 8, (5,))
    assert _place(Mesh({"dp_outer": 2, "dp_shard": 2, "tp": 2}, 5), ["dp_outer", "dp_shard"]) == (2, 4, (4, 5))


def test_a_mesh_of_one_dimension_has_the_data_ranks_under_any_name_but_those_of_the_model() -> None:
    for name in ("anything", "fsdp", "dp_shard", "world"):
        assert _place(Mesh({name: 4}, 3), None) == (3, 4, (3,))
    for name in ("tp", "cp", "pp", "sp", "ep"):
        with pytest.raises(ValueError, match="name all those of data parallelism"):
            place_in_mesh(Mesh({name: 4}, 3), None)


@pytest.mark.parametrize("names", [["dp"], ["dp", "cp"], ["dp", "cp", "tp"], ["pp", "dp"]])
def test_a_part_of_a_mesh_stands_for_the_whole(names: list[str]) -> None:
    sizes = {"pp": 2, "dp": 2, "cp": 2, "tp": 2}
    for rank in range(16):
        whole = Mesh(sizes, rank)
        part = Mesh({name: sizes[name] for name in names}, rank % 2, whole)
        assert place_in_mesh(part, None) == place_in_mesh(whole, None)
        assert len(place_in_mesh(part, None).peers) == 8


@pytest.mark.parametrize("half", ["dp_shard", "dp_replicate", "replicate", "shard"])
def test_one_half_of_data_parallelism_stands_alone_beside_dimensions_of_the_model(half: str) -> None:
    mesh = Mesh({"pp": 2, half: 2, "tp": 2}, 3)
    assert _place(mesh, None) == (1, 2, (2, 3, 6, 7))
    assert _place(Mesh({half: 2}, 1, mesh), None) == (1, 2, (2, 3, 6, 7))


_HSDP = Mesh({"dp_replicate": 2, "dp_shard": 2}, 0)
_WORLD = Mesh({"world": 16}, 0)  # torchtitan's meshes are parts of it, which it does not know


@pytest.mark.parametrize(
    ("mesh", "dims", "message"),
    [
        (Mesh({"tp": 2, "pp": 2}, 0), None, r"dimensions \('tp', 'pp'\), .* name all those of data parallelism"),
        (Mesh({"dp_outer": 2, "dp_shard": 2}, 0), None, "name all those"),
        (Mesh({"dp": 2}, 0), [], "each once"),
        (Mesh({"fsdp": 2, "cp": 2}, 0), None, "name all those"),
        (Mesh({"fsdp": 2, "cp": 2}, 0), ["fsdp"], "'fsdp' contains the context parallel ranks"),
        (Mesh({"fsdp": 2, "tp": 2}, 0), None, "name all those"),
        (Mesh({"dp_shard_cp": 4}, 0, Mesh({"dp_shard": 2, "cp": 2}, 0)), None, "name all those"),
        (Mesh({"dp_shard": 2}, 0, _HSDP), None, r"\('dp_shard',\), a part of \('dp_replicate', 'dp_shard'\)"),
        (Mesh({"dp_replicate": 2, "dp": 2}, 0), None, "no other data rank may be beside them"),
        (Mesh({"dp": 2}, 0, Mesh({"dp": 2, "batch": 2}, 0)), None, "name all those"),
        (Mesh({"tp": 2}, 0, Mesh({"dp": 2, "tp": 2}, 0)), None, "name all those"),
        (Mesh({"fsdp": 2}, 0, _WORLD), None, "name all those"),
        (Mesh({"dp_replicate": 2}, 0, _WORLD), None, "name all those"),
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


_MESHES = """
import json
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from tokenloom.reader.streams.ranks import place_in_mesh

def place(mesh, dims=None):
    try:
        found = place_in_mesh(mesh, dims)
        return found.rank, found.world_size, found.peers
    except ValueError as error:
        return str(error)

def places(size, rank):
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    half = size // 2
    mesh = lambda sizes, *names: init_device_mesh("cpu", sizes, mesh_dim_names=names or None)
    found = {"tp": place(mesh((half, 2), "dp", "tp")), "unnamed": place(mesh((size,)))}
    found["unnamed 2"] = place(mesh((half, 2)))
    found["one of 1"] = place(mesh((1, size), "dp", "tp"))
    if size >= 8:
        hsdp = mesh((size // 8, 2, 2, 2), "pp", "dp_replicate", "dp_shard", "tp")
        found["hsdp"] = place(hsdp)
        found["hsdp part"] = place(hsdp["dp_replicate", "dp_shard"])
        found["hsdp flat"] = place(hsdp["dp_replicate", "dp_shard"]._flatten("dp"))
        found["hsdp half"] = place(hsdp["dp_shard"])
        found["tp part"] = place(hsdp["tp"])
        # torchtitan 0.3.0 makes all of its meshes from one of the whole world
        world = mesh((size,), "world")
        data = world._unflatten(0, (size // 8, 2, 2, 2), ("pp", "batch", "cp", "tp"))
        model = world._unflatten(0, (size // 8, 1, 4, 2), ("pp", "dp_replicate", "fsdp", "tp"))
        found["batch"] = place(data["batch"])
        found["data"] = place(data)
        found["fsdp"] = place(model["fsdp"])
        found["loss"] = place(data["batch", "cp"]._flatten("loss_mesh"))
        found["named"] = place(model["fsdp"], ["fsdp"])
        # the order of ranks of Megatron-core: tp, cp, dp, pp, from the innermost
        megatron = mesh((size // 8, 2, 2, 2), "pp", "dp", "cp", "tp")
        found["megatron"] = place(megatron["dp"])
        found["group"] = place(DeviceMesh.from_group(dist.new_group([rank]), "cpu"))
    dist.destroy_process_group()
    return found

print(json.dumps([[places(size, rank) for rank in range(size)] for size in (2, 8, 16)]))
"""


@pytest.fixture(scope="module")
def places() -> list[list[dict[str, Any]]]:
    """What place_in_mesh gives for meshes of torch of 2, 8 and 16 ranks, on each rank."""
    done = subprocess.run([sys.executable, "-c", _MESHES], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return found


def test_meshes_of_torch_give_each_rank_its_rows(places: list[list[dict[str, Any]]]) -> None:
    for size, of_ranks in zip((2, 8, 16), places, strict=True):
        for rank, found in enumerate(of_ranks):
            first = rank // 2 * 2
            assert found["tp"] == [rank // 2, size // 2, [first, first + 1]]
            assert found["unnamed"] == [rank, size, [rank]]
            assert "() (pass mesh_dim_names to init_device_mesh)" in found["unnamed 2"]
            assert found["one of 1"] == [0, 1, [*range(size)]]
            if size == 2:
                continue
            stages = range(size // 8)
            own = rank // 2 % 4
            expected = [own, 4, [8 * stage + 2 * own + tp for stage in stages for tp in range(2)]]
            assert found["hsdp"] == found["hsdp part"] == expected
            assert found["hsdp flat"] == [own, 4, [rank]]  # a flattened mesh knows no others
            assert "name all those of data parallelism" in found["hsdp half"]
            assert "name all those of data parallelism" in found["tp part"]
            own = rank // 4 % 2
            assert found["batch"] == [own, 2, [rank]]
            expected = [own, 2, [8 * stage + 4 * own + i for stage in stages for i in range(4)]]
            assert found["data"] == found["megatron"] == expected
            for name in ("fsdp", "loss"):
                assert "name all those of data parallelism" in found[name]
            assert found["named"] == [rank // 2 % 4, 4, [rank]]
            assert found["group"] == [0, 1, [rank]]
