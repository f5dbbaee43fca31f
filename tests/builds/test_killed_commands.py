"""Builds, exports, moves of tags and runs of gc, killed at random moments: nothing half is visible, nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.datasets import make_spec, write_jsonl
from tests.counts import SUMMARY, count
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET

_ROOT = Path(__file__).parents[2]


def _kill(folder: Path, store: str, number: int) -> None:
    texts = [f"document {i}, said {i % 7} times " * (1 + i % 5) for i in range(400)]
    source = {"kind": "jsonl", "path": str(write_jsonl(folder / "in" / "a.jsonl", texts))}
    (folder / "spec.json").write_text(make_spec(folder, [source], shard_tokens=6000).model_dump_json())
    command = [sys.executable, "-m", "tests.drivers.command_kill_driver", str(folder), store, str(number)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["problems"] == []
    assert sum(found["killed"].values()) >= number
    SUMMARY.append(f"commands killed at random moments in {store.partition(':')[0]}: {found['killed']}")


@pytest.mark.timeout(3600)
def test_commands_killed_at_random_moments_lose_nothing_and_finish(tmp_path: Path) -> None:
    _kill(tmp_path, str(tmp_path / "store"), count(9, 200))


@pytest.mark.timeout(3600)
def test_commands_on_s3_killed_at_random_moments_lose_nothing_and_finish(
    s3_url: str, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_url)
    _kill(tmp_path, f"s3://{BUCKET}/killed", count(3, 200))
