"""What plan says that a build costs at its store is what the build asks of a server, and large plans stay payable."""

from __future__ import annotations

import json
import random
import re
import time
import tracemalloc
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts import plan_table
from tests import counts
from tests.builders.datasets import make_spec, write_jsonl, write_parquet
from tests.counts import every
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3_server import BUCKET, upload
from tokenloom.cli.main import main
from tokenloom.flows.direct import build_directly, plan_directly
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.formats.statistics import EncodedCounts
from tokenloom.storage.work.records import PartitionRecord, QuarantineSummary, SpillCounts
from tokenloom.tasks.building.assign import assign_shards
from tokenloom.tasks.building.plan import BuildPlan, Partition, plan_build, with_partitions
from tokenloom.tasks.costs import Cost, Volume, requests_of
from tokenloom.tasks.preview import costs_of, proposed_sizes, volume_of
from tokenloom.tasks.sources import PartitionRange

# ---- small builds, counted at a server


def _texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [
        f"{seed} {i} " + " ".join(f"{rng.getrandbits(20):x}" for _ in range(rng.randrange(80))) for i in range(count)
    ]


def _spec(folder: Path, url: str, *, is_remote: bool, kind: str, **fields: Any) -> BuildSpec:
    """Return the spec of a build of 3 files to S3, whose inputs are there too or in a folder."""
    for i in range(3):
        texts = _texts(i, 2500)
        path = folder / "in" / f"{i}.{kind}"
        write_parquet(path, texts, group_rows=250) if kind == "parquet" else write_jsonl(path, texts)
    key = uuid.uuid4().hex
    root = str(folder / "in")
    if is_remote:
        upload(url, folder / "in", key)
        root = f"s3://{BUCKET}/{key}"
    spec = make_spec("/store", [{"kind": kind, "path": f"{root}/*.{kind}"}], shard_tokens=400_000)
    # A size that no file of a spec may have makes many partitions of little data.
    return spec.model_copy(update={"store": f"s3://{BUCKET}/{key}/store", "partition_bytes": 60_000} | fields)


