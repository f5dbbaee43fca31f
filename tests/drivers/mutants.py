"""Mutants of good files, read as a build reads them and as plain libraries do.

Child processes read each mutant twice: with the steps of a build, and with tests/builders/plain_reading.py. The outcome
is one of

    right    the same rows as the plain reading: those of the good file, or what the damage made of them
    refused  an InputError that names the file
    lost     the worker process died of it; the error names the file, and the parent continues
    wrong    other rows, fewer rows, rows where the plain reading finds damage, a refusal of what it reads whole,
             an error without a name, more memory than the limit, more than a minute: a defect
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.builders.good_files import GoodFile, good_files
from tests.builders.mutations import mutate
from tests.builders.plain_reading import plain_rows
from tests.drivers.memory_driver import peak_bytes
from tokenloom.errors import InputError, WorkerLost
from tokenloom.storage.formats.manifest import TokenizerEntry
from tokenloom.storage.stores.local import LocalStore
from tokenloom.tasks.encoding.tokenization import read_documents
from tokenloom.tasks.planning.inputs import InputFile
from tokenloom.tasks.planning.plan import Build, Partition, cut_file
from tokenloom.tasks.rows.rules import RowRules
from tokenloom.tasks.running.workers import STOPPED, WorkerPool
from tokenloom.tasks.sources import Rows
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import text_bytes

SEED = 20261121
SECONDS = 60
MAX_BYTES = 10**6  # of a document
MEMORY = 10**9 + 4 * MAX_BYTES

# Refusals that are right although a plain reading finds all rows: bytes before or after them are not ignored.
STRICTER = (
    "bytes after its end of stream",
    "no end of stream after its last record batch",
    "its first bytes are those of",
    "codec can't decode byte",  # in the name of another column
)


@dataclass(frozen=True)
class Case:
    """A file on disk and how it is read."""

    path: str
    options: dict[str, Any]


@dataclass
class Outcome:
    """The result of reading: the texts that are not null and the number of rows, or the error."""

    texts: list[str] | None
    num_rows: int = 0
    said: str = ""
    peak: int = 0
    is_lost: bool = False
    is_hang: bool = False
    fault: str = ""


@dataclass
class Tally:
    """Counts of a format; `wrong` describes each defect."""

    right: int = 0
    changed: int = 0  # of the right ones, those whose rows are not the good file's
    refused: int = 0
    lost: int = 0
    wrong: list[str] = field(default_factory=list)
    peak: int = 0


def _batches(case: Case) -> Iterator[Rows]:
    options = {"text": "text", "separator": None, "max_bytes": MAX_BYTES, "on_error": "fail", **case.options}
    file = InputFile("source", Path(case.path).name, case.path, 1, "xxh3_128:0", options, {})
    rules = RowRules(0, None, options["max_bytes"], options["on_error"], None, True, 0, [("train", 1.0)])
    build = Build(LocalStore(""), "data", "", TokenizerEntry("byte", "", "", 257, 256), {"kind": "byte"}, rules)
    for part in cut_file(file):
        partition = Partition(**vars(part), input_index=0, spill_name="", file=file)
        yield from read_documents(build, partition, load_tokenizer({"kind": "byte"}))


def read_as_built(case: Case, keep_texts: bool = True) -> Outcome:
    """Read a file by the steps of a build, in a worker; errors other than InputError are raised.

    Without `keep_texts`, `texts` are the numbers of documents and of bytes.
    """
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak of the process
    texts: list[str] = []
    num_rows = num_documents = num_bytes = 0
    try:
        for rows in _batches(case):
            num_rows, num_documents = num_rows + rows.num_read, num_documents + len(rows.rows)
            if keep_texts:
                texts += rows.texts.to_pylist()
            else:
                num_bytes += int(np.diff(text_bytes(rows.texts)[1]).sum())
            del rows
    except InputError as error:
        return Outcome(None, said=str(error), peak=peak_bytes())
    return Outcome(texts if keep_texts else [str(num_documents), str(num_bytes)], num_rows, peak=peak_bytes())


def read_plainly(case: Case) -> Outcome:
    """Read a file with plain libraries, in a worker."""
    try:
        rows = plain_rows(case.path, Path(case.path).read_bytes(), case.options)
    except Exception as error:  # noqa: BLE001  (whatever the libraries raise is a refusal)
        return Outcome(None, said=f"{type(error).__name__}: {error}")
    return Outcome([text for text in rows if text is not None], len(rows))


class Children:
    """A pool of one worker; one that was killed is replaced by another."""

    def __init__(self) -> None:
        self._pool = WorkerPool(1)

    def call(self, function: Callable[[Case], Outcome], case: Case) -> Outcome:
        """Return the result of a function that the worker runs within SECONDS."""
        timer = threading.Timer(SECONDS, self._pool.close)
        timer.start()
        try:
            return self._pool.call(function, case)
        except WorkerLost as error:
            self._pool.close()
            self._pool = WorkerPool(1)
            is_hang = str(error) == STOPPED
            return Outcome(None, is_hang=is_hang, is_lost=not is_hang, said=str(error))
        except Exception as error:  # noqa: BLE001  (an error that no user should see is counted, all of them)
            return Outcome(None, fault=f"{type(error).__name__}: {error}")
        finally:
            timer.cancel()

    def close(self) -> None:
        """End the worker."""
        self._pool.close()


def judge(case: Case, ours: Outcome, plain: Outcome, good: Outcome, tally: Tally) -> None:
    """Count an outcome, or describe in `tally.wrong` why it is wrong."""
    tally.peak = max(tally.peak, ours.peak)
    is_whole = plain.texts is not None and (plain.texts, plain.num_rows) == (good.texts, good.num_rows)
    if ours.is_hang:
        tally.wrong.append(f"more than {SECONDS} s")
    elif ours.fault:
        tally.wrong.append(ours.fault)
    elif ours.peak > MEMORY:
        tally.wrong.append(f"{ours.peak:,} bytes of memory")
    elif ours.texts is not None:
        if plain.texts is None and (ours.texts, ours.num_rows) != (good.texts, good.num_rows):
            tally.wrong.append(f"read, where plain reading says {plain.said}")
        elif plain.texts is not None and (ours.texts, ours.num_rows) != (plain.texts, plain.num_rows):
            tally.wrong.append(f"{ours.num_rows} rows, {plain.num_rows} in plain reading, or other texts")
        else:
            tally.right += 1
            tally.changed += not is_whole
    elif case.path not in ours.said:
        tally.wrong.append(f"a message without the file: {ours.said}")
    elif is_whole and not any(words in ours.said for words in STRICTER):
        tally.wrong.append(f"plain reading finds all rows; {ours.said}")
    elif ours.is_lost:
        tally.lost += 1
    else:
        tally.refused += 1


def mutants(files: list[GoodFile], count: int, seed: int) -> Iterator[tuple[GoodFile, bytes]]:
    """Yield `count` (good file, damaged bytes); compressed or decompressed bytes of a file are damaged."""
    rng = random.Random(seed)
    for _ in range(count):
        good = rng.choice(files)
        plain = [other.data for other in files if other.pack is None]
        if good.pack and rng.random() < 0.4:
            yield good, good.pack(mutate(good.format, good.data, rng, plain))
        else:
            yield good, mutate(good.format, good.whole, rng, [other.whole for other in files])


def run(count: int, folder: Path, seed: int = SEED) -> dict[str, Tally]:
    """Read `count` mutants of each format, which the seed decides; return the outcomes.

    Files lie in `folder`, one at a time; a mutant that goes wrong stays there.
    """
    tallies: dict[str, Tally] = {}
    ours, plain = Children(), Children()
    for name, files in good_files().items():
        tally = tallies[name] = Tally()
        known = {}
        for good in files:
            case = _written(folder, good, good.whole)
            known[good.name] = plain.call(read_plainly, case)
            judge(case, ours.call(read_as_built, case), known[good.name], known[good.name], tally)
        assert (tally.right, tally.changed, tally.wrong) == (len(files), 0, []), tally
        tally.right = 0
        for i, (good, data) in enumerate(mutants(files, count, seed)):
            found = len(tally.wrong)
            case = _written(folder, good, data)
            judge(case, ours.call(read_as_built, case), plain.call(read_plainly, case), known[good.name], tally)
            if len(tally.wrong) > found:
                kept = Path(case.path).rename(folder / f"{name}-{i}-{good.name}")
                tally.wrong[-1] = f"{kept}: {tally.wrong[-1]}"
    ours.close()
    plain.close()
    return tallies


def _written(folder: Path, good: GoodFile, data: bytes) -> Case:
    path = folder / good.name
    path.write_bytes(data)
    return Case(str(path), good.options)
