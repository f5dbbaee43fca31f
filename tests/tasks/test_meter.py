"""What a running build shows: the step, the whole build, reused work, the time left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.datasets import build, make_spec, write_jsonl
from tests.builders.failing import fail_at_the_third_shard
from tokenloom.errors import CheckError
from tokenloom.tasks.running import meter as module
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.meter import Meter
from tokenloom.tasks.running.meter_reading import step_label
from tokenloom.tasks.running.progress import Advanced, Event, Reused, StepStarted, WorkKnown

_WORK = WorkKnown((("tokenize", 0.8), ("assign", 0.0), ("shuffle", 0.2)))


class _Clock:
    """A clock that only a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def _meter(*events: Event) -> Meter:
    meter = Meter()
    for event in events:
        meter.take(event)
    return meter


def _step_share(meter: Meter) -> float | None:
    step = meter.read().step
    assert step is not None
    return step.share


def test_after_a_retry_the_percentage_starts_with_the_finished_work(time: _Clock) -> None:
    meter = _meter(_WORK, StepStarted("tokenize", 2700, "partitions", 27), Reused(12, 1200))
    assert _step_share(meter) == pytest.approx(12 / 27)
    assert meter.read().share == pytest.approx(0.8 * 12 / 27)
    assert meter.read().text() == "tokenize 44%, overall 35%, 12 of 27 partitions reused, 0:00 elapsed"


def test_the_step_and_the_whole_build_are_both_named_with_elapsed_and_remaining_time(time: _Clock) -> None:
    meter = _meter(_WORK, StepStarted("tokenize", 1000))
    time.now += 100
    meter.take(Advanced(num_documents=1234, num_bytes=50_000_000, num_tokens=9_000_000, done=500))
    assert meter.read().text() == (
        "tokenize 50%, overall 40%, 1,234 documents, 0.5 MB/s, 0.09 M tokens/s, 1:40 elapsed, about 2 min left"
    )
    assert meter.read().seconds_left == pytest.approx(100 + 0.2 * 100 / 0.4)


def test_a_small_build_shows_no_time_left_that_follows_from_its_start(time: _Clock) -> None:
    meter = _meter(_WORK, StepStarted("tokenize", 1000))
    time.now += 6  # processes start
    meter.take(Advanced(num_documents=4, num_bytes=100, num_tokens=20, done=100))
    assert meter.read().seconds_left is None
    time.now += 1.9
    assert meter.read().text() == "tokenize 10%, overall 8%, 4 documents, 0:08 elapsed"
    time.now += 0.1
    meter.take(Advanced(done=100))
    assert meter.read().seconds_left == pytest.approx(0.8 * 8 / 0.2 + 0.2 * 8 / 0.16)


def test_reused_work_does_not_affect_the_time_left(time: _Clock) -> None:
    meter = _meter(_WORK, StepStarted("tokenize", 1000, "partitions", 10), Reused(8, 800))
    time.now += 50
    assert meter.read().seconds_left is None
    meter.take(Advanced(done=100))
    assert meter.read().seconds_left == pytest.approx(50 + 0.2 * 50 / 0.08)


def test_the_time_left_for_later_steps_follows_the_pace_of_finished_ones(time: _Clock) -> None:
    meter = _meter(_WORK, StepStarted("tokenize", 1000))
    time.now += 80
    meter.take(Advanced(done=1000))
    meter.take(StepStarted("assign", 0))
    assert meter.read().seconds_left == pytest.approx(20)
    assert [(step.name, step.seconds) for step in meter.read().finished] == [("tokenize", 80)]
    assert meter.read().next_steps == ("shuffle",)


def test_the_overall_share_never_falls_when_a_build_returns_to_an_earlier_step(time: _Clock) -> None:
    meter = _meter(_WORK, StepStarted("tokenize", 100), Advanced(done=100), StepStarted("shuffle", 100))
    assert meter.read().share == pytest.approx(0.8)
    meter.take(StepStarted("tokenize", 100, "partitions", 4))
    meter.take(Reused(3, 75))
    assert meter.read().share == pytest.approx(0.8)
    assert _step_share(meter) == 0.75


def test_no_line_shows_0_percent(time: _Clock) -> None:
    assert _meter(StepStarted("plan", 0)).read().text() == "plan, 0:00 elapsed"
    assert _meter(_WORK, StepStarted("tokenize", 1000)).read().text() == "tokenize, 0:00 elapsed"
    assert _meter(_WORK, StepStarted("tokenize", 10_000), Advanced(done=9)).read().text() == "tokenize, 0:00 elapsed"


def test_steps_have_readable_labels() -> None:
    assert (step_label("cut"), step_label("assign")) == ("read file structure", "divide into shards")
    assert step_label("tokenize") == "tokenize"


def test_progress_of_a_second_attempt_starts_where_the_first_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "input" / "a.jsonl", [f"document {i} of many" for i in range(300)])
    source = {"kind": "jsonl", "path": str(tmp_path / "input" / "a.jsonl")}
    spec = make_spec(tmp_path / "store", [source], tokenizer={"kind": "byte"}, shard_tokens=1000)
    with monkeypatch.context() as patch, pytest.raises(CheckError):
        fail_at_the_third_shard(patch)
        build(spec)
    meter = Meter()
    shares: list[float] = []
    lines: list[str] = []

    def listen(event: Event) -> None:
        meter.take(event)
        shares.append(meter.read().share or 0.0)
        lines.append(meter.read().text())

    with progress.listening(listen):
        num_shards = sum(split["shards"] for split in build(spec).splits.values())
    meter.finish()
    known = next(i for i, line in enumerate(lines) if line.startswith("tokenize") and "reused" in line)
    assert shares[known] == pytest.approx(0.85), "finished work counts immediately"
    assert "tokenize 100%, overall 85%, 1 of 1 partitions reused" in lines[known]
    assert any(f"2 of {num_shards} shards reused" in line for line in lines)
    assert shares == sorted(shares)
    assert [step.name for step in meter.read().finished] == [
        "plan", "cut", "tokenize", "assign", "shuffle", "validate", "publish"
    ]  # fmt: skip
