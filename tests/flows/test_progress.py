"""What a run shows while it works: its log, and one artifact with the step and the whole build."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey
from prefect.client.schemas.objects import FlowRun

from tests.builders.datasets import make_spec, write_jsonl
from tests.builders.failing import fail_at_the_third_shard
from tests.servers.prefect_servers import send_all
from tests.servers.running import log_lines, newest_run, wait_until
from tokenloom.flows.build_dataset import build_dataset
from tokenloom.flows.runs import progress_log
from tokenloom.flows.runs.progress_page import progress_page, summary_line
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks.running.meter import Meter
from tokenloom.tasks.running.progress import Advanced, Reused, StepStarted, WorkKnown

needs_server = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("prefect_server"),
]


def _spec(folder: Path, **fields: Any) -> BuildSpec:
    for name in "ab":
        write_jsonl(folder / "input" / f"{name}.jsonl", [f"document {i} of {name}" for i in range(150)])
    source = {"kind": "jsonl", "path": str(folder / "input" / "*.jsonl")}
    return make_spec(folder / "store", [source], tokenizer={"kind": "byte"}, shard_tokens=1000, **fields)


def _log(run: FlowRun) -> list[tuple[str, str]]:
    """Return the lines of a run's log, once the server has its last one."""
    send_all()

    def lines() -> list[tuple[str, str]]:
        log = log_lines(run)
        return log if log and re.match("published |failed: ", log[-1][1]) else []

    found: list[tuple[str, str]] = wait_until(lines)
    return found


def _artifacts(run: UUID, key: str) -> list[Any]:
    wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]), flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
    with get_client(sync_client=True) as client:
        return list(client.read_artifacts(artifact_filter=wanted))


class TestRuns:
    """Runs of build-dataset on a server."""

    pytestmark = needs_server

    def test_the_log_has_a_line_for_each_step_and_none_for_each_task_that_completed(self, tmp_path: Path) -> None:
        build_dataset(_spec(tmp_path).with_workers(2))
        texts = [text for _, text in _log(newest_run())]
        steps = [text.split(" done in ")[0] for text in texts if " done in " in text]
        assert steps == [
            "plan", "read file structure", "tokenize", "divide into shards", "shuffle", "validate", "publish"
        ]  # fmt: skip
        assert not [text for text in texts if "Finished in state Completed(" in text]
        assert not [text for text in texts if re.search(r"\b0 ?%", text)]
        assert any(re.match(r"tokenize done in \d+:\d\d: 300 documents", text) for text in texts)

    def test_a_retry_continues_in_the_same_artifact_from_the_finished_work(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fail_at_the_third_shard(monkeypatch)
        monkeypatch.setattr(progress_log, "_SECONDS", 0.01)
        spec = _spec(tmp_path).with_workers(0)
        state = build_dataset.with_options(retries=1)(
            spec, return_state=True
        )  # otherwise Prefect raises the first failure
        result: dict[str, Any] = state.result()
        num_shards = sum(split["shards"] for split in result["splits"].values())
        run = newest_run()
        (artifact,) = _artifacts(run.id, "data-progress")
        assert artifact.description.startswith("100% of the build, ")
        assert "2 of 2 partitions reused" in artifact.data and f"2 of {num_shards} shards reused" in artifact.data
        texts = [text for _, text in _log(run)]
        second = texts[max(i for i, text in enumerate(texts) if text.startswith("plan done in")) :]
        shares = [int(found[1]) for text in second if (found := re.search(r"overall (\d+)%", text))]
        assert shares == sorted(shares) and all(share >= 85 for share in shares), (
            "never below the share of encoded work"
        )


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.tasks.running.meter.time", SimpleNamespace(monotonic=lambda: 0.0))


def _page(*events: Any, ended: str = "") -> tuple[str, str]:
    meter = Meter()
    for event in events:
        meter.take(event)
    return progress_page("news 0123", meter.read(), ended), summary_line(meter.read(), ended)


_WORK = WorkKnown((("tokenize", 0.8), ("shuffle", 0.2)))


@pytest.mark.usefixtures("no_time_passes")
def test_the_artifact_names_the_step_and_the_whole_build_and_what_is_reused() -> None:
    events = (
        _WORK,
        StepStarted("tokenize", 2700, "partitions", 27),
        Reused(12, 1200),
        Advanced(num_documents=5, num_bytes=10, num_tokens=10, done=150),
    )
    page, line = _page(StepStarted("cut", 0), *events)
    assert page.splitlines()[:5] == ["## news 0123", "", f"`{'█' * 12}{'░' * 18}`", "", line]
    assert line == "40% of the build, 0:00 elapsed"
    assert "| ✓ | read file structure | 0:00 |  |" in page
    assert "| ▶ | **tokenize** | **50%** | 12 of 27 partitions reused, 5 documents, " in page
    assert page.splitlines()[-1] == "|  | shuffle |  |  |"


@pytest.mark.usefixtures("no_time_passes")
def test_the_artifact_names_no_percentage_before_the_work_is_known() -> None:
    page, line = _page(StepStarted("plan", 0))
    assert line == "counting the work, 0:00 elapsed" and "%" not in page


@pytest.mark.usefixtures("no_time_passes")
def test_the_artifact_shows_where_a_build_stopped_or_that_it_is_done() -> None:
    page, line = _page(_WORK, StepStarted("tokenize", 100), Advanced(done=50), ended="stopped")
    assert line == "40% of the build, stopped here: a retry continues from what is done, 0:00 elapsed"
    assert "| ✗ | **tokenize** |" in page
    assert _page(_WORK, ended="done")[1] == "100% of the build, 0:00 elapsed"
