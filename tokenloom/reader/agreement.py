"""Before their first batch, ranks compare what they read, through the store of torch's default process group.

It is no collective, which would hang where a pipeline stage makes no loader: one loader of each data rank is enough,
and those that never come are named after a time limit. A rank makes some small requests, however many ranks there are.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from tokenloom.errors import TokenloomError, message_of
from tokenloom.reader.meshes import ranks_text
from tokenloom.reader.ranks import DataRank, process_group

if TYPE_CHECKING:
    from torch.distributed import Store

_LONGEST_PAUSE = 0.25  # seconds
_SWITCH = "compare_ranks=None turns this comparison off"


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
    if distributed is None or distributed.get_backend() in ("fake", "mpi"):  # which have no store that ranks share
        return
    alone = ranks.origin == "arguments" and ranks.world_size == 1
    if alone or not max(2, ranks.world_size) <= distributed.get_world_size():
        return
    from torch.distributed.distributed_c10d import _get_default_store  # torch has no public name for it

    store, rank = distributed.PrefixStore("tokenloom", _get_default_store()), distributed.get_rank()
    try:
        number = store.add(f"comparisons of rank {rank}", 1)  # comparison k of a rank is with those k of the others
        store = distributed.PrefixStore(str(number), store)
        Comparison(store, rank, distributed.get_world_size(), ranks).run(summary, place, seconds)
    except distributed.DistError as error:
        raise TokenloomError(
            "the store of the process group does not answer while ranks compare what they read: the process that "
            f"holds it, mostly rank 0, may have ended; its log says why ({message_of(error)})"
        ) from error


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
        self._compare_rows()
        self._wait(seconds)

    def _fail(self, message: str) -> None:
        """Raise TokenloomError, here and in the ranks that wait."""
        self._store.set("difference", f"{message} ({_SWITCH})")
        self._wait(0)

    def _compare_streams(self, summary: str, place: str) -> None:
        """Compare with the rank that came first."""
        mine = f"rank {self._group_rank} reads {place}: {summary}"
        if self._store.add("first", 1) == 1:
            self._store.set("first summary", summary)
            self._store.set("first text", mine)
        elif self._store.get("first summary").decode() != summary:
            other = self._store.get("first text").decode()
            self._fail(
                f"ranks would read different streams: {'; '.join(sorted([mine, other]))}. Pass the same state and the "
                "same arguments to all of them, take the first batches of several loaders in the same order on all "
                "ranks, and name the version by its 16 digits, because a tag may move"
            )

    def _compare_rows(self) -> None:
        """Compare with the ranks that read the same rows; only then does this rank count as present."""
        own, most = self._ranks.rank, self._group_size // self._ranks.world_size
        count = self._store.add(f"ranks of {own}", 1)
        self._store.set(f"rank {count} of {own}", str(self._group_rank))
        self._check_mesh(own, most)
        if count > most:
            self._fail(
                f"{ranks_text(self._ranks_of(own))} would read the rows of data rank {own}, but with "
                f"{self._ranks.world_size} data ranks, each has {most} of the {self._group_size} ranks: pass the mesh, "
                "or its own data rank to each process"
            )
        if count == 1:
            self._store.add("data ranks", 1)

    def _check_mesh(self, own: int, most: int) -> None:
        """Compare with the first rank of the data rank that has a mesh; it checks those that came before it."""
        key = f"mesh of {own}"
        if len(self._ranks.peers) == most and self._store.add(f"meshes of {own}", 1) == 1:
            self._store.set(key, json.dumps(self._ranks.peers))
            peers, unchecked = list(self._ranks.peers), self._ranks_of(own)
        elif self._store.check([key]):
            peers, unchecked = json.loads(self._store.get(key)), [self._group_rank]
        else:
            return
        if wrong := sorted({*unchecked} - {*peers}):
            self._fail(
                f"{ranks_text(wrong)} would read the rows of data rank {own}, which the mesh of other ranks gives to "
                f"{ranks_text(peers)}: pass the same mesh to the loaders of all ranks"
            )

    def _ranks_of(self, data_rank: int) -> list[int]:
        """Return the ranks of the process group that have come for the rows of a data rank, ascending."""
        count = self._store.add(f"ranks of {data_rank}", 0)
        return sorted(int(self._store.get(f"rank {number} of {data_rank}")) for number in range(1, count + 1))

    def _wait(self, seconds: float) -> None:
        """Return when each data rank has a loader; raise TokenloomError at a difference, or if one has none."""
        end, pause = time.monotonic() + seconds, 0.001
        while True:
            num_data_ranks = self._store.add("data ranks", 0)
            if self._store.check(["difference"]):
                raise TokenloomError(self._store.get("difference").decode())
            if num_data_ranks == self._ranks.world_size:
                return
            if time.monotonic() > end:
                raise TokenloomError(self._describe_missing(seconds))
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _describe_missing(self, seconds: float) -> str:
        world_size = self._ranks.world_size
        found = [self._ranks_of(data_rank) for data_rank in range(world_size)]
        missing = [data_rank for data_rank in range(world_size) if not found[data_rank]]
        absent = sorted({*range(self._group_size)}.difference(*found))
        return (
            f"no loader of data {ranks_text(missing)}, of {world_size}, asks for its first batch within {seconds:g} s. "
            f"Of the process group, {ranks_text(absent)} did not come: they may have failed, or read fewer loaders; a "
            f"longer limit is compare_ranks=seconds, and {_SWITCH}"
        )
