"""A build on a Ray cluster of this machine; Ray is tested in an environment of its own (see .ci/run)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.datasets import build, listed_files, make_spec, write_jsonl
from tokenloom.flows.build_dataset import build_dataset
from tokenloom.spec.build_spec import BuildSpec

pytest.importorskip("ray", reason="needs Ray: pip install 'tokenloom[ray]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),  # Ray's own
]


@pytest.mark.usefixtures("prefect_server", "tiktoken_cache")
def test_a_ray_cluster_changes_no_bytes_and_its_workers_use_the_fast_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.tasks.building.plan.MIN_FAST_BYTES", 0)
    for name in "abcd":
        write_jsonl(tmp_path / "input" / f"{name}.jsonl", [f"document {i} of {name} on Ray" for i in range(100)])
    source = {"kind": "jsonl", "path": str(tmp_path / "input" / "*.jsonl")}
    fields = {"tokenizer": {"kind": "tiktoken", "name": "gpt2"}, "runner": {"kind": "ray", "workers": 2}}
    spec = make_spec(tmp_path / "store", [source], shard_tokens=3000, **fields)
    result = build_dataset(spec)
    assert result["published"] is True
    assert [use["partitions"] for use in result["encoders"].values()] == [4]
    here = {"store": str(tmp_path / "here"), "runner": {"kind": "process"}}
    direct = BuildSpec.model_validate(spec.model_dump() | here)
    assert listed_files(spec, result["version"]) == listed_files(direct, build(direct).version)
