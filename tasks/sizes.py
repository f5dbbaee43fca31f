"""How large the pieces, runs and tasks of a build are: arithmetic, without a store.

A shard is merged in pieces of its key range, and reads each piece from every file. Its files are spills, or, where a
build has more than MAX_FAN_IN, parts of runs: a run has the documents of neighbouring spills, and is itself made in
parts, each as large as a piece. No byte of a shard depends on these sizes.
"""

from __future__ import annotations

from math import isqrt

MAX_FAN_IN = 1024  # files that a shard reads, and spills of a run
MAX_SPILLS = MAX_FAN_IN**2
MEMORY = 2_000_000_000  # bytes of documents that a worker holds, by default
PIECES_HELD = 4  # at the peak, a worker holds less than these times the bytes of a piece
_MIN_PIECE_BYTES = 2**25  # small pieces use the same memory again
_FILE_PIECE_BYTES = 2**20  # of each file; a read of a piece has a block more, and each needs one for its table
PIECE_DOCUMENTS = 1_000_000  # with the default memory, without ids
_IDS_COST = 8  # an id may take 1 KB
MAX_TASKS = 400  # of a step; Prefect is slow to show and store a run with more task runs
MAX_SMALL_TASKS = 120  # of a step that takes a small part of the time
TASKS_PER_WORKER = 4  # then all workers finish at about the same time


def runs_of(num_spills: int) -> list[tuple[int, int]]:
    """Return the runs of a build as [first, end) of its spills; none if a shard can read all spills itself.

    There are about as many runs as spills in one: then merging and shuffling together read least often.
    """
    if num_spills <= MAX_FAN_IN:
        return []
    count = max(isqrt(num_spills), -(-num_spills // MAX_FAN_IN))
    return [(i * num_spills // count, (i + 1) * num_spills // count) for i in range(count)]


def piece_bytes(num_files: int, memory: int = MEMORY) -> int:
    """Return the most bytes of a piece.

    Args:
        num_files: the files that it is read from.
        memory: bytes of documents that a worker may hold.
    """
    return max(_MIN_PIECE_BYTES, min(num_files * _FILE_PIECE_BYTES, memory // PIECES_HELD))


def num_pieces(num_bytes: int, num_documents: int, num_files: int, has_ids: bool, memory: int = MEMORY) -> int:
    """Return into how many pieces a shard, or the documents of a split in a run, are divided; at least 1.

    Args:
        num_bytes: of their tables, tokens, classes and ids, also of documents that are dropped: gaps are read.
        num_documents: their number.
        num_files: the files that they are read from.
        has_ids: whether documents have ids.
        memory: bytes of documents that a worker may hold.
    """
    max_documents = PIECE_DOCUMENTS * memory // MEMORY // (_IDS_COST if has_ids else 1)
    return max(1, -(-num_bytes // piece_bytes(num_files, memory)), -(-num_documents // max(1, max_documents)))
