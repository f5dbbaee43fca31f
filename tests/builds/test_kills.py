"""A build that is killed, in any process at any moment, resumes where it stopped and produces the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, cycle
from pathlib import Path
from typing import Any

import pytest

from tests.builders.chats import with_chats
from tests.builders.damaging import flip_bit
from tests.builders.datasets import build, listed_files, make_spec, small_hashes, small_spec, write_jsonl, write_parquet
from tests.builders.observing import at_step
from tests.counts import FULL, SUMMARY, count, full_only
from tests.drivers.kill_driver import find_incomplete
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.processes import children, is_running, wait_until
from tests.servers.s3_server import BUCKET
from tokenloom.errors import WorkError
from tokenloom.tasks.building.merge import recorded_spill

STEPS = ("plan", "cut", "tokenize", "assign", "shuffle", "check", "validate", "publish")
_ROOT = Path(__file__).parents[2]
_REMEMBERED_SECONDS = 2.1  # a younger input's fingerprint is not remembered, so the plan would write nothing


def _print_table(title: str, kills: Counter[tuple[str, str]]) -> None:
    """Print kills by step (rows) and by what was killed (columns) at the end of the test run."""
    columns = sorted({column for _, column in kills})
    SUMMARY.append(f"{title}\n  " + "step".ljust(9) + "".join(f"{name:>12}" for name in columns))
    for step in [*STEPS, "mark", "merge", "done"]:
        cells = [kills[step, column] for column in columns]
        if step in STEPS or any(cells):
            SUMMARY.append("  " + step.ljust(9) + "".join(f"{cell:>12}" for cell in cells))


@contextlib.contextmanager
def _running(command: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver process that the block kills at its end, with its workers."""
    arguments = [sys.executable, "-m", "tests.drivers.kill_driver", command, str(folder)]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(arguments, cwd=_ROOT, start_new_session=True, **pipes)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.timeout(1800)  # the full run kills hundreds of builds, which share a machine with other tests
def test_build_killed_before_any_operation_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    lines = [json.dumps(f"document {i}, said {i % 7} times" * (1 + i % 5)) for i in range(5)]
    (tmp_path / "removed.txt").write_text("\n".join(lines))
    marks = [{"path": str(tmp_path / "removed.txt"), "key": "content", "as": "gone"}]
    documents = {"marks": marks, "keep": "not gone", "repeat": {"by": "gone", "times": {"False": 2}}}
    spec = with_chats(small_spec(tmp_path, documents=documents), tmp_path, 9)
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    time.sleep(_REMEMBERED_SECONDS)
    with _running("every", tmp_path) as driver:
        output, _ = driver.communicate()
    kills = [json.loads(line) for line in output.splitlines()]
    _print_table("kills before an operation", Counter((kill["step"], kill["operation"]) for kill in kills))
    assert driver.returncode == 0
    problems = [
        f"kill {n} ({k['step']}, {k['operation']}): {k['problem']}" for n, k in enumerate(kills) if k["problem"]
    ]
    assert problems == []
    assert {kill["step"] for kill in kills} == {*STEPS, "mark", "merge"}
    operations = {kill["operation"] for kill in kills}
    assert operations == {"start", "create", "write", "torn write", "fsync", "replace", "link", "mkdir", "unlink"}


