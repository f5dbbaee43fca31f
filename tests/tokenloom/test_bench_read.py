"""`tokenloom bench read`: what it measures, prints and refuses."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.builders.synthetic_store import random_documents, write_store
from tests.counts import full_only
from tokenloom.cli.bench import rank as bench_rank
from tokenloom.cli.bench import read as bench_read
from tokenloom.cli.main import main
from tokenloom.reader import TokenDataset
from tokenloom.storage.cache.cache_files import CacheFiles

_SMALL = ["--seq-len", "64", "--batch-size", "4", "--step-ms", "1", "--steps", "12", "--workers", "0"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    shards = [random_documents(40_000, 100, seed) for seed in range(8)]
    return write_store(tmp_path_factory.mktemp("bench") / "store", shards)


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run ranks as threads of this process, and briefly: the same work without the cost of processes."""
    import_module("torch")

    def run(tasks: Sequence[bench_rank.Task]) -> list[bench_rank.Measured]:
        monkeypatch.setattr(bench_rank, "_barrier", threading.Barrier(len(tasks)))
        with ThreadPoolExecutor(len(tasks)) as pool:
            return list(pool.map(bench_rank.run_rank, tasks))

    monkeypatch.setattr(bench_read, "run_ranks", run)
    monkeypatch.setattr(bench_rank, "_FLAT_SECONDS", 0.01)
    monkeypatch.setattr(bench_rank, "_BARE_SECONDS", 0.01)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["bench", "read", *arguments, "--json"]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


@full_only
def test_spawned_ranks_with_workers_are_measured(
    reference: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = bench_read.feeding_ways
    # the others are measured in threads, below
    monkeypatch.setattr(bench_read, "feeding_ways", lambda task, workers: ways(task, workers)[-1:])
    value = _json(capsys, reference, *_SMALL, "--workers", "1", "--processes", "2")
    (way,) = value["ways"]
    assert way["way"] == "DataLoader, 1 worker"
    _check_figures(way)
    memory = way["memory_bytes"]
    assert memory["pss"] < memory["rss"]
    assert memory["rss"] > 1.5 * memory["rss_of_imports"]  # its worker counts


@pytest.mark.usefixtures("in_threads")
def test_every_way_of_feeding_is_measured(reference: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = _json(capsys, reference, *_SMALL, "--processes", "2")
    assert value["reference"] == TokenDataset(reference, seq_len=64).reference
    names = ["TokenLoader, prefetch=0", "TokenLoader, thread", "DataLoader in process"]
    assert [way["way"] for way in value["ways"]] == names
    for way in value["ways"]:
        _check_figures(way)


def _check_figures(way: dict[str, Any]) -> None:
    assert way["steps"] == 2 * 12
    assert way["tokens_per_second_in_all"] == pytest.approx(2 * way["tokens_per_second"])
    assert way["tokens_per_second"] < 4 * 64 / 1e-3 < way["bare_tokens_per_second"]
    assert 0 < way["idle_ratio"] < 1
    assert 0 < way["batch_ms"]["p50"] <= way["batch_ms"]["p99"] <= way["batch_ms"]["max"]
    assert way["step_ms"]["p50"] >= 1
    assert way["first_batch_seconds"] > 0
    assert way["cpu_share"] > 0
    assert way["memory_bytes"]["rss"] >= way["memory_bytes"]["pss"] > 0
    (cut,) = way["per_node"]
    assert cut["nodes"] == 1
    assert 1 <= cut["shards"][0] <= 8


@pytest.mark.usefixtures("in_threads")
def test_a_node_touches_its_own_lanes_only(reference: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = _json(capsys, reference, *_SMALL, "--processes", "2", "--nodes", "1,2", "--steps", "1")
    (both,), halves = (cut["shards"] for cut in value["ways"][0]["per_node"])
    assert len(halves) == 2
    assert both <= sum(halves)
    assert max(halves) < both


@pytest.mark.usefixtures("in_threads")
def test_each_node_downloads_what_its_ranks_touch_into_a_cache_of_its_own(
    reference: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    value = _json(capsys, f"local://{reference}", *_SMALL, "--processes", "2", "--nodes", "1,2", "--workers", "")
    assert [(way["way"], way["nodes"]) for way in value["ways"]] == [
        (name, nodes) for nodes in (1, 2) for name in ("TokenLoader, prefetch=0", "TokenLoader, thread")
    ]
    shard_bytes = TokenDataset(reference, seq_len=64).files.entries[0].bytes
    for way in value["ways"]:
        (cut,) = way["per_node"]
        for touched, downloaded in zip(cut["shards"], cut["bytes_downloaded"], strict=True):
            assert downloaded > 0.5 * touched * shard_bytes
    assert CacheFiles(tmp_path / "cache", None).used() == 0


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("packing", ["document_padded", "best_fit"])
def test_packings_and_orders_are_measured(
    reference: str, capsys: pytest.CaptureFixture[str], packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    options = ["--packing", packing, "--order", "full", "--step-ms", "0", "--processes", "1"]
    value = _json(capsys, reference, *_SMALL, *options)
    assert (value["packing"], value["order"]) == (packing, "full")
    for way in value["ways"]:
        assert way["flat_out_tokens_per_second"] == pytest.approx(way["tokens_per_second"])


@pytest.mark.usefixtures("in_threads")
def test_tables_name_every_way_and_explain_their_columns(reference: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "read", reference, *_SMALL, "--processes", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("TokenLoader, prefetch=0", "TokenLoader, thread", "DataLoader in process"):
        assert sum(line.startswith(f"  {name} ") for line in lines) == 3
    for head in (line for line in lines if line.startswith("  way of feeding")):
        for column in re.split(" {2,}", head.strip())[1:]:
            explained = [line for line in lines if re.match(rf"  {column} +[a-z]", line)]
            assert len(explained) == 1 or column == "nodes", f"no line, or several, explain {column}"


@pytest.mark.filterwarnings("ignore:.*no samples:UserWarning")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--processes", "4", "--nodes", "3"], 2, "--nodes 3: 4 processes can't be divided"),
        (["--packing", "greedy"], 2, "packing: one of concat"),
        (["--order", "random"], 2, "order must be one of"),
        (["--seq-len", "1000000"], 2, "use a smaller seq_len"),
        (["--split", "tests"], 1, "no split 'tests'; it has: train"),
    ],
)
def test_a_wrong_argument_is_reported_before_anything_runs(
    reference: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert main(["bench", "read", reference, *arguments]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--workers", "two"], ["--step-ms", "-1"], ["--step-ms", "nan"], ["--nodes", "0"]]
)
def test_a_wrong_number_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "read", "store/data", *arguments]) == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_failed_rank_ends_the_others_and_is_reported(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = threading.Barrier(2)
    monkeypatch.setattr(bench_rank, "_barrier", barrier)
    task = bench_rank.Task(reference, "train", 64, "concat", "block", 4, 0.0, 1, rank=2, world_size=2)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        bench_rank.run_rank(task)
    assert barrier.broken
