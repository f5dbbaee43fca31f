"""Four processes under torchrun read the global sequence; if their versions differ, all of them raise an error."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.counts import count
from tests.reader.oracle import Oracle, make_store
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.order import Order

_ROOT = Path(__file__).parent.parent.parent

_RANK = """
import json, sys
import torch.distributed
from tokenloom.errors import TokenloomError
from tokenloom.reader.dataset import TokenDataset
from tokenloom.reader.loader import TokenLoader

if __name__ == "__main__":
    references, out = json.loads(sys.argv[1]), sys.argv[2]
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    found = {}
    # Each rank has its own copy, as on the disks of several nodes.
    loader = TokenLoader(TokenDataset(references["same"][rank], seq_len=8), 3, seed=2)
    found["origin"] = loader.ranks.origin
    found["rows"] = [next(loader)["input_ids"].tolist() for _ in range(int(sys.argv[3]))]
    loader.close()
    for name, seed, prefetch in (("different", 0, 16), ("different", 0, 0), ("seeds", rank == 3, 16)):
        data = TokenDataset(references.get(name, references["same"])[rank], seq_len=8)
        loader = TokenLoader(data, 3, seed=int(seed), prefetch=prefetch)
        loader.start()  # makes batches ahead, but returns none before the ranks are compared
        try:
            next(loader)
        except TokenloomError as error:
            found[f"{name}/{prefetch}"] = str(error)
        loader.close()
    alone = TokenLoader(TokenDataset(references["different"][rank], seq_len=8), 3, rank=0, world_size=1)
    next(alone)  # these are not the ranks of the process group, so nothing is compared
    alone.close()
    open(f"{out}/{rank}.json", "w").write(json.dumps(found))
    torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_four_processes_read_the_global_sequence_and_refuse_different_streams(tmp_path: Path) -> None:
    first, second = make_store(tmp_path / "a", (300, 90, 500)), make_store(tmp_path / "b", (300, 90), seed=7)
    for rank in range(4):
        shutil.copytree(tmp_path / "a", tmp_path / f"copy{rank}")
    references = {
        "same": [str(tmp_path / f"copy{rank}" / "data") for rank in range(4)],
        "different": [first, first, second, first],
    }
    script = tmp_path / "rank.py"
    script.write_text(_RANK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    steps = count(20, 2000)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--master-addr", "127.0.0.1"]
    command += ["--master-port", str(port), str(script), json.dumps(references), str(tmp_path), str(steps)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]

    oracle = Oracle(first, 8)
    sequence = Order("block", np.array(oracle.counts), 2).samples(np.arange(12 * steps)).tolist()
    for step in range(steps):
        together = {
            12 * step + 4 * i + (rank - 12 * step) % 4: found[rank]["rows"][step][i]
            for rank in range(4)
            for i in range(3)
        }
        assert sorted(together) == list(range(12 * step, 12 * step + 12))
        assert all(row == oracle.sample(sequence[g])["input_ids"] for g, row in together.items())
    versions = [TokenDataset(reference, seq_len=8).manifest["version"] for reference in (first, second)]
    for rank in found:
        assert rank["origin"] == "torch.distributed"
        for prefetch in (16, 0):
            message = rank[f"different/{prefetch}"]
            assert message.startswith("ranks would read different streams: rank ")
            assert "rank 2 reads" in message
            assert all(version in message for version in versions)
        assert "rank 3 reads" in rank["seeds/16"]
