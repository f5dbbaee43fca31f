"""Steps of a build that fail in the middle."""

from __future__ import annotations

import pytest

from tokenloom.errors import CheckError
from tokenloom.storage.work.records import ShardRecord
from tokenloom.tasks.planning.plan import Build
from tokenloom.tasks.shuffling.shuffle import shuffle_shard


def fail_at_the_third_shard(patch: pytest.MonkeyPatch) -> None:
    """Let builds in this process fail once, with a CheckError, at their third shard."""
    made: list[int] = []

    def fail(build: Build, position: int) -> ShardRecord:
        made.append(position)
        if len(made) == 3:
            raise CheckError("a failure half way")
        return shuffle_shard(build, position)

    patch.setattr("tokenloom.flows.build_steps.shuffle_shard", fail)
