"""Measure how fast versions are compared, and that the memory does not grow with them: tables made in memory.

    python benchmarks/diff.py [--documents 100000000] [--order key|content] [--json FILE]

Both versions have about that many documents, in two splits. Between them a document in a thousand was removed, one
added, and two moved; the counts that the comparison finds are checked. `key` compares tables of one order in one merge;
`content` compares versions of different seeds, through a temporary file. The tables are made while they are read, which
is measured alone too. A table in a store takes 52 bytes a document.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from figures import Figure, print_table, write_json
from tokenloom.storage.comparison.compare import FATES, Tally, compare
from tokenloom.storage.comparison.rows import ROW, Rows
from tokenloom.storage.formats.arrays import UInt64s
from tokenloom.storage.formats.documents import BATCH_ROWS
from tokenloom.storage.formats.keys import KEY_SPACE, finalise

MAX_OVERHEAD_MB = 400  # of memory, beyond what the imports need


@dataclass(frozen=True)
class SimulatedDocuments:
    """A version of about `num_ids` made-up documents; a Documents.

    The ids [0, num_ids) are in the order of the keys. A hash of an id says in which split each version has it, if any.
    """

    num_ids: int
    is_new: bool
    key_seed: int | None = 0
    splits: tuple[str, ...] = ("train", "validation")
    input_sources: tuple[str, ...] = ("web", "books", "code")

    @property
    def num_documents(self) -> int:
        """About the number of documents."""
        return self.num_ids

    def batches(self, split: int) -> Iterator[Rows]:
        """Yield the documents of a split."""
        for start in range(0, self.num_ids, BATCH_ROWS):
            ids = np.arange(start, min(start + BATCH_ROWS, self.num_ids), dtype=np.uint64)
            fate = fates_of(ids)
            is_validation = (fate >= 10 + self.is_new) & (fate < 20 + self.is_new)
            is_there = fate != (2 if self.is_new else 1)  # 1 was added, 2 removed
            ids = ids[is_there & (is_validation == bool(split))]
            rows: Rows = np.empty(len(ids), ROW)
            rows["key"] = ids * np.uint64(KEY_SPACE // self.num_ids)
            rows["content"][:, 0], rows["content"][:, 1] = finalise(ids), ids
            rows["row"], rows["shard"], rows["split"] = ids, 0, split
            rows["input"], rows["num_tokens"] = ids % np.uint64(3), 100 + ids % np.uint64(1000)
            yield rows


def fates_of(ids: UInt64s) -> UInt64s:
    """Return a number in [0, 1000) for each id: 1 added, 2 removed, 10 or 20 moved, all others kept."""
    return finalise(ids + np.uint64(7)) % np.uint64(1000)


def expected_counts(num_ids: int) -> dict[str, int]:
    """Return how many documents have each fate."""
    counts = np.zeros(1000, np.int64)
    for start in range(0, num_ids, 2**20):
        ids = np.arange(start, min(start + 2**20, num_ids), dtype=np.uint64)
        counts += np.bincount(fates_of(ids).astype(np.int64), minlength=1000)
    found = {"added": counts[1], "removed": counts[2], "moved": counts[10] + counts[20]}
    return {fate: int(found.get(fate, num_ids - sum(found.values()))) for fate in FATES}


def compared(num_ids: int, order: str) -> dict[str, int]:
    """Compare two versions; return how many documents have each fate."""
    key_seed = 0 if order == "key" else None
    old, new = (SimulatedDocuments(num_ids, is_new, key_seed) for is_new in (False, True))
    tally = Tally(old, new)
    for fates in compare(old, new, lambda _: None):
        tally.add(fates)
    return dict(zip(FATES, tally.by_source[:, :, 0].sum(axis=1).tolist(), strict=True))


def seconds_to_make(num_ids: int) -> float:
    """Return how long it takes to make the tables and do nothing with them."""
    start = time.perf_counter()
    for is_new in (False, True):
        for split in (0, 1):
            for _ in SimulatedDocuments(num_ids, is_new).batches(split):
                pass
    return time.perf_counter() - start


def peak_mb() -> float:
    """Return the largest memory of this process so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Measure how fast versions are compared.")
    parser.add_argument("--documents", type=int, default=10**8)
    parser.add_argument("--order", choices=("key", "content"), default="key")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    before, start = peak_mb(), time.perf_counter()
    found = compared(arguments.documents, arguments.order)
    seconds, peak = time.perf_counter() - start, peak_mb()
    making = seconds_to_make(arguments.documents)
    if found != (expected := expected_counts(arguments.documents)):
        raise SystemExit(f"found {found}, expected {expected}")
    figures = [
        Figure("time, with making the tables", "s", [seconds]),
        Figure("of which making the tables", "s", [making]),
        Figure("documents of both versions", "M/s", [2 * arguments.documents / seconds / 1e6]),
        Figure("memory beyond the imports", "MB", [peak - before], f"< {MAX_OVERHEAD_MB}"),
    ]
    print(f"2 versions of {arguments.documents:,} documents, by {arguments.order}: {found}")
    print_table(figures)
    if arguments.json:
        write_json(arguments.json, figures, documents=arguments.documents, order=arguments.order)


if __name__ == "__main__":
    main()
