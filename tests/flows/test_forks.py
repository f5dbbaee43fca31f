"""A process that ran a flow can fork: the workers of torch's DataLoader, for one."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tests.builders.datasets import make_spec, write_jsonl
from tokenloom import TokenDataset
from tokenloom.flows.build_dataset import build_dataset

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("prefect_server")]


@pytest.fixture
def reference(tmp_path: Path) -> str:
    """A version that a flow in this process has built."""
    write_jsonl(tmp_path / "input" / "a.jsonl", [f"document {i}, long enough for a sample" for i in range(40)])
    source = {"kind": "jsonl", "path": str(tmp_path / "input" / "*.jsonl")}
    spec = make_spec(tmp_path / "store", [source], tokenizer={"kind": "byte"}).with_workers(0)
    return str(build_dataset(spec)["reference"])


def test_workers_of_a_data_loader_exit_with_0_after_a_flow(reference: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    samples = TokenDataset(reference, split="train", seq_len=16)
    batches = iter(data.DataLoader(samples, batch_size=4, num_workers=2, multiprocessing_context="fork"))
    next(batches)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for _ in batches:
        pass
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
