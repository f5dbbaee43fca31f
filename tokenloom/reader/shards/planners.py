"""The threads that plan the samples of shards ahead of their use, and write plans to the machine's cache."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenloom.reader.shards.one_shard import OpenShard

_WAIT_SECONDS = 0.7
_log = logging.getLogger("tokenloom")


class Planners:
    """Threads that plan shards, and one that writes the plans.

    A write takes as long as a plan, so it waits until the first batches are made: until `begin_writing` or `close`, and
    no longer than 0.7 s, because a loader that is dropped calls neither.

    Args:
        num_threads: how many shards are planned at a time.
    """

    def __init__(self, num_threads: int) -> None:
        self._planning = ThreadPoolExecutor(num_threads, "tokenloom-plan")
        self._writing = ThreadPoolExecutor(1, "tokenloom-keep")
        self._may_write = threading.Event()

    def plan(self, shard: OpenShard) -> None:
        """Plan the samples of a shard, and return when that is done; raises what OpenShard.make_plan raises."""
        try:
            planned = self._planning.submit(shard.make_plan, self._defer)
        except RuntimeError:  # closed, or the program ends
            shard.make_plan()
        else:
            planned.result()

    def begin_writing(self) -> None:
        """Write the plans that were made, and those to come."""
        self._may_write.set()

    def close(self) -> None:
        """End the threads, which still make and write the plans that they were asked for; do not wait for them."""
        self.begin_writing()
        self._planning.shutdown(wait=False)
        self._writing.shutdown(wait=False)

    def _defer(self, write: Callable[[], object]) -> None:
        try:
            self._writing.submit(self._write, write)
        except RuntimeError:  # closed, or the program ends
            write()

    def _write(self, write: Callable[[], object]) -> None:
        if not self._may_write.wait(_WAIT_SECONDS):
            self.begin_writing()
        try:
            write()
        except Exception:  # noqa: BLE001  (it has no caller, and reading goes on without the file)
            _log.warning("a plan of best_fit was not kept, so it will be made again", exc_info=True)
