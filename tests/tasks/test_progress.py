"""What a running build shows: the step, reused work, the time left."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest

from tests.builders.datasets import build, make_spec, write_jsonl
from tokenloom.errors import CheckError
from tokenloom.tasks.building.shuffle import shuffle_shard
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.progress import Advanced, Event, Meter, Reused, StepStarted, step_label


class _Clock:
    """A clock that only a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def _line(meter: Meter, *events: Event) -> str:
    for event in events:
        meter.take(event)
    assert meter.step is not None
    return meter.step.line()


def test_a_line_shows_reused_work_rates_and_the_time_left(time: _Clock) -> None:
    meter = Meter()
    assert _line(meter, StepStarted("tokenize", 1000, "partitions", 10)) == "tokenize, 0:00 elapsed"
    assert _line(meter, Reused(5, 500)) == "tokenize 50%, 5 of 10 partitions reused, 0:00 elapsed"
    time.now += 100
    done = Advanced(num_documents=1234, num_bytes=50_000_000, num_tokens=9_000_000, done=400)
    assert _line(meter, done) == (
        "tokenize 90%, 5 of 10 partitions reused, 1,234 documents, 0.5 MB/s, 0.09 M tokens/s, 1:40 elapsed, "
        "about 25 s left"
    )
    ended = meter.take(StepStarted("assign", 0))
    time.now += 5
    assert ended is not None and (ended.name, ended.seconds) == ("tokenize", 100)
    assert _line(meter) == "divide into shards, 0:05 elapsed"


def test_the_time_left_is_not_estimated_from_less_than_a_tenth_of_a_step(time: _Clock) -> None:
    meter = Meter()
    time.now += 8
    assert "left" not in _line(meter, StepStarted("tokenize", 1000), Advanced(done=99))
    assert "left" in _line(meter, Advanced(done=1))


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
        shards = Mock(wraps=shuffle_shard, side_effect=[DEFAULT, DEFAULT, CheckError("a failure half way")])
        patch.setattr("tokenloom.flows.build_steps.shuffle_shard", shards)
        build(spec)
    meter, lines, ended = Meter(), list[str](), list[str]()

    def listen(event: Event) -> None:
        if step := meter.take(event):
            ended.append(step.name)
        if meter.step:
            lines.append(meter.step.line())

    with progress.listening(listen):
        num_shards = sum(split["shards"] for split in build(spec).splits.values())
    assert any(line.startswith("tokenize 100%, 1 of 1 partitions reused") for line in lines)
    assert any(f"2 of {num_shards} shards reused" in line for line in lines)
    assert ended == ["plan", "cut", "tokenize", "assign", "shuffle", "check", "validate"]
