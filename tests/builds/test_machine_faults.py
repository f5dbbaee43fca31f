"""Faults of the machine: a full or read-only disk, few file descriptors, no memory, a clock that is set back."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, built_alone, lines_spec, listed_files, make_spec, small_spec, write_jsonl
from tests.builders.observing import messages_of_builds
from tests.builders.refusals import assert_nothing_visible
from tests.counts import FULL, SUMMARY, count
from tests.drivers.kill_driver import find_incomplete
from tests.servers.processes import is_running, wait_until
from tokenloom.errors import TokenloomError, WorkerLost, WorkError
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores.local import LocalStore

_ROOT = Path(__file__).parents[2]
_TEXTS = [f"document {i}, said {i % 7} times " * (1 + i % 5) for i in range(400)]


@pytest.mark.parametrize("number", ["ENOSPC", "EDQUOT", "EIO", "EROFS"] if FULL else ["ENOSPC"])
def test_a_disk_that_fails_at_any_operation_leaves_nothing_visible_and_the_build_resumes(
    tmp_path: Path, number: str
) -> None:
    (tmp_path / "spec.json").write_text(small_spec(tmp_path).model_dump_json())
    time.sleep(2.1)  # a younger input's fingerprint is not remembered, so the plan would write nothing
    step = count(37, 1 if number == "ENOSPC" else 10)
    command = [sys.executable, "-m", "tests.drivers.enospc_driver", str(tmp_path), number, str(step)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    tries = [json.loads(line) for line in done.stdout.splitlines()]
    problems = [f"{t['step']}, {t['operation']}: {t['problem']}" for t in tries if t["problem"]]
    assert problems == []
    operations = Counter(item["operation"] for item in tries)
    if step == 1:
        assert set(operations) == {"create", "write", "torn write", "fsync", "replace", "link", "mkdir"}
    assert operations["link"] >= 2
    assert len(tries) > 15
    SUMMARY.append(f"{number} from an operation on, {len(tries)} times: {dict(sorted(operations.items()))}")


# By the command line


def _build(
    spec: Path, *options: str, limits: dict[int, int] | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    def set_limits() -> None:
        for limit, value in (limits or {}).items():
            resource.setrlimit(limit, (value, value))

    command = [sys.executable, "-m", "tokenloom", "build", str(spec), "--direct", "--json", *options]
    return subprocess.run(
        command,
        cwd=_ROOT,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=set_limits,
    )


def _written(spec: BuildSpec, folder: Path) -> Path:
    path = folder / "spec.yaml"
    path.write_text(spec.model_dump_json())
    return path


def _with_transform(spec: BuildSpec, name: str) -> BuildSpec:
    transform = {"function": f"tests.builders.machine_transforms:{name}", "version": "1"}
    return BuildSpec.model_validate(spec.model_dump() | {"documents": {"transform": transform}})


def test_a_transform_that_depends_on_hashes_gives_one_version_the_same_bytes(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["the quick brown fox jumps over a lazy dog"] * 3)
    builds = []
    for seed in ("1", "2"):
        spec = _with_transform(make_spec(tmp_path / seed, [{"kind": "jsonl", "path": str(path)}]), "order_words")
        (tmp_path / seed).mkdir()
        done = _build(_written(spec, tmp_path / seed), "--workers", "1", environment={"PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr
        version = json.loads(done.stdout)["version"]
        builds.append((version, listed_files(spec, version)))
    assert builds[0] == builds[1]


def _assert_same_bytes(spec: BuildSpec, version: str, folder: Path) -> None:
    """Compare a version with an undisturbed build in another store."""
    assert listed_files(spec, version) == built_alone(spec, folder)
    assert find_incomplete(Path(spec.store) / spec.dataset, must_be_visible=True) is None


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that tests and transforms share."""
    monkeypatch.setenv("TOKENLOOM_TEST_NOTES", str(tmp_path))
    return tmp_path


@pytest.fixture
def mounted(notes: Path) -> Iterator[Path]:
    """A file system in memory of 8 MB; skips the test where mounting one is not allowed."""
    folder = notes / "mounted"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    ("transform", "said"), [("fill_disk", "No space left on device"), ("make_read_only", "Read-only file system")]
)
def test_a_disk_that_fails_midway_is_named_and_the_same_command_resumes(
    transform: str, said: str, tmp_path: Path, mounted: Path
) -> None:
    write_jsonl(tmp_path / "data" / "a.jsonl", _TEXTS)
    source = {"kind": "jsonl", "path": str(tmp_path / "data" / "*.jsonl")}
    spec = _with_transform(make_spec(mounted / "store", [source], shard_tokens=5000), transform)
    path = _written(spec, tmp_path)
    done = _build(path, "--workers", "1")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["error"]["exit_code"] == 1
    for part in (str(mounted / "store" / "data"), said):
        assert part in done.stderr
    assert "Traceback" not in done.stderr
    subprocess.run(["mount", "-o", "remount,rw", str(mounted)], check=True)
    assert_nothing_visible(spec)
    (mounted / "ballast").unlink(missing_ok=True)
    (mounted / "ballast").mkdir()  # so that it is not filled again
    plain = _with_transform(spec, "fill_disk")
    _assert_same_bytes(plain, build(plain).version, tmp_path)


