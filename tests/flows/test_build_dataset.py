"""The flow build-dataset: what it publishes, which tasks are retried, and how it runs as a deployment."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import TaskRun
from prefect.exceptions import ParameterTypeError

from tests.builders.datasets import build, listed_files, make_spec, write_jsonl
from tests.counts import full_only
from tests.servers.prefect_servers import send_all
from tests.servers.running import artifact, event, log_lines, newest_run
from tests.servers.web_server import web_server
from tokenloom import TokenDataset
from tokenloom.errors import GateFailed, InputError, SpecError
from tokenloom.flows.build_dataset import build_dataset
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.spec.loading import load_spec
from tokenloom.tasks import sizes
from tokenloom.tasks.building.plan import Build, Partition
from tokenloom.tasks.building.tokenization import tokenize_partition

_ROOT = Path(__file__).parent.parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def _spec(folder: Path, **fields: Any) -> BuildSpec:
    texts = [f"document {i} of the flow" for i in range(300)]
    write_jsonl(folder / "input" / "a.jsonl", texts[:150])
    write_jsonl(folder / "input" / "b.jsonl", texts[150:])
    source = {"kind": "jsonl", "path": str(folder / "input" / "*.jsonl")}
    return make_spec(folder / "store", [source], **fields)


def _task_runs() -> tuple[Any, list[TaskRun]]:
    """Return the newest flow run and its task runs."""
    run: Any = newest_run()
    with get_client(sync_client=True) as client:
        wanted = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(str(run.id))]))
        send_all()
        deadline = time.monotonic() + 60
        runs: list[TaskRun] = []
        while True:  # the server processes events of task runs a little later: wait until no more arrive
            before, runs = len(runs), client.read_task_runs(flow_run_filter=wanted)
            are_final = all(r.state is not None and r.state.is_final() for r in runs)
            if (runs and are_final and len(runs) == before) or time.monotonic() > deadline:
                return run, runs
            time.sleep(1)


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("workers", [0, 2, pytest.param(1, marks=full_only), pytest.param(4, marks=full_only)])
def test_the_flow_publishes_the_same_version_as_a_direct_build(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = _spec(tmp_path, shard_tokens=3000, dataset=f"same-{workers}")
    with monkeypatch.context() as patch:
        patch.setattr(sizes, "MAX_FAN_IN", 1)  # so that it merges runs
        result = build_dataset(spec.with_workers(workers))
    assert any(path.name.endswith("-0.000.spill") for path in (tmp_path / "store").rglob("*.spill"))
    assert result["published"] is True
    assert sum(split["documents"] for split in result["splits"].values()) == 300
    direct = spec.model_copy(update={"store": str(tmp_path / "direct")})
    assert listed_files(spec, result["version"]) == listed_files(direct, build(direct).version)
    again = build_dataset(spec.with_workers(workers))
    assert (again["published"], again["version"]) == (False, result["version"])
    run = newest_run()
    assert run.state is not None and str(run.state.message).startswith("up to date, nothing new to publish: ")
    assert event("tokenloom.dataset.published", spec.dataset)["flow_run_id"] != str(run.id)  # there is only one


@pytest.mark.usefixtures("prefect_server")
def test_a_build_of_many_tiny_partitions_needs_few_task_runs(tmp_path: Path) -> None:
    for number in range(300):
        write_jsonl(tmp_path / "input" / f"{number}.jsonl", [f"text {row} of file {number}" for row in range(4)])
    sources = [{"kind": "jsonl", "path": str(tmp_path / "input" / "*.jsonl")}]
    result = build_dataset(make_spec(tmp_path / "store", sources).with_workers(0))
    assert sum(split["documents"] for split in result["splits"].values()) == 1200
    _, task_runs = _task_runs()
    assert 10 < len(task_runs) <= 100  # a task for each checked file would be too many


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(("kind", "workers"), [("process", 0), ("process", 1), ("dask", 1)])
def test_files_of_marks_are_read_in_task_runs(tmp_path: Path, kind: str, workers: int) -> None:
    (tmp_path / "gone.txt").write_text('"document 1 of the flow"\n')
    runner = {"kind": kind, "workers": workers}
    documents = {"exclude": str(tmp_path / "gone.txt")}
    spec = _spec(tmp_path, documents=documents, runner=runner, dataset=f"marked-{kind}-{workers}")
    result = build_dataset(spec)
    assert (result["rows"]["kept"], result["rows"]["excluded"]) == (299, 1)
    names = [run.name for run in _task_runs()[1]]
    assert names.count("examine a file") == 2  # for the plan, and for the validation
    assert names.count("plan") == names.count("validate") == 1


@pytest.mark.usefixtures("prefect_server")
def test_every_step_is_a_task_run_that_completes_and_a_line_of_the_log(tmp_path: Path) -> None:
    build_dataset(_spec(tmp_path, shard_tokens=3000).with_workers(2))
    run, task_runs = _task_runs()
    assert run.state.is_completed()
    assert all(r.state is not None and r.state.is_completed() and r.run_count == 1 for r in task_runs)
    names = Counter(r.name.split()[0].split("-")[0] for r in task_runs)
    assert set(names) == {"plan", "read", "tokenize", "divide", "shuffle", "check", "validate", "publish"}
    assert {"read file structure a.jsonl", "divide into shards"} < {r.name for r in task_runs}
    assert names["tokenize"] == 2
    assert names["shuffle"] > 3
    assert run.name == "build-data"
    lines = [text for _, text in log_lines(run) if " done in " in text]
    assert [line.split(" done in ")[0] for line in lines] == [
        "plan", "read file structure", "tokenize", "divide into shards", "shuffle", "check", "validate", "publish"
    ]  # fmt: skip
    assert any(re.match(r"tokenize done in \d+:\d\d: 300 documents", line) for line in lines)


@pytest.mark.usefixtures("prefect_server")
def test_bad_input_fails_the_run_without_retries_and_with_our_message(tmp_path: Path) -> None:
    spec = _spec(tmp_path, dataset="bad")
    with (tmp_path / "input" / "b.jsonl").open("a") as file:
        file.write('{"text": 3}\n')
    with pytest.raises(InputError, match=r"b\.jsonl"):
        build_dataset(spec.with_workers(1))
    failure = event("tokenloom.dataset.failed", "bad")
    assert (failure["state"], failure["error"]) == ("failed", "BadRow") and "b.jsonl" in failure["message"]
    run, task_runs = _task_runs()
    assert run.state.is_failed()
    assert "b.jsonl" in run.state.message
    failed = [r for r in task_runs if r.state is not None and not r.state.is_completed()]
    assert [r.run_count for r in failed] == [1]
    assert not list(tmp_path.glob("store/bad/versions/*/manifest.json"))
    assert not list(tmp_path.glob("store/bad/tags/*/*"))


@pytest.mark.usefixtures("prefect_server")
def test_a_spec_against_the_rules_ends_the_run_with_the_words_of_the_command_line(tmp_path: Path) -> None:
    right = _spec(tmp_path).model_dump(mode="json")
    wrong = right | {"dataset": "abcdef0123456789", "splits": [{"name": "train", "share": 0.5}]}
    wrong["sources"] = [right["sources"][0] | {"filter": "score >="}]
    (tmp_path / "spec.yaml").write_text(json.dumps(wrong))
    with pytest.raises(SpecError) as refused:
        load_spec(tmp_path / "spec.yaml")
    with pytest.raises(ParameterTypeError):
        build_dataset(wrong)  # type: ignore[call-overload]  # as a deployment calls it
    message = str(newest_run().state.message)  # type: ignore[union-attr]
    rules = re.findall(r"spec\.yaml:1: [\w.]+: (.+); got", str(refused.value))
    assert len(rules) == 3 and all(rule in message for rule in rules)
    failed = event("tokenloom.dataset.failed", "unknown")  # as the name is invalid
    assert (failed["state"], failed["error"]) == ("failed", "ParameterTypeError")
    assert "shares must add up to 1, not 0.5" in failed["message"] and "\n" not in failed["message"]


def _kill_first_worker(build: Build, part: Partition) -> int:
    """Kill this worker process if it is the first that encodes into the store, else encode."""
    try:
        Path(build.store.root).with_name("killed").touch(exist_ok=False)
    except FileExistsError:
        return tokenize_partition(build, part)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process continues")


@pytest.mark.usefixtures("prefect_server")
def test_the_run_of_a_deployment_tries_once_more_after_a_killed_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(_ROOT))
    monkeypatch.setattr("tokenloom.flows.build_dataset.this_deployment.get_id", lambda: "any")
    monkeypatch.setattr("tokenloom.flows.build_steps.tokenize_partition", _kill_first_worker)
    spec = _spec(tmp_path).with_workers(1)
    Path(spec.store).mkdir()
    assert build_dataset(spec)["published"] is True
    run = newest_run()
    send_all()
    assert [text for level, text in log_lines(run) if level == "WARNING" and "killed, perhaps for memory" in text]


@pytest.mark.usefixtures("prefect_server", "quick_retries")
@pytest.mark.parametrize("number", [0, 1])  # the plan's first request, and the first request of a worker
def test_a_request_to_a_busy_input_server_is_retried(tmp_path: Path, number: int) -> None:
    write_jsonl(tmp_path / "input" / "a.jsonl", [f"document {i} of a busy server" for i in range(8)])
    with web_server(tmp_path / "input", busy={number}) as (url, _):
        spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": f"{url}/a.jsonl"}])
        assert build_dataset(spec.with_workers(1))["published"] is True
    run, task_runs = _task_runs()
    assert run.state.is_completed()
    assert sorted(r.run_count for r in task_runs)[-2:] == [1, 2]


@pytest.mark.usefixtures("prefect_server")
def test_a_relative_path_needs_tokenloom_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "input" / "a.jsonl", [f"document {i}" for i in range(60)])
    source = {"kind": "jsonl", "path": "input/*.jsonl"}
    spec = make_spec(Path("store"), [source])
    monkeypatch.delenv("TOKENLOOM_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"store: 'store' is relative.*TOKENLOOM_HOME"):
        build_dataset(spec.with_workers(0))
    absolute = spec.model_copy(update={"store": str(tmp_path / "elsewhere")})
    with pytest.raises(SpecError, match=r"sources\.0\.path: 'input/\*\.jsonl' is relative"):
        build_dataset(absolute.with_workers(0))
    assert not (tmp_path / "store").exists()
    monkeypatch.setenv("TOKENLOOM_HOME", str(tmp_path))
    assert build_dataset(spec.with_workers(0))["reference"].startswith(f"{tmp_path}/store/data@")


@pytest.mark.usefixtures("prefect_server")
def test_a_failed_check_fails_the_run_and_relaxed_checks_complete_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted: list[Any] = []
    monkeypatch.setattr("tokenloom.flows.build_dataset.emit_published", lambda *args: emitted.append(args))
    write_jsonl(tmp_path / "a.jsonl", [f"document {i}" for i in range(50)])
    source = {"kind": "jsonl", "path": str(tmp_path / "a.jsonl")}
    strict = {"min_tokens": 10, "min_documents": 1000}
    spec = make_spec(tmp_path / "store", [source], dataset="checked", checks=strict)
    with pytest.raises(GateFailed, match=r"1 of 2 checks failed.*min_documents: expected >= 1,000, found 50"):
        build_dataset(spec.with_workers(0))
    run = newest_run()
    send_all()
    assert run.state is not None
    assert run.state.is_failed()
    assert "min_documents: expected >= 1,000, found 50" in str(run.state.message)
    assert run.name == "build-checked"
    assert not emitted
    relaxed = make_spec(tmp_path / "store", [source], dataset="checked", checks={"min_documents": 50})
    result = build_dataset(relaxed.with_workers(0))
    assert (result["published"], result["partitions_encoded"], len(emitted)) == (True, 0, 1)
    summary = artifact("checked-summary").data
    assert "| min_documents | &gt;= 50 | 50 |" in summary
    assert re.search(r"^\| tokenize \| [\d.]+\xa0s \| \d+% \|$", summary, re.MULTILINE)


@pytest.mark.usefixtures("prefect_server")
def test_workers_of_a_data_loader_exit_with_0_after_a_flow(tmp_path: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    samples = TokenDataset(build_dataset(_spec(tmp_path).with_workers(0))["reference"], split="train", seq_len=16)
    batches = iter(data.DataLoader(samples, batch_size=4, num_workers=2, multiprocessing_context="fork"))
    next(batches)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for _ in batches:
        pass
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
