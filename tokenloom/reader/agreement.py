"""Before their first batch, ranks compare what they read, through the store of torch's default process group.

It is no collective, which would hang where a pipeline stage makes no loader: one loader of each data rank is enough,
and those that never come are named after a time limit. A rank makes some small requests, however many ranks there are.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from tokenloom.errors import TokenloomError
from tokenloom.reader.meshes import ranks_text
from tokenloom.reader.ranks import DataRank, process_group

if TYPE_CHECKING:
    from torch.distributed import Store

_LONGEST_PAUSE = 0.25  # seconds
_SWITCH = "compare_ranks=None turns this comparison off"
_numbers = itertools.count()  # comparison k of this process is with comparison k of the others


def compare_ranks(ranks: DataRank, summary: str, place: str, seconds: float) -> None:
    """Raise TokenloomError if ranks of the default process group would read other streams, or wrong rows of it.

    Nothing is compared by one process alone, or where the group can't hold all data ranks.

    Args:
        ranks: of this process.
        summary: what it reads; it must be the same on all ranks.
        place: where it reads it, for the message. Places may differ: each node may have its own copy.
        seconds: how long to wait for a loader of each data rank.
    """
    distributed = process_group()
    if distributed is None or distributed.get_backend() == "fake":
        return
    alone = ranks.origin == "arguments" and ranks.world_size == 1
    if alone or not max(2, ranks.world_size) <= distributed.get_world_size():
        return
    from torch.distributed.distributed_c10d import _get_default_store  # torch has no public name for it

    store = distributed.PrefixStore(f"tokenloom/{next(_numbers)}", _get_default_store())
    Comparison(store, distributed.get_rank(), distributed.get_world_size(), ranks).run(summary, place, seconds)


class Comparison:
    """One comparison, in a store that is empty at first.

    Args:
        store: shared by all ranks.
        group_rank, group_size: this process in the process group, and the number of its ranks.
        ranks: the data rank of this process.
    """

    def __init__(self, store: Store, group_rank: int, group_size: int, ranks: DataRank) -> None:
        self._store, self._group_rank, self._group_size, self._ranks = store, group_rank, group_size, ranks

    def run(self, summary: str, place: str, seconds: float) -> None:
        """Compare; see compare_ranks."""
        self._compare_streams(f"{summary}, data ranks: {self._ranks.world_size}", place)
        for peer in self._ranks.peers:
            self._store.set(f"place of {peer}", str(self._ranks.rank))
        self._store.set(f"data rank of {self._group_rank}", str(self._ranks.rank))
        if self._store.add(f"ranks of {self._ranks.rank}", 1) == 1:
            self._store.add("data ranks", 1)
        self._store.add("ranks", 1)
        self._wait(seconds)
        # Of two ranks that write before they read, at least one reads what the other wrote.
        for rank in {*self._ranks.peers, self._group_rank}:
            expected, found = self._number(f"place of {rank}"), self._number(f"data rank of {rank}")
            if None not in (expected, found) and expected != found:
                raise TokenloomError(
                    f"rank {rank} reads the rows of data rank {found}, but the mesh of other ranks gives it those "
                    f"of data rank {expected}: pass the same mesh to the loaders of all ranks ({_SWITCH})"
                )

    def _compare_streams(self, summary: str, place: str) -> None:
        """Compare with the rank that came first; a difference is written down before this rank counts as present."""
        mine = f"rank {self._group_rank} reads {place}: {summary}"
        if self._store.add("first", 1) == 1:
            self._store.set("first summary", summary)
            self._store.set("first text", mine)
        elif self._store.get("first summary").decode() != summary:
            other = self._store.get("first text").decode()
            message = (
                f"ranks would read different streams: {'; '.join(sorted([mine, other]))}. Pass the same state and the "
                "same arguments to all of them, take the first batches of several loaders in the same order on all "
                f"ranks, and name the version by its 16 digits, because a tag may move ({_SWITCH})"
            )
            self._store.set("difference", message)
            raise TokenloomError(message)

    def _wait(self, seconds: float) -> None:
        """Return when each data rank has a loader; raise TokenloomError at a difference, or if one has none."""
        end, pause = time.monotonic() + seconds, 0.001
        while True:
            num_ranks, num_data_ranks = self._store.add("ranks", 0), self._store.add("data ranks", 0)
            if self._store.check(["difference"]):
                raise TokenloomError(self._store.get("difference").decode())
            if num_data_ranks == self._ranks.world_size:
                return
            if num_ranks == self._group_size or time.monotonic() > end:
                raise TokenloomError(self._describe_missing(seconds))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _number(self, key: str) -> int | None:
        return int(self._store.get(key)) if self._store.check([key]) else None

    def _describe_missing(self, seconds: float) -> str:
        found = [self._number(f"data rank of {rank}") for rank in range(self._group_size)]
        missing = sorted({*range(self._ranks.world_size)} - {*found})
        text = f"no loader of data {ranks_text(missing)}, of {self._ranks.world_size}, asks for its first batch"
        if absent := [rank for rank, data_rank in enumerate(found) if data_rank is None]:
            return (
                f"{text} within {seconds:g} s. Of the process group, {ranks_text(absent)} did not come: they may have "
                f"failed, or read fewer loaders; a longer limit is compare_ranks=seconds, and {_SWITCH}"
            )
        of_first = [rank for rank, data_rank in enumerate(found) if data_rank == self._ranks.rank]
        return (
            f"{text}, though all {self._group_size} ranks of the process group do: {ranks_text(of_first)} would read "
            f"the rows of data rank {self._ranks.rank}. Pass the mesh, or its own data rank to each process ({_SWITCH})"
        )
