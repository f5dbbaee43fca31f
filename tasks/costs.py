"""What a build costs at an object store: the requests and bytes of each step, by arithmetic, without a store.

A request that is priced as a read is a GET or HEAD; as a write, a PUT, POST or listing. Spills and parts of runs are
read in ranges of whole blocks, and most requests of a large build are these: pieces x files that a piece is made of. A
spill without a document of a piece is not read, so numbers are those that are expected of random keys. Marks, and what
an earlier build encoded, are not counted.
"""

from __future__ import annotations

from math import exp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.formats.document_table import SCHEMA
from tokenloom.storage.stores.s3 import PART_BYTES
from tokenloom.storage.work.spill import TABLE_DTYPE
from tokenloom.tasks.building.check import NUM_SAMPLED, SAMPLED_TOKENS
from tokenloom.tasks.sizes import MAX_TASKS, MEMORY, TASKS_PER_WORKER, num_pieces, runs_of

_BLOCK_BYTES, _HEAD_BYTES, _SAMPLED_ROWS = 2**17, 2**16, 1024  # of spills
_INPUT_BYTES, _INPUT_HEAD_BYTES = 2**24, 2**20  # of an input: in a request, and of its structure, or behind an end
_PAGE, _RECORD_BYTES, _ENTRY_BYTES = 1000, 1000, 200  # names of a listing; of a record, of a spill in an assignment
_CHECKED_SHARDS, _CHECKED_RUNS, _GAP_TOKENS, _JOB_BYTES = 1000, 10, 8192, 64_000_000
ROW_BYTES = 8 + sum(field.type.bit_width // 8 for field in SCHEMA)  # of a document's offset and its row in a table


Cost = NDArray[np.float64]  # (4,) what a step costs, see COLUMNS
COLUMNS = ("reads", "writes", "bytes_read", "bytes_written")


class Volume(NamedTuple):
    """What a build reads and makes, none of it 0, and how it runs.

    `num_files` have `input_bytes`; `are_remote` says that they are in an object store. A token has `token_bytes`: those
    of its id, and one for its class if there are classes. `splits` are the shares of the splits. Each of `num_workers`
    holds `memory` bytes of documents.
    """

    num_files: int
    input_bytes: int
    are_remote: bool
    num_partitions: int
    num_spills: int
    num_documents: int
    num_tokens: int
    token_bytes: tuple[int, ...]
    has_ids: bool
    splits: tuple[float, ...]
    shard_tokens: int
    num_workers: int = 1
    memory: int = MEMORY

    @property
    def spill_bytes(self) -> int:
        """All bytes of the spills, but for headers and ids of documents."""
        return self.num_documents * TABLE_DTYPE.itemsize + self.num_tokens * sum(self.token_bytes)

    @property
    def num_runs(self) -> int:
        """The number of runs; 0 if shards are made of spills."""
        return len(runs_of(self.num_spills))

    def shape(self, share: float) -> tuple[int, int, int]:
        """Return the shards of a split, all pieces of them, and the parts of each run, 1 if there are no runs."""

        def pieces(part: float, num_files: int) -> int:
            sizes = int(part * self.spill_bytes), int(part * self.num_documents)
            return num_pieces(*sizes, num_files, self.has_ids, self.memory)

        shards = max(1, round(share * self.num_tokens / self.shard_tokens))
        runs = self.num_runs
        parts = pieces(share / runs, self.num_spills // runs) if runs else 1
        return shards, shards * pieces(share / shards, runs or self.num_spills), parts


def _cost(reads: float, writes: float = 0, bytes_read: float = 0, bytes_written: float = 0) -> Cost:
    return np.array([reads, writes, bytes_read, bytes_written])


def requests_of(of: Volume) -> dict[str, Cost]:
    """Return what each step of a build on one machine costs."""
    shards = sum(of.shape(share)[0] for share in of.splits)
    records = _listed(of.num_partitions, of.num_partitions + of.num_spills)
    # Of a remote input: its length, a block behind the end, and the length again, which shows that it did not change.
    read = _heads(of.num_partitions, 4) + _cost(of.input_bytes // _INPUT_BYTES, 0, of.input_bytes)
    steps = {
        "plan": [_cost(3, 7), _heads(of.num_files * of.are_remote, 2)],
        "tokenize": [*[read] * of.are_remote, _written(of.spill_bytes, of.num_spills), _cost(0, of.num_partitions)],
        "assign": [records, _cost(0, 1, 0, of.num_spills * _ENTRY_BYTES)],
        "merge": _merge(of) if of.num_runs else [],
        "shuffle": _shuffle(of),
        "check": _check(of, min(_CHECKED_SHARDS, shards)),
        "publish": [_cost(3, 6 + len(of.splits) + 4 * shards // _PAGE)],
    }
    return {name: np.sum(costs, axis=0) for name, costs in steps.items() if costs}


def _merge(of: Volume) -> list[Cost]:
    costs: list[Cost] = []
    num_parts = 0
    for share in of.splits:
        parts = of.shape(share)[2]
        num_parts += parts
        costs.append(_ranges(of, share, of.num_spills, of.num_spills * parts, of.spill_bytes / of.num_spills))
        costs.append(_written(share * of.spill_bytes, of.num_runs * parts))
    made = of.num_runs * num_parts
    listed = [_listed(made, of.num_partitions + of.num_spills + made), _listed(0, of.num_partitions + of.num_spills)]
    return [*costs, *listed, _cost(0, made), _headers(of, of.num_spills, made, num_parts)]


def _shuffle(of: Volume) -> list[Cost]:
    costs, num_shards, num_parts, merged = list[Cost](), 0, 0, of.num_runs or of.num_spills
    for share in of.splits:
        shards, pieces, parts = of.shape(share)
        num_shards += shards
        num_parts += parts
        size = of.spill_bytes / merged / parts * (share if of.num_runs else 1)  # a part of a run has one split
        # A part of a run that ends within a piece is one more file of it.
        costs.append(_ranges(of, share, merged * parts, merged * (pieces + parts - 1), size))
        sizes = *(of.num_tokens * width for width in of.token_bytes), of.num_documents * ROW_BYTES
        costs += [_written(share * num_bytes, shards) for num_bytes in sizes]
    readers = min(of.num_workers, num_shards)
    files = merged * (num_parts if of.num_runs else 1)
    read = _cost(2 * num_shards + readers, 2 * num_shards, readers * of.num_spills * _ENTRY_BYTES)
    return [*costs, read, _headers(of, files, num_shards, num_shards / num_parts)]


def _check(of: Volume, num_shards: int) -> list[Cost]:
    """Return what it costs to read documents again, and those of them that lie apart in shards."""
    count = min(of.num_documents, NUM_SAMPLED, SAMPLED_TOKENS * of.num_documents // of.num_tokens)
    jobs = min(_CHECKED_RUNS, of.num_files + of.input_bytes // _JOB_BYTES)
    apart = count * exp(-_GAP_TOKENS * count / jobs / of.num_tokens)
    return [_cost(apart), _heads(num_shards, 4), _heads(jobs * of.are_remote, 4)]


def _heads(num_files: float, num_reads: int) -> Cost:
    """Return what it costs to read lengths and structure of files, in this many requests each."""
    return _cost(num_files * num_reads, 0, num_files * _INPUT_HEAD_BYTES)


def _listed(num_records: float, num_names: float) -> Cost:
    """Return what it costs to list names, and to read records among them."""
    return _cost(num_records, 1 + num_names // _PAGE, num_records * _RECORD_BYTES)


def _written(num_bytes: float, num_files: float) -> Cost:
    """Return what it costs to write files of the same size: one request each, or those of an upload in parts."""
    each = num_bytes / num_files
    return _cost(0, num_files * (1 if each <= PART_BYTES else 2 - -each // PART_BYTES), 0, num_bytes)


def _headers(of: Volume, num_files: int, num_jobs: int, jobs_of_file: float) -> Cost:
    """Return what it costs to read the headers of files: once in each worker that has a job that needs a file."""
    batches = min(1.0, max(MAX_TASKS, TASKS_PER_WORKER * of.num_workers) / num_jobs)  # of a job
    times = num_files * min(of.num_workers, num_jobs, 1 + batches * jobs_of_file)
    size = of.spill_bytes / num_files
    header = 300 + 16 * size / _BLOCK_BYTES + 8 * of.num_documents / num_files / _SAMPLED_ROWS
    return _cost(times * (1 + (header > _HEAD_BYTES)), 0, times * max(min(_HEAD_BYTES, size + header), header))


def _ranges(of: Volume, share: float, num_files: int, num_ranges: int, size: float) -> Cost:
    """Return what it costs to read a split from files of a size, in ranges of the table, tokens, classes and ids."""
    documents = share * of.num_documents / num_ranges
    in_file = share * of.num_documents / num_files
    tokens = share * of.num_tokens / num_ranges
    columns = [(1 - exp(-documents), width * tokens) for width in of.token_bytes]
    columns += [(1 - exp(-documents), 20 * documents)] * of.has_ids
    columns += [(1 - exp(-in_file), min(in_file, documents + _SAMPLED_ROWS) * TABLE_DTYPE.itemsize)]
    moved = sum(is_there * min(size, wanted + _BLOCK_BYTES) for is_there, wanted in columns)
    return _cost(num_ranges * sum(is_there for is_there, _ in columns), 0, num_ranges * moved)