@pytest.mark.parametrize(
    ("kind", "is_remote", "max_fan_in", "num_workers"),
    every(2, [("jsonl", False, 4, 0), ("jsonl", False, 1024, 0), ("parquet", True, 4, 2), ("jsonl", True, 1024, 2)]),
)
def test_a_build_sends_the_requests_that_plan_counts(
    kind: str,
    is_remote: bool,
    max_fan_in: int,
    num_workers: int,
    tmp_path: Path,
    s3_url: str,
    s3_proxy: FaultyProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tokenloom.tasks.sizes.MAX_FAN_IN", max_fan_in)
    s3_proxy.returns_checksums = True
    spec = _spec(tmp_path, s3_url, is_remote=is_remote, kind=kind)
    plan, estimate, _ = plan_directly(spec, 0)
    assert estimate is not None
    costs = costs_of(plan, volume_of(plan, estimate, num_workers), 1.0, None)
    s3_proxy.seen.clear()
    result = build_directly(spec, num_workers)
    assert costs["spills"] == result.num_partitions
    assert bool(costs["runs"]) == (max_fan_in == 4)
    assert abs(len(s3_proxy.seen) / costs["requests"] - 1) <= 0.05
    merging = sum(cost["bytes_read"] for step, cost in costs["steps"].items() if step in ("merge", "shuffle"))
    assert abs(s3_proxy.bytes_sent(".spill") / merging - 1) <= 0.2  # of files that are smaller than a block


def test_uploads_of_shards_in_parts_are_counted(
    tmp_path: Path, s3_url: str, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("storage.stores.s3", "tasks.costs"):
        monkeypatch.setattr(f"tokenloom.{module}.PART_BYTES", 5 * 2**20)  # the least that S3 takes
    s3_proxy.returns_checksums = True
    path = write_parquet(tmp_path / "a.parquet", [text * 40 for text in _texts(7, 800)])
    spec = make_spec("/store", [{"kind": "parquet", "path": str(path)}])
    spec = spec.model_copy(update={"store": f"s3://{BUCKET}/{uuid.uuid4().hex}"})
    plan, estimate, _ = plan_directly(spec, 0)
    assert estimate is not None
    costs = costs_of(plan, volume_of(plan, estimate, 0), 1.0, None)
    s3_proxy.seen.clear()
    build_directly(spec, 0)
    posts = Counter(path.rpartition(".")[2] for method, path, _ in s3_proxy.seen if method == "POST")
    assert posts == {"spill": 2, "tok": 2}  # begun and completed: the spill, the shard of train
    assert sum(method == "PUT" for method, *_ in s3_proxy.seen) > 6
    assert abs(len(s3_proxy.seen) / costs["requests"] - 1) <= 0.05


# ---- large builds, by arithmetic


def volume(text_bytes: int, partition_bytes: int = 64_000_000, shard_tokens: int = 100_000_000) -> Volume:
    """Return a build of English text in files of 1 GB: 4 KB a document, 4.5 bytes a token of gpt2."""
    inputs, partitions = (-(-text_bytes // 10**9), text_bytes, True), max(1, text_bytes // partition_bytes)
    found = text_bytes // 4000, text_bytes * 2 // 9
    return Volume(*inputs, partitions, partitions, *found, (2,), False, (0.98, 0.01, 0.01), shard_tokens, 32)


def test_the_guide_has_the_table_of_this_arithmetic() -> None:
    page = plan_table.PAGE.read_text(encoding="utf-8")
    assert page == plan_table.with_table(page), "run `python scripts/plan_table.py`"
    assert plan_table.table() in page


def _sent(found: dict[str, Cost]) -> float:
    """Return how many requests a build sends."""
    whole = np.sum(list(found.values()), axis=0)
    return float(whole[0] + whole[1])


def test_ten_terabytes_in_160_000_partitions_take_less_than_50_million_requests() -> None:
    of = volume(10**13, 62_500_000)
    found = requests_of(of)
    whole = np.sum(list(found.values()), axis=0)
    assert of.num_runs == 400
    assert _sent(found) <= 5e7
    assert whole[2] / whole[0] >= 100 * 1024
    for step in ("merge", "shuffle"):
        assert of.spill_bytes / found[step][0] >= 100 * 1024


@pytest.mark.parametrize("text_bytes", [10**9, 10**11, 10**12, 10**13])
def test_no_step_is_quadratic_in_partitions(text_bytes: int) -> None:
    one, four = (requests_of(volume(size)) for size in (text_bytes, 4 * text_bytes))
    for step, cost in four.items():
        before = one[step]
        assert cost[0] + cost[1] <= 1.05 * 4**1.5 * (before[0] + before[1]) or cost[0] + cost[1] < 10**5
    assert _sent(requests_of(volume(text_bytes, 2 * 10**9))) <= _sent(one)


def _made_up_plan(folder: Path, num_partitions: int) -> BuildPlan:
    """Return the plan of a build of files that are not there, each of 160 partitions."""
    path = write_jsonl(folder / "a.jsonl", ["a text"])
    plan = plan_build(make_spec(folder / "store", [{"kind": "jsonl", "path": str(path)}]), None)
    files = [
        replace(plan.inputs[0], path=f"{i}.jsonl", fingerprint=f"xxh3_128:{i}") for i in range(num_partitions // 160)
    ]
    ranges = [PartitionRange(i * 10**6, (i + 1) * 10**6, 10**6, None) for i in range(160)]
    return with_partitions(replace(plan, inputs=files), [ranges for _ in files])


def test_planning_takes_time_and_memory_in_proportion_to_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracemalloc.start()
    try:
        _made_up_plan(tmp_path / "traced", 16_000)
        assert tracemalloc.get_traced_memory()[1] / 16_000 < 1000  # bytes
    finally:
        tracemalloc.stop()
    count = counts.count(16_000, 160_000)
    begin = time.monotonic()
    plan = _made_up_plan(tmp_path, count)
    records = {part.spill_name: _record(part) for part in plan.partitions}
    monkeypatch.setattr("tokenloom.tasks.building.assign.find_partition_records", lambda *_: records)
    assignment = assign_shards(plan)
    assert len(assignment.spills) == count
    assert (time.monotonic() - begin) / count < 600 / 160_000


def _record(part: Partition) -> PartitionRecord:
    spill = SpillCounts(30_000_000, [16_000, 100, 100], [14_000_000, 100_000, 100_000], checksum=part.spill_name)
    encoded, nothing = EncodedCounts(16_200, 14_200_000, 64 * 10**6), QuarantineSummary(0, 0, "", {}, "")
    return PartitionRecord(encoded, 0, [], [spill], nothing)


# ---- what plan says


def _planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("on_create", "said"),
    [
        ("honoured", "create-if-absent: honoured; "),
        ("ignored", "create-if-absent: ignored: run one build of this dataset at a time; "),
        ("refused", "create-if-absent: refused, so a build can't publish there: s3://"),
    ],
)
def test_plan_says_what_a_server_does_with_create_if_absent(
    on_create: str, said: str, tmp_path: Path, s3_proxy: FaultyProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    s3_proxy.on_create = on_create
    spec = write_spec(tmp_path, f"s3://{BUCKET}/{uuid.uuid4().hex}")
    shown = _planned(capsys, str(spec), "--price", "get=0.40,put=5.00,hour=1.50")
    assert said in shown
    assert re.search(r"^ *shuffle +[0-9,]+ +[0-9,]+ ", shown, re.MULTILINE)
    assert " dollars\n" in shown
    if on_create == "refused":
        assert main(["build", str(spec), "--direct"]) == 1
        assert "not implemented" in capsys.readouterr().err


def write_spec(folder: Path, store: str) -> Path:
    """Write a spec that reads 3 small files."""
    for i in range(3):
        write_jsonl(folder / f"{i}.jsonl", _texts(i, 50))
    path = folder / "spec.yaml"
    sources = f"[{{kind: jsonl, path: '{folder}/*.jsonl'}}]"
    path.write_text(f"dataset: data\nstore: {store}\nsources: {sources}\ntokenizer: {{kind: byte}}\nreport: false\n")
    return path


def test_a_build_of_too_many_partitions_refuses_without_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tokenloom.flows.build_steps.MAX_SPILLS", 2)
    spec = str(write_spec(tmp_path, str(tmp_path / "store")))
    assert main(["build", spec, "--direct"]) == 1
    error = capsys.readouterr().err
    assert "3 partitions; above 2" in error
    assert "build --anyway" in error
    assert main(["build", spec, "--direct", "--anyway"]) == 0


def test_plan_of_a_small_local_build_is_short_and_has_all_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = str(write_spec(tmp_path, str(tmp_path / "store")))
    assert _planned(capsys, spec).splitlines()[-1].startswith("3 spills, 0 runs, 3 pieces, ")
    assert " dollars\n" in _planned(capsys, spec, "--price", "get=0,put=1000000,hour=0")
    value = json.loads(_planned(capsys, spec, "--json", "--price", "get=0,put=1000000,hour=0"))
    assert value["requests"] == sum(cost["reads"] + cost["writes"] for cost in value["steps"].values())
    assert value["price"] == pytest.approx(sum(cost["writes"] for cost in value["steps"].values()), abs=1)
    assert value["creates_exclusively"] == "honoured"


def test_plan_proposes_sizes_with_which_the_shuffle_reads_more_at_once(tmp_path: Path) -> None:
    plan = _made_up_plan(tmp_path, 160 * 100)
    small = replace(plan, spec=plan.spec.model_copy(update={"partition_bytes": 1_000_000, "shard_tokens": 10_000_000}))
    of = volume(16_000 * 10**6, 10**6, shard_tokens=10_000_000)
    proposed = proposed_sizes(small, of)
    assert proposed["partition_bytes"] > 1_000_000
    spills = of.num_spills * 10**6 // proposed["partition_bytes"]
    better = of._replace(num_spills=spills, shard_tokens=proposed.get("shard_tokens", of.shard_tokens))
    for found, is_enough in ((of, False), (better, True)):
        shuffle = requests_of(found)["shuffle"]
        assert (found.spill_bytes >= 2**17 * shuffle[0]) == is_enough
    assert proposed_sizes(replace(plan, spec=plan.spec), volume(10**13)) == {}
