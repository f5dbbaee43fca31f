"""Two concurrent builders of one dataset: a version each, the right bytes, and tags that only move forward."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, listed_files, make_spec, write_jsonl, write_parquet
from tests.counts import SUMMARY, count
from tests.drivers.kill_driver import find_incomplete
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.storage.stores.local import LocalStore
from tokenloom.storage.versions import tags
from tokenloom.storage.versions.published import published_versions

_ROOT = Path(__file__).parents[2]
# The command line, which starts to build when it reads a line: by then both have imported nearly everything.
_BUILD = """
import sys
import tokenloom.cli.commands.build, tokenloom.cli.display, tokenloom.flows.direct, tokenloom.spec.loading
from tokenloom.cli.main import main
print("ready", file=sys.stderr, flush=True)
sys.stdin.readline()
sys.exit(main(["build", "--direct", "--json", *sys.argv[1:]]))
"""


def begin(builders: list[subprocess.Popen[str]]) -> None:
    """Start the builders together once all are ready."""
    for builder in builders:
        assert builder.stderr is not None
        assert builder.stderr.readline() == "ready\n"
    for builder in builders:
        assert builder.stdin is not None
        builder.stdin.write("\n")
        builder.stdin.flush()


class _Inputs:
    """Two small files, and the specs over them."""

    def __init__(self, folder: Path) -> None:
        texts = [f"document {i}, said {i % 7} times" * (1 + i % 5) for i in range(60)]
        self.folder = folder
        self._sources = [
            {"kind": "parquet", "path": str(write_parquet(folder / "a.parquet", texts[:40], group_rows=8))},
            {"kind": "jsonl", "path": str(write_jsonl(folder / "b.jsonl", texts[30:]))},
        ]

    def spec(self, seed: int, store: str = "store") -> BuildSpec:
        """Return a spec of three shards or more."""
        splits = {"train": 0.8, "validation": 0.2}
        return make_spec(self.folder / store, self._sources, splits=splits, shard_tokens=800, seed=seed)

    def build_together(self, seeds: list[int], num_workers: int) -> list[dict[str, Any]]:
        """Run one build per seed, all at once; return the output of each. Each must succeed."""
        builders = [self.start_builder(number, seed, num_workers) for number, seed in enumerate(seeds)]
        begin(builders)
        outputs = [builder.communicate(timeout=120) for builder in builders]
        assert [builder.returncode for builder in builders] == [0] * len(seeds), outputs
        return [json.loads(output) for output, _ in outputs]

    def start_builder(self, number: int, seed: int, num_workers: int) -> subprocess.Popen[str]:
        """Start the process of a build, which waits for `begin`."""
        path = self.folder / f"{number}.yaml"
        path.write_text(self.spec(seed).model_dump_json())
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", _BUILD, "--workers", str(num_workers), str(path)]
        return subprocess.Popen(command, cwd=_ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe)

    def assert_right(self, seed: int, version: str) -> None:
        """Compare all files of a version with those of a build that ran on its own."""
        alone = self.spec(seed, f"alone-{seed}")
        assert build(alone).version == version
        assert listed_files(self.spec(seed), version) == listed_files(alone, version)

    def assert_store_right(self, log_before: list[tags.TagEntry], *, was_killed: bool = False) -> list[tags.TagEntry]:
        """Check what is visible, and that the tag's log has only grown; return the log."""
        store = LocalStore(self.folder / "store" / "data")
        assert find_incomplete(store.root, must_be_visible=True) is None
        assert was_killed or store.names("work/tmp") == []
        log = tags.log(store, "latest")
        assert log[: len(log_before)] == log_before
        before = [None, *(entry.version for entry in log)]
        assert [entry.previous for entry in log] == before[:-1]
        return log


@pytest.fixture
def inputs(tmp_path: Path) -> _Inputs:
    return _Inputs(tmp_path)


def _num_workers(number: int) -> int:
    return 2 if number % 4 == 3 else 0


def test_two_builders_of_one_spec_publish_one_version(inputs: _Inputs) -> None:
    log: list[tags.TagEntry] = []
    together, rounds = 0, count(2, 100)
    for number in range(rounds):
        results = inputs.build_together([number, number], _num_workers(number))
        version = results[0]["version"]
        assert results[1]["version"] == version
        assert sorted(result["published"] for result in results) == [False, True]
        assert [result["tag_note"] for result in results] == [None, None]
        inputs.assert_right(number, version)
        log = inputs.assert_store_right(log)
        assert [entry.version for entry in log].count(version) == 1
        assert len(log) == number + 1
        together += all(result["partitions_encoded"] for result in results)
    store = LocalStore(inputs.folder / "store" / "data")
    assert len(published_versions(store)) == rounds
    assert together
    SUMMARY.append(f"two builders of one spec, {rounds} times: {together} times both encoded, always one version")


def test_two_builders_of_different_specs_publish_both_and_the_tag_names_one(inputs: _Inputs) -> None:
    log: list[tags.TagEntry] = []
    left_alone, rounds = 0, count(1, 100)
    for number in range(rounds):
        seeds = [2 * number, 2 * number + 1]
        results = inputs.build_together(seeds, _num_workers(number))
        versions = [result["version"] for result in results]
        assert all(result["published"] for result in results)
        for seed, version in zip(seeds, versions, strict=True):
            inputs.assert_right(seed, version)
        before, log = len(log), inputs.assert_store_right(log)
        moved = [result["version"] for result in results if result["tag_moved"]]
        assert sorted(entry.version for entry in log[before:]) == sorted(moved)
        assert moved
        for mine, other in zip(results, versions[::-1], strict=True):
            assert mine["tag_moved"] != bool(mine["tag_note"])
            assert mine["tag_moved"] or other in mine["tag_note"]
        left_alone += len(versions) - len(moved)
    SUMMARY.append(f"two builders of other specs, {rounds} times: the tag was left alone {left_alone} times")


def test_a_builder_completes_whenever_the_other_is_killed(inputs: _Inputs) -> None:
    generator = random.Random(5)
    log: list[tags.TagEntry] = []
    killed, rounds = 0, count(1, 50)
    for number in range(rounds):
        victim, other = (inputs.start_builder(i, number, _num_workers(number)) for i in range(2))
        begin([victim, other])
        time.sleep(generator.uniform(0, 0.5))
        victim.kill()
        victim.communicate()
        killed += victim.returncode == -signal.SIGKILL
        output, errors = other.communicate(timeout=120)
        assert other.returncode == 0, errors
        inputs.assert_right(number, json.loads(output)["version"])
        log = inputs.assert_store_right(log, was_killed=True)
    assert killed
    SUMMARY.append(f"of two builders one was killed, {killed} times of {rounds}: the other published")
