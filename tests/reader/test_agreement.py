"""Ranks compare what they read before the first batch: each planted mistake is named, and nothing hangs."""

from __future__ import annotations

import json
import math
import random
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from tests.counts import count
from tests.reader.mesh import Mesh
from tests.reader.oracle import make_store
from tokenloom.errors import TokenloomError
from tokenloom.reader.streams.ranks import DataRank, compare_in_store, find_ranks, ranks_text

_ROOT = Path(__file__).parent.parent.parent


def _compared(
    ranks: dict[int, DataRank], size: int, summaries: dict[int, str] | None = None, seconds: float = 20
) -> dict[int, str]:
    """Compare with a thread for each rank that comes; return {rank: message} of those that raise an error."""
    store = HashStore()

    def run(rank: int) -> str | None:
        try:
            reads = (summaries or {}).get(rank, "same"), f"copy {rank}"
            compare_in_store(store, rank, size, ranks[rank], reads, seconds)
        except TokenloomError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(size) as threads:
        found = dict(zip(ranks, threads.map(run, ranks), strict=True))
    return {rank: message for rank, message in found.items() if message is not None}


def _of_mesh(sizes: dict[str, int], size: int) -> dict[int, DataRank]:
    meshes: list[Any] = [Mesh(sizes, rank) for rank in range(size)]
    return {rank: find_ranks(None, None, mesh) for rank, mesh in enumerate(meshes)}