def test_a_disk_without_free_inodes_is_reported(tmp_path: Path, mounted: Path) -> None:
    source = {"kind": "jsonl", "path": str(write_jsonl(tmp_path / "a.jsonl", _TEXTS))}
    spec = make_spec(mounted / "store", [source], shard_tokens=5000)
    subprocess.run(["mount", "-o", "remount,nr_inodes=16", str(mounted)], check=True)
    with pytest.raises(TokenloomError, match=rf"{mounted}/.*No space left.*inodes"):
        build(spec)
    assert_nothing_visible(spec)
    subprocess.run(["mount", "-o", "remount,nr_inodes=1000", str(mounted)], check=True)
    _assert_same_bytes(spec, build(spec).version, tmp_path)


# What other workers were writing when a build ends


def _hanging_spec(folder: Path, **fields: Any) -> BuildSpec:
    """Return a spec of four files, each for a worker that hangs while it writes its spill."""
    for number in range(4):
        write_jsonl(folder / "data" / f"{number}.jsonl", [f"{number} {text}" for text in _TEXTS])
    source = {"kind": "jsonl", "path": str(folder / "data" / "*.jsonl")}
    return _with_transform(make_spec(folder / "store", [source], **fields), "hang_while_writing")


def _unfinished(spec: BuildSpec) -> list[str]:
    return LocalStore(Path(spec.store) / spec.dataset).names("work/tmp")


@pytest.mark.slow
def test_a_full_disk_leaves_no_temporary_of_any_of_four_workers(notes: Path) -> None:
    spec = _hanging_spec(notes)
    path = _written(spec, notes)
    for number in range(2):
        (notes / "full").unlink(missing_ok=True)
        done = _build(path, "--workers", "4")
        assert done.returncode == 1, done.stderr
        assert "No space left on device" in done.stderr
        assert "removed 3 unfinished files of processes that ended: " in done.stderr, number
        assert _unfinished(spec) == []
    (notes / "calm").touch()
    done = _build(path, "--workers", "4")
    assert done.returncode == 0, done.stderr
    assert "unfinished" not in done.stderr
    _assert_same_bytes(spec, json.loads(done.stdout)["version"], notes)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_build_that_is_ended_leaves_no_temporary_and_one_beside_it_keeps_all_of_its_own(
    notes: Path, number: signal.Signals
) -> None:
    (notes / "full").touch()  # so that all four hang
    spec = _hanging_spec(notes)
    command = [sys.executable, "-m", "tokenloom", "build", str(_written(spec, notes)), "--direct", "--workers", "4"]
    with subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: len(_unfinished(spec)) == 4, interval=0.05)
            (notes / "calm").touch()
            before = _unfinished(spec)
            other = build(spec.model_copy(update={"seed": 1}), num_workers=2)
            assert other.published
            assert _unfinished(spec) == before
        finally:
            process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    removed = "removed 4 unfinished files of processes that ended: "
    if number == signal.SIGTERM:
        assert removed in said
        assert _unfinished(spec) == []
    else:
        workers = {int(name.rsplit(".", 2)[1].rsplit("-", 2)[1]) for name in before}
        wait_until(lambda: not any(map(is_running, workers)), interval=0.05)
    with messages_of_builds() as messages:
        version = build(spec).version
    assert any(removed in message for message in messages) == (number == signal.SIGKILL)
    assert _unfinished(spec) == []
    _assert_same_bytes(spec, version, notes)


# File descriptors


@pytest.mark.parametrize("one_file", [True, False] if FULL else [False])
def test_64_file_descriptors_suffice_for_any_number_of_files_and_shards(one_file: bool, tmp_path: Path) -> None:
    num_files = 1 if one_file else 70
    for number in range(num_files):
        texts = [f"{number} {text}" for text in _TEXTS[:: 1 if one_file else 20]]
        write_jsonl(tmp_path / "data" / f"{number}.jsonl", texts)
    source = {"kind": "jsonl", "path": str(tmp_path / "data" / "*.jsonl")}
    num_tokens = sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
    spec = make_spec(tmp_path / "store", [source], shard_tokens=num_tokens // 110, splits={"train": 1.0})
    done = _build(_written(spec, tmp_path), "--workers", "2", limits={resource.RLIMIT_NOFILE: 64})
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["splits"]["train"]["shards"] > 70
    assert len(list((tmp_path / "store").rglob("*.spill"))) == num_files
    _assert_same_bytes(spec, result["version"], tmp_path)


def test_too_few_file_descriptors_are_named(tmp_path: Path) -> None:
    spec = lines_spec(tmp_path, _TEXTS)
    held: list[int] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    build(spec.model_copy(update={"store": str(tmp_path / "warm")}))  # all is imported
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        os.close(held.pop())
        with pytest.raises(TokenloomError, match="Too many open files") as caught:
            build(spec)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)
    assert str(tmp_path) in str(caught.value)
    assert_nothing_visible(spec)
    _assert_same_bytes(spec, build(spec).version, tmp_path)


