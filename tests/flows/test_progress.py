"""What a run shows while it works: a line of its log for each step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.builders.datasets import make_spec, write_jsonl
from tests.servers.prefect_servers import send_all
from tests.servers.running import log_lines, newest_run
from tokenloom.flows.build_dataset import build_dataset


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_the_log_has_a_line_for_each_step(tmp_path: Path) -> None:
    for name in "ab":
        write_jsonl(tmp_path / "input" / f"{name}.jsonl", [f"document {i} of {name}" for i in range(150)])
    source = {"kind": "jsonl", "path": str(tmp_path / "input" / "*.jsonl")}
    spec = make_spec(tmp_path / "store", [source], tokenizer={"kind": "byte"}, shard_tokens=1000)
    build_dataset(spec.with_workers(2))
    run = newest_run()
    assert run.name == "build-data"
    send_all()
    texts = [text for _, text in log_lines(run)]
    steps = [text.split(" done in ")[0] for text in texts if " done in " in text]
    assert steps == [
        "plan", "read file structure", "tokenize", "divide into shards", "shuffle", "check", "validate", "publish"
    ]  # fmt: skip
    assert any(re.match(r"tokenize done in \d+:\d\d: 300 documents", text) for text in texts)
