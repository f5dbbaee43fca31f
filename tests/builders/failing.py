"""Steps of a build that fail in the middle."""

from __future__ import annotations

import pytest

from tokenloom.errors import CheckError
from tokenloom.storage.work.shard_records import ShardRecord
from tokenloom.tasks.shuffling.shuffle import ShuffleJob, shuffle_shard


def fail_at_the_third_shard(patch: pytest.MonkeyPatch) -> None:
    """Let builds in this process fail once, with a CheckError, at their third shard."""
    made: list[ShuffleJob] = []

    def fail(job: ShuffleJob) -> ShardRecord:
        made.append(job)
        if len(made) == 3:
            raise CheckError("a failure half way")
        return shuffle_shard(job)

    patch.setattr("tokenloom.flows.build_steps.shuffle_shard", fail)
