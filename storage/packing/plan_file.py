"""The file in which a machine keeps the plan of a shard under "best_fit", so that it is made once.

    <cache folder>/plans/<checksum of the shard's document offsets>-best_fit-<seq_len>

The document offsets, which decide the plan, name it, so it never contradicts its shard, and versions share it. The file
is 16 bytes of xxh3_128, over the format, the packing, T, the checksum of the offsets and all that follows; then the
number of samples, their row offsets, and starts and lengths of the pieces: uint32, or int64 of a shard with 2**32
tokens or more. Mapping and verifying the plan of 1,000,000 documents, 11 MB, takes 1 ms; making it takes 80. Processes
that find a kept plan share its memory. A file is replaced or removed, never changed, so a map of it stays valid.
Nothing is synced: the checksum reveals a file that a power failure cut short.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import xxhash

from tokenloom.storage.cache.cache_settings import check_limit, default_limit
from tokenloom.storage.formats.arrays import AnyArray, UInt64s
from tokenloom.storage.formats.shard import ShardHeader
from tokenloom.storage.packing.best_fit_plan import OrderedSamples, plan_best_fit
from tokenloom.storage.packing.kept_files import keep
from tokenloom.storage.packing.plans import ShardPlan, plan_shard
from tokenloom.storage.stores.local_files import open_regular

Defer: TypeAlias = Callable[[Callable[[], object]], object]  # schedules a call for later

_FORMAT_VERSION = 1  # another one for another layout, or other samples
_LEAST_DOCUMENTS = 2**15  # of a shard whose plan is kept; a smaller one is planned in 10 ms
_LIMIT_SHARE = 50  # plans take at most the cache's limit divided by this
_DIGEST_BYTES = 16
_NAME = re.compile(r"[0-9a-f]{32}-best_fit-\d+(\.[0-9a-f]{32})?\Z")


class PlanFile:
    """The plan of a shard under "best_fit" in the cache folder; several processes may use it at once.

    Args:
        cache_folder: the machine's; it need not exist.
        header: the shard's.
        seq_len: T, in [1, 2**31).
    """

    def __init__(self, cache_folder: Path, header: ShardHeader, seq_len: int) -> None:
        name = f"{header.offsets_checksum.hex()}-best_fit-{seq_len}"
        self.path = cache_folder / "plans" / name
        self._key = f"plan {_FORMAT_VERSION} {name} ".encode()
        self._number = np.dtype("<u4" if header.num_tokens < 2**32 else "<i8")

    def read(self, *, mapped: bool = True) -> OrderedSamples | None:
        """Return the plan; None if the file is missing, damaged or of another format.

        Args:
            mapped: whether to map the file, which holds a file descriptor, instead of reading it into memory.
        """
        try:
            with open_regular(self.path) as file:
                values = self._map(file) if mapped else np.fromfile(file, self._number)
        except (OSError, ValueError):  # ValueError: the file is empty, or was cut inside a number
            return None
        digest, values = np.split(values, [_DIGEST_BYTES // self._number.itemsize])
        if digest.tobytes() != self._digest(values.data.cast("B")):
            return None
        with suppress(OSError):  # a read-only cache is still readable
            os.utime(self.path)  # the time of last use
        num_samples = int(values[0])
        row_offsets, pieces = np.split(values[1:], [num_samples + 1])
        return OrderedSamples(row_offsets, *np.split(pieces, 2))

    def write(self, plan: OrderedSamples, limit_bytes: int) -> bool:
        """Keep the plan; return whether that succeeded.

        Args:
            plan: of the shard.
            limit_bytes: what all plans of the folder may take; the least recently used are removed first.
        """
        arrays = [np.array([len(plan)], self._number), plan.row_offsets, plan.starts, plan.lengths]
        parts = [array.data.cast("B") for array in arrays]
        is_kept = keep(self.path, self._digest(*parts), *parts)
        self._remove_oldest(limit_bytes)
        return is_kept

    def _map(self, file: BinaryIO) -> AnyArray:
        try:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), self._number)
        except OSError:  # no file descriptor is left for the map
            return np.frombuffer(file.read(), self._number)

    def _digest(self, *parts: memoryview) -> bytes:
        digest = xxhash.xxh3_128(self._key)
        for part in parts:
            digest.update(part)
        return digest.digest()

    def _remove_oldest(self, limit_bytes: int) -> None:
        with suppress(OSError):  # another process removes them, or the folder is read-only
            plans = [(path.stat(), path) for path in self.path.parent.iterdir() if _NAME.match(path.name)]
            for found, path in sorted(plans, key=lambda plan: plan[0].st_mtime_ns, reverse=True):
                limit_bytes -= found.st_size
                if limit_bytes < 0:
                    path.unlink(missing_ok=True)


def kept_plan(
    cache_folder: Path,
    packing: str,
    seq_len: int,
    header: ShardHeader,
    offsets: UInt64s,
    defer: Defer | None = None,
    *,
    mapped: bool = True,
) -> ShardPlan:
    """Return where the samples of a shard are; a large plan of "best_fit" is made once on this machine.

    Args:
        cache_folder: keeps the plan; several processes may use it at once.
        packing: one of plans.PACKINGS.
        seq_len: T, in [1, 2**31).
        header: the shard's.
        offsets: (num_documents + 1,) of the shard, verified.
        defer: schedules the write of the plan after other plans are made; None writes it at once.
        mapped: whether a kept plan is mapped, see PlanFile.read.

    Until it is written, a plan takes 8 bytes a sample and 12 a piece.

    Raises StoreError if TOKENLOOM_CACHE_LIMIT is not a size, and there is a plan to keep.
    """
    if packing != "best_fit" or header.num_documents < _LEAST_DOCUMENTS:
        return plan_shard(packing, seq_len, header.num_tokens, offsets)
    file = PlanFile(cache_folder, header, seq_len)
    if (kept := file.read(mapped=mapped)) is not None:
        return kept
    check_limit()  # now: a write that is deferred has no caller
    plan = plan_best_fit(seq_len, offsets)

    def write() -> None:
        file.write(plan.ordered(), _limit_bytes(cache_folder))

    write() if defer is None else defer(write)
    return plan


def _limit_bytes(cache_folder: Path) -> int:
    """Return how much the plans may take; 0 if the folder can't be read: then a line says that it can't be written."""
    try:
        return default_limit(cache_folder) // _LIMIT_SHARE
    except OSError:
        return 0
