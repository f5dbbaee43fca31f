"""Shares of a build that are killed, as separate programs; test_shares.py starts it.

    python -m tests.drivers.share_driver FOLDER NUM_KILLS SEED

Reads FOLDER/spec.json and FOLDER/expected.json, the hashes of the files of an undisturbed build. Forks several shares
at once, as machines that share a store would run them: kills some, changes their number, until NUM_KILLS were killed.
Prints {"kills", "builds", "problems"}.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import uuid
from functools import partial
from pathlib import Path

from tests.builders.datasets import build, listed_files
from tests.drivers.kill_driver import ended, forked, started
from tokenloom.flows.direct import share_from_spec
from tokenloom.spec.build_spec import BuildSpec
from tokenloom.tasks import sizes
from tokenloom.tasks.running.steps import Share

_MAX_SHARES = 16
_KILLS_PER_BUILD = 4
_PASSES = 4  # over all shares: as many as there are steps that shares divide


class _Machines:
    """Machines that build versions of one spec in shares, and what went wrong; `seconds` bounds the time to a kill."""

    def __init__(self, spec: BuildSpec, expected: dict[str, str], seed: int) -> None:
        self._spec, self._expected = spec, expected
        self._random = random.Random(seed)
        self.kills, self.builds, self.seconds = 0, 0, 1.0
        self.problems: list[str] = []

    def build(self) -> None:
        """Build once: kill shares, let all shares run until nothing is left, publish, and compare."""
        self.builds += 1
        spec = self._spec.model_copy(update={"store": f"{self._spec.store}/{uuid.uuid4().hex}"})
        for _ in range(_KILLS_PER_BUILD):
            self._kill_some(spec)
        start = time.monotonic()
        for _ in range(_PASSES):
            for index in range(2):
                if status := forked(partial(share_from_spec, spec, Share(index, 2))):
                    self.problems.append(f"build {self.builds}: an undisturbed share ended with {status}")
        self.seconds = (time.monotonic() - start) / (2 * _PASSES)
        if status := forked(lambda: self._finish(spec)):
            self.problems.append(f"build {self.builds}: the last build ended with {status}, or its bytes differ")

    def _kill_some(self, spec: BuildSpec) -> None:
        """Run three shares, one of them twice and one of another number of shares, and kill at least one."""
        count, other = self._random.randint(1, _MAX_SHARES), self._random.randint(1, _MAX_SHARES)
        index = self._random.randrange(count)
        shares = [Share(index, count), Share(index, count), Share(self._random.randrange(other), other)]
        pids = [started(partial(share_from_spec, spec, share)) for share in shares]
        time.sleep(self._random.uniform(0, self.seconds))
        killed = self._random.sample(pids, self._random.randint(1, len(pids)))
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            status = ended(pid)
            self.kills += status == -signal.SIGKILL
            if status not in (0, -signal.SIGKILL):
                self.problems.append(f"build {self.builds}: a share that lost others ended with {status}")

    def _finish(self, spec: BuildSpec) -> None:
        shown = share_from_spec(spec, Share(0, 1))
        assert shown["left"] == {}, shown
        assert not shown["published"], shown
        result = build(spec)
        assert result.published
        assert result.num_encoded == 0, "the last build encoded"
        assert listed_files(spec, result.version) == self._expected


def main(folder: Path, num_kills: int, seed: int) -> None:
    """Kill shares until enough were killed; print what happened."""
    sizes.MAX_FAN_IN = 4
    os.fsync = lambda fd: None  # a SIGKILL loses no page, and the device is slow
    spec = BuildSpec.model_validate_json((folder / "spec.json").read_text())
    machines = _Machines(spec, json.loads((folder / "expected.json").read_text()), seed)
    while machines.kills < num_kills and not machines.problems:
        machines.build()
    print(json.dumps({"kills": machines.kills, "builds": machines.builds, "problems": machines.problems}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