@pytest.mark.parametrize(
    "sizes",
    [
        {"dp": 2},
        {"dp": 1, "tp": 2},
        {"dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2},
        {"pp": 2, "batch": 4, "tp": 2},
    ],
)
def test_ranks_that_agree_pass_with_or_without_a_loader_on_each_pipeline_stage(sizes: dict[str, int]) -> None:
    size = Mesh(sizes, 0).mesh.numel()
    ranks = _of_mesh(sizes, size)
    assert _compared(ranks, size) == {}
    if "pp" in sizes:
        assert _compared({rank: ranks[rank] for rank in range(size // 2)}, size) == {}  # the first stage alone


def test_another_number_of_data_ranks_is_named() -> None:
    ranks = {0: DataRank(0, 1, "mesh", (0, 1)), 1: DataRank(1, 2, "torch.distributed")}  # one has forgotten the mesh
    for message in _compared(ranks, 2).values():
        assert "rank 0 reads copy 0: same, data ranks: 1; rank 1 reads copy 1: same, data ranks: 2" in message


_SIZES: list[dict[str, int]] = [
    {"dp": 2},
    {"dp": 2, "tp": 2},
    {"pp": 2, "dp": 2},
    {"dp_replicate": 2, "dp_shard": 2, "cp": 2},
    {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "tp": 2},
    {"dp": 4, "cp": 2, "tp": 2},
    {"dp": 16},
]


@pytest.mark.parametrize("sizes", _SIZES, ids=str)
def test_each_planted_mistake_on_each_mesh_is_named(sizes: dict[str, int]) -> None:
    size = Mesh(sizes, 0).mesh.numel()
    ranks = _of_mesh(sizes, size)
    world_size = ranks[0].world_size
    rng = random.Random(str(sizes))
    order = rng.sample(range(size), size)  # in which they come
    wrong = rng.randrange(size)
    assert _compared({rank: ranks[rank] for rank in order}, size) == {}

    # another seed on one rank, another version on the second of two nodes
    for those in ({wrong}, {*range(size // 2, size)}):
        found = _compared({rank: ranks[rank] for rank in order}, size, dict.fromkeys(those, "other"))
        assert all(m.startswith("ranks would read different streams: rank ") for m in found.values())
        assert found.keys() & those if len(order) - len(those) > 1 else found
        assert all(re.search(r"rank \d+ reads copy \d+: other, data ranks", message) for message in found.values())

    # two data ranks are equal: all ranks of one of them read the rows of another
    own = ranks[wrong].rank
    equal = {
        r: replace(found, rank=(own + 1) % world_size) if found.rank == own else found for r, found in ranks.items()
    }
    found = _compared({rank: equal[rank] for rank in order}, size, seconds=1000)
    assert found.keys() == {*range(size)}
    for message in found.values():
        assert re.search(rf"would read the rows of data rank {(own + 1) % world_size}, ", message)

    # one rank reads other rows than its peers
    if len(ranks[wrong].peers) > 1:
        for peers in ((), (wrong,)):
            alone = ranks | {wrong: DataRank((own + 1) % world_size, world_size, "arguments", peers)}
            found = _compared({rank: alone[rank] for rank in order}, size)
            assert found
            by_number = f" would read the rows of data rank {(own + 1) % world_size}, but with {world_size} data ranks"
            assert all(m.startswith(f"rank {wrong} would read the rows of") or by_number in m for m in found.values())

    # no rank of one data rank comes
    absent = ranks[wrong].peers
    found = _compared({rank: ranks[rank] for rank in order if rank not in absent}, size, seconds=0.2)
    assert found.keys() == {*range(size)} - {*absent}
    for message in found.values():
        assert message.startswith(f"no loader of data rank {own}, of {world_size}, asks for its first batch within")


def test_another_order_of_dimensions_on_one_node_is_named() -> None:
    ranks = _of_mesh({"dp": 2, "tp": 4}, 8)
    turned: Any = [Mesh({"tp": 4, "dp": 2}, rank) for rank in range(8)]
    ranks |= {rank: find_ranks(None, None, turned[rank]) for rank in range(4, 8)}
    for seed in range(5):
        found = _compared({rank: ranks[rank] for rank in random.Random(seed).sample(range(8), 8)}, 8)
        assert found
        assert all(
            re.match(r"ranks? .* would read the rows of data rank [01], ", message) for message in found.values()
        )


_RANK = """
import json, math, os, sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from tokenloom.errors import TokenloomError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import EvaluationPass
from tokenloom.reader.loader import TokenLoader
from tokenloom.reader.streams.ranks import ranks_text

folder, rank, references, port, sizes = sys.argv[1], int(sys.argv[2]), *map(json.loads, sys.argv[3:])
size = math.prod(sizes.values())
dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)
mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
data = TokenDataset(references["same"], seq_len=8)
loader = TokenLoader(data, 3, mesh=mesh)
found = {"rows": next(loader)["input_ids"].tolist(), "described": loader.describe()}
loader.close()
evaluation = EvaluationPass(data, 8, mesh=mesh)
for name in ("first", "second") if rank == 0 else ("first",):  # ranks compare in the first pass alone
    found[name] = len(list(evaluation))

def planted(name, source, **options):
    loader = TokenLoader(source, 3, **options)
    if name == "position" and rank == size - 1:
        loader.load_state_dict(loader.state_dict() | {"samples": 12})
    try:
        next(loader)
    except TokenloomError as error:
        found[name] = str(error)
    loader.close()

planted("version", TokenDataset(references["other" if rank == size - 1 else "same"], seq_len=8), mesh=mesh)
planted("position", data)
planted("equal", data, rank=0, world_size=2)
if rank < size // sizes["pp"]:  # the first stage alone
    planted("stage", data, mesh=mesh)
if rank == 0:
    planted("missing", data, compare_ranks=1.0)
dist.barrier()
planted("off", data, rank=0, world_size=2, compare_ranks=None)
dist.barrier()
dist.destroy_process_group()

planted("no group", data, mesh=mesh)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
planted("new group", data)  # rank 0 has compared once more than rank 1, in the group before
dist.barrier()
if rank == size - 1:
    planted("gone", data)
open(f"{folder}/{rank}.json", "w").write(json.dumps(found))
os._exit(0)
"""


@pytest.mark.slow
def test_processes_name_planted_mistakes(tmp_path: Path) -> None:
    sizes = {"pp": count(1, 2), "dp": count(1, 2), "tp": 2}
    size = math.prod(sizes.values())
    references = {"same": make_store(tmp_path / "a", (300, 90)), "other": make_store(tmp_path / "b", (300, 90), seed=7)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [
        [str(tmp_path), str(rank), json.dumps(references), str(port), json.dumps(sizes)] for rank in range(size)
    ]
    running = [
        subprocess.Popen([sys.executable, "-c", _RANK, *each], cwd=_ROOT, stderr=subprocess.PIPE, text=True)
        for each in arguments
    ]
    errors = [process.communicate(timeout=count(120, 600))[1] for process in running]
    assert [process.returncode for process in running] == [0] * size, errors
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(size)]

    for rank, of_rank in enumerate(found):
        data_rank = rank // 2 % sizes["dp"]
        peers = [other for other in range(size) if other // 2 % sizes["dp"] == data_rank]
        assert f"data rank {data_rank} of {sizes['dp']} (from mesh); {ranks_text(peers)} get" in of_rank["described"]
        assert all(of_rank["rows"] == found[other]["rows"] for other in peers)
        assert f"rank {size - 1} reads" in of_rank["position"]
        assert '"samples": 12' in of_rank["position"]
        assert "would read the rows of data rank 0, but with 2 data ranks" in of_rank["equal"]
        assert not of_rank.keys() & {"stage", "off", "no group", "new group"}
    assert found[0]["second"] == found[0]["first"]
    assert any(f"rank {size - 1} reads" in rank.get("version", "") for rank in found)  # the one that comes later
    assert "asks for its first batch within 1 s: it may have failed" in found[0]["missing"]
    assert "the store of the process group does not answer while ranks compare" in found[-1]["gone"]
