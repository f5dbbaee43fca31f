"""Machines that share a build: what runs twice, is killed, or has another number of shares changes no byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, listed_files, local_store, make_spec, small_spec, write_parquet
from tests.counts import SUMMARY, count
from tests.servers.s3_server import BUCKET
from tokenloom.cli.main import main
from tokenloom.cli.output import REQUEUE
from tokenloom.flows.direct import share_from_spec
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.work.records import find_assignments
from tokenloom.tasks import sizes
from tokenloom.tasks.running.steps import Share

_ROOT = Path(__file__).parents[2]


def _spec(folder: Path, store: str | None = None, **fields: Any) -> BuildSpec:
    """Return a spec with marks that drop some documents and repeat the others, built by one process."""
    lines = [json.dumps(f"document {i}, said {i % 7} times" * (1 + i % 5)) for i in range(5)]
    (folder / "removed.txt").write_text("\n".join(lines))
    marks = [{"path": str(folder / "removed.txt"), "key": "content", "as": "gone"}]
    documents = {"marks": marks, "keep": "not gone", "repeat": {"by": "gone", "times": {"False": 2}}}
    spec = small_spec(folder, documents=documents, **fields).with_workers(0)
    return spec.model_copy(update={"store": store or spec.store})


def _left(spec: BuildSpec, index: int, number: int) -> dict[str, int]:
    left = share_from_spec(spec, Share(index, number))["left"]
    assert isinstance(left, dict)
    return left


@pytest.mark.parametrize("number", [1, 2, 5])
def test_shares_do_all_work_and_the_last_build_publishes(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = listed_files(other := _spec(tmp_path, str(tmp_path / "other")), build(other).version)
    monkeypatch.setattr(sizes, "MAX_FAN_IN", 4)
    spec = _spec(tmp_path)
    rounds = [[_left(spec, index, number) for index in range(number)] for _ in range(4)]
    assert rounds[-1][-1] == {}
    seen = [next(iter(left.items()), ("none", 0)) for lefts in rounds for left in lefts]
    order = ["partitions", "files", "run_parts", "shards", "none"]
    assert [order.index(step) for step, _ in seen] == sorted(order.index(step) for step, _ in seen)
    assert number == 1 or {step for step, _ in seen} == set(order)
    assert not share_from_spec(spec, Share(0, 1))["published"]
    result = build(spec)
    assert (result.published, result.num_encoded) == (True, 0)
    assert len(find_assignments(local_store(spec.store, spec.dataset), result.version)) == 2  # before and after merging
    assert listed_files(spec, result.version) == expected
    assert share_from_spec(spec, Share(0, 1))["published"]


def test_spills_of_a_share_that_saw_other_inputs_are_used(tmp_path: Path) -> None:
    for name in "abc":
        write_parquet(tmp_path / "in" / f"{name}.parquet", [f"document {i} of {name}" for i in range(20)])
    spec = make_spec(tmp_path / "store", [{"kind": "parquet", "path": f"{tmp_path}/in/*.parquet"}]).with_workers(0)
    first = share_from_spec(spec, Share(0, 3))
    write_parquet(tmp_path / "in" / "d.parquet", ["one more"])
    second = share_from_spec(spec, Share(1, 2))
    assert first["version"] != second["version"]
    result = build(spec)
    assert result.version == second["version"]
    assert (result.num_partitions, result.num_encoded) == (4, 1)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_killed_shares_leave_nothing_that_changes_a_byte(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    expected = listed_files(other := _spec(tmp_path, str(tmp_path / "other")), build(other).version)
    store = str(tmp_path / "stores")
    if kind == "s3":
        request.getfixturevalue("s3_proxy")
        store = f"s3://{BUCKET}/shares"
    (tmp_path / "spec.json").write_text(_spec(tmp_path, store).model_dump_json())
    (tmp_path / "expected.json").write_text(json.dumps(expected))
    command = [sys.executable, "-m", "tests.drivers.share_driver", str(tmp_path), str(count(8, 250)), "7"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    SUMMARY.append(f"{found['kills']} shares killed in {found['builds']} builds on a {kind}")
    assert found["problems"] == [], done.stderr


def test_sigterm_ends_a_share_with_a_code_to_run_it_again(tmp_path: Path) -> None:
    texts = [f"document {i} said {i % 7} times " * 40 for i in range(20_000)]
    source = {"kind": "parquet", "path": str(write_parquet(tmp_path / "a.parquet", texts, group_rows=500))}
    (tmp_path / "spec.json").write_text(make_spec(tmp_path / "store", [source]).model_dump_json())
    command = [sys.executable, "-m", "tokenloom", "build", str(tmp_path / "spec.json"), "--direct", "--share", "0/1"]
    process = subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.PIPE, text=True)
    plans = tmp_path / "store" / "data" / "work" / "plans"
    while not plans.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    start = time.monotonic()
    _, error = process.communicate(timeout=60)
    assert process.returncode == REQUEUE, error
    assert "run the same command again" in error
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--share", "0/2"], "--share: machines share a build without Prefect; give --direct too"),
        (["--direct", "--share", "0/2", "--limit", "3"], "limit: a try-out has no shares"),
        (["--direct", "--share", "2/2"], "'2/2' is not I/N with I from 0 to N - 1, such as 3/100"),
    ],
)
def test_what_can_not_be_shared_is_refused(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.json").write_text(small_spec(tmp_path).model_dump_json())
    assert main(["build", str(tmp_path / "spec.json"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not os.path.exists(tmp_path / "store")