class _LargerBuild:
    """A build of some MB with two workers: its spec, its expected bytes, and the duration of each step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        generator = random.Random(7)
        words = [f"{generator.getrandbits(30):x}" for _ in range(500)]
        for number in range(4):
            texts = [" ".join(generator.choices(words, k=generator.randrange(1, 120))) for _ in range(2500)]
            write_parquet(folder / "input" / f"{number}.parquet", texts)
        source = {"kind": "parquet", "path": str(folder / "input" / "*.parquet")}
        self.spec = with_chats(make_spec(folder / "store", [source], shard_tokens=1_000_000), folder, 1000)
        (folder / "spec.json").write_text(self.spec.model_dump_json())
        with _running("run", folder) as driver:
            assert driver.wait() == 0
        self.hashes = listed_files(self.spec, (folder / "version").read_text())
        steps = self.steps()
        names = [name for _, name in steps]
        self.seconds = {name: steps[i + 1][0] - at for i, (at, name) in enumerate(steps[:-1])}
        assert names == [*STEPS, "done"]

    @property
    def dataset(self) -> Path:
        """The folder of the dataset."""
        return Path(self.spec.store) / self.spec.dataset

    def forget(self) -> None:
        """Go back to before the first build."""
        shutil.rmtree(self.spec.store, ignore_errors=True)
        (self.folder / "steps").unlink(missing_ok=True)

    def steps(self) -> list[tuple[float, str]]:
        """Return (time, name) of each step that began since `forget`."""
        try:
            lines = (self.folder / "steps").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(float(line.split()[0]), line.split()[1]) for line in lines]

    def wait_for(self, step: str, driver: subprocess.Popen[str]) -> None:
        """Return when the running build has begun `step`, or has ended."""
        while step not in [name for _, name in self.steps()] and driver.poll() is None:
            time.sleep(0.001)

    def finish(self) -> None:
        """Run the build until it is complete, and compare its bytes."""
        with _running("run", self.folder) as driver:
            assert driver.wait(timeout=120) == 0
        self.compare()

    def compare(self) -> None:
        """Compare every listed file with the undisturbed build."""
        assert listed_files(self.spec, (self.folder / "version").read_text()) == self.hashes
        assert find_incomplete(self.dataset, must_be_visible=True) is None


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> _LargerBuild:
    return _LargerBuild(tmp_path_factory.mktemp("larger"))


def _workers(pid: int) -> list[int]:
    """Return the running worker processes of a build, which are children of a child that starts them."""
    return [worker for server in children(pid) for worker in children(server)]


def _kill(driver: subprocess.Popen[str], victim: str, generator: random.Random) -> str:
    """Kill the build's main process, one of its workers or all; return what was killed."""
    if victim == "worker" and (workers := _workers(driver.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(generator.choice(workers), signal.SIGKILL)
        return "worker"
    with contextlib.suppress(ProcessLookupError):
        if victim == "group":
            os.killpg(driver.pid, signal.SIGKILL)
        else:
            driver.kill()
    return victim if victim == "group" else "main"


def test_builds_killed_twice_at_random_moments_end_in_the_same_bytes_and_leave_no_worker(larger: _LargerBuild) -> None:
    generator, victims = random.Random(20), cycle(["main", "worker", "group"])
    kills: Counter[tuple[str, str]] = Counter()
    pairs = list(combinations(STEPS, 2)) if FULL else [("tokenize", "shuffle")]
    num_orphans = 0
    for pair in pairs:
        larger.forget()
        for step in pair:
            (larger.folder / "steps").unlink(missing_ok=True)
            with _running("run", larger.folder) as driver:
                larger.wait_for(step, driver)
                if step == "tokenize":
                    wait_until(lambda pid=driver.pid: len(_workers(pid)) == 2, interval=0.001)  # type: ignore[misc]
                # 0.8, because noticing the step takes some time
                time.sleep(generator.uniform(0, 0.8 * larger.seconds[step]))
                at, workers = larger.steps()[-1][1], _workers(driver.pid)
                victim = _kill(driver, next(victims), generator)
                kills[at, victim] += 1
                assert driver.wait(timeout=120) in ((0, 1) if victim == "worker" else (0, -signal.SIGKILL))
                wait_until(lambda left=workers: not any(map(is_running, left)), 30, interval=0.01)  # type: ignore[misc]
                num_orphans += len(workers) if victim == "main" else 0
                assert find_incomplete(larger.dataset) is None
        larger.finish()
    _print_table("kills at random moments", kills)
    assert sum(kills.values()) == 2 * len(pairs)
    assert sum(n for (step, _), n in kills.items() if step == "done") <= max(1, len(pairs) * 2 // 5)
    assert num_orphans >= 2
    if FULL:
        assert {step for step, _ in kills} >= set(STEPS)


@pytest.mark.parametrize(
    ("step", "num_workers"),
    [pytest.param(step, n, marks=[full_only] if n and step != "shuffle" else []) for step in STEPS[1:] for n in (0, 2)],
)
def test_after_work_is_deleted_the_same_command_makes_the_same_bytes(
    tmp_path: Path, step: str, num_workers: int
) -> None:
    spec = small_spec(tmp_path)
    work = Path(spec.store) / spec.dataset / "work"
    with (
        contextlib.suppress(WorkError),  # it is not needed any more when the last steps begin
        at_step(step, lambda: shutil.rmtree(work, ignore_errors=True)),
    ):
        build(spec, num_workers)
    assert listed_files(spec, build(spec, num_workers).version) == small_hashes()


@pytest.mark.parametrize(
    ("step", "place", "num_workers"),
    [
        pytest.param(step, place, n, marks=[full_only] if n and (step, place) != ("shuffle", "tokens") else [])
        for step in ("assign", "shuffle")
        for place in ("header", "tokens", "cut short", "missing")
        for n in (0, 2)
    ],
)
def test_a_damaged_spill_ends_the_build_and_the_next_encodes_it_again(
    tmp_path: Path, step: str, place: str, num_workers: int
) -> None:
    spec = small_spec(tmp_path)

    damaged: list[Path] = []

    def damage() -> None:
        recorded_spill.cache_clear()  # as in a process that has read no header yet
        path = sorted((Path(spec.store) / spec.dataset / "work" / "spills").glob("*.spill"))[0]
        damaged.append(path)
        size = path.stat().st_size
        if place == "missing":
            path.unlink()
        elif place == "cut short":
            os.truncate(path, size - 1)
        else:
            flip_bit(path, {"header": 60, "tokens": size - 1}[place])

    with at_step(step, damage), pytest.raises(WorkError) as caught:
        build(spec, num_workers)
    named = damaged[0].name.partition(".")[0]  # one of another length is found by the record of its partition
    assert re.fullmatch(
        rf"work file damaged: \S*{named}\S*; run the same command again, finished work is kept", str(caught.value)
    )
    result = build(spec, num_workers)
    assert listed_files(spec, result.version) == small_hashes()
    assert result.num_encoded == 1


# Builds, exports, moves of tags and runs of gc: nothing half is visible, nothing is lost


def _kill_commands(folder: Path, store: str, number: int, shard_tokens: int = 6000) -> None:
    texts = [f"document {i}, said {i % 7} times " * (1 + i % 5) for i in range(400)]
    source = {"kind": "jsonl", "path": str(write_jsonl(folder / "in" / "a.jsonl", texts))}
    (folder / "spec.json").write_text(make_spec(folder, [source], shard_tokens=shard_tokens).model_dump_json())
    command = [sys.executable, "-m", "tests.drivers.command_kill_driver", str(folder), store, str(number)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["problems"] == []
    assert sum(found["killed"].values()) >= number
    SUMMARY.append(f"commands killed at random moments in {store.partition(':')[0]}: {found['killed']}")


@pytest.mark.timeout(3600)
def test_commands_killed_at_random_moments_lose_nothing_and_finish(tmp_path: Path) -> None:
    _kill_commands(tmp_path, str(tmp_path / "store"), count(9, 200))


@pytest.mark.timeout(3600)
def test_commands_on_s3_killed_at_random_moments_lose_nothing_and_finish(
    s3_url: str, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_url)
    _kill_commands(tmp_path, f"s3://{BUCKET}/killed", count(3, 200), count(20_000, 6000))  # each request is slow