# Memory


def test_a_worker_killed_for_memory_ends_the_build_and_the_same_command_resumes(notes: Path) -> None:
    spec = _with_transform(lines_spec(notes, _TEXTS), "die_once")
    path = _written(spec, notes)
    done = _build(path, "--workers", "2")
    assert done.returncode == 1, done.stderr
    assert f"a worker process ended while encoding {notes / 'a.jsonl'}" in done.stderr
    said = "killed, perhaps for memory: --workers 1; run the same command again, finished work is kept"
    assert said in done.stderr
    assert_nothing_visible(spec)
    done = _build(path, "--workers", "2")
    assert done.returncode == 0, done.stderr
    _assert_same_bytes(spec, json.loads(done.stdout)["version"], notes)


@pytest.mark.parametrize("megabytes", [1, 40, 80, 160] if FULL else [1, 40])
def test_a_worker_that_runs_out_of_memory_fails_the_build_and_names_the_file(megabytes: int, notes: Path) -> None:
    spec = _with_transform(lines_spec(notes, ["short", "long " * 12_000_000]), "leave_little_memory")
    (notes / "bytes").write_text(str(megabytes * 10**6))
    with pytest.raises(WorkerLost, match=r"while .*a\.jsonl.*: out of memory; run the same command again"):
        build(spec, num_workers=1)
    assert_nothing_visible(spec)


# The clock


class _Clock:
    """This process's view of the clock: wrong by `offset` seconds, and set back `backward` seconds at each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offset = self.backward = 0.0
        self.looks = 0
        true_time = time.time
        self._time = true_time
        monkeypatch.setattr(time, "time", self.now)
        monkeypatch.setattr(time, "time_ns", lambda: int(self.now() * 1e9))

    def now(self) -> float:
        """Stand in for time.time."""
        self.looks += 1
        self.offset -= self.backward
        return self._time() + self.offset


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """A clock that a test can set."""
    return _Clock(monkeypatch)


def test_a_clock_set_back_during_a_build_changes_no_bytes(tmp_path: Path, clock: _Clock) -> None:
    spec = small_spec(tmp_path)
    expected = build(spec.model_copy(update={"store": str(tmp_path / "before")})).version
    clock.looks, clock.backward = 0, 3600.0
    version = build(spec).version
    assert clock.looks > 3
    assert version == expected
    _assert_same_bytes(spec, version, tmp_path)


@pytest.mark.parametrize("offset", [-1e8, -3600.0, -1.0, 0.0] if FULL else [-3600.0, -1.0])
def test_a_clock_behind_the_file_times_hides_no_change(tmp_path: Path, clock: _Clock, offset: float) -> None:
    clock.offset = offset
    path = write_jsonl(tmp_path / "a.jsonl", _TEXTS)
    spec = make_spec(tmp_path / "store", [{"kind": "jsonl", "path": str(path)}])
    before, data = path.stat(), path.read_bytes()
    versions = [build(spec).version]
    for word in (b"Document", b"dOcument", b"doCument"):
        path.write_bytes(data.replace(b"document", word))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        versions.append(build(spec).version)
    assert len(set(versions)) == 4
    assert not (tmp_path / "store" / "data" / "work" / "fingerprints.json").exists()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_clock_that_jumps_ahead_harms_no_build_that_runs_on_this_machine(
    tmp_path: Path, clock: _Clock, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    """Another build believes that the temporaries of this one are a day old; elsewhere it would remove them."""
    if not is_known:
        monkeypatch.setattr("tokenloom.storage.stores.local.process_name", lambda _: "elsewhere-1-2-3")
    spec = small_spec(tmp_path)
    store = LocalStore(Path(spec.store) / spec.dataset)
    rename = os.replace
    removed: list[bool] = []

    def replace(source: Any, target: Any) -> None:
        if not removed and str(target).endswith(".tok"):
            clock.offset = 2 * 86_400.0
            store.remove_stale_temporaries()
            clock.offset = 0.0
            removed.append(not Path(source).exists())
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    if is_known:
        build(spec)
    else:
        with pytest.raises(WorkError, match="run the same command again"):
            build(spec)
    assert removed == [not is_known]
    _assert_same_bytes(spec, build(spec).version, tmp_path)
