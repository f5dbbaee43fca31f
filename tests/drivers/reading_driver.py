"""Read files by the steps of a build in a child process, which a file may kill or fill."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.drivers.memory_driver import peak_bytes
from tokenloom.errors import InputError, WorkerLost
from tokenloom.storage.formats.manifest import TokenizerEntry
from tokenloom.storage.stores.local import LocalStore
from tokenloom.tasks.building.documents import document_encoder
from tokenloom.tasks.building.inputs import InputFile
from tokenloom.tasks.building.plan import Build, Partition, cut_file
from tokenloom.tasks.building.tokenization import read_documents
from tokenloom.tasks.rules import RowRules
from tokenloom.tasks.running.workers import STOPPED, WorkerPool
from tokenloom.tasks.sources import Rows
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import text_bytes

MAX_BYTES = 10**6  # of a document
_SECONDS = 60


@dataclass
class Outcome:
    """The result of reading: texts, the numbers of rows, documents and their bytes; or the error."""

    texts: list[str] | None
    num_rows: int = 0
    num_documents: int = 0
    num_bytes: int = 0
    said: str = ""
    peak: int = 0
    is_hang: bool = False
    fault: str = ""


def _batches(path: str, options: dict[str, Any]) -> Iterator[Rows]:
    options = {"text": "text", "separator": None, "max_bytes": MAX_BYTES, "on_error": "fail", **options}
    file = InputFile("source", Path(path).name, path, 1, "xxh3_128:0", options, {})
    rules = RowRules(0, None, options["max_bytes"], options["on_error"], None, True, 0, [("train", 1.0)])
    build = Build(LocalStore(""), "data", "", TokenizerEntry("byte", "", "", 257, 256), {"kind": "byte"}, rules)
    for part in cut_file(file):
        partition = Partition(**vars(part), input_index=0, spill_name="", file=file)
        yield from read_documents(build, partition, document_encoder(load_tokenizer({"kind": "byte"}), None))


def _read(job: tuple[str, dict[str, Any], bool]) -> Outcome:
    """Read a file, in a worker; errors other than InputError are raised."""
    path, options, keep_texts = job
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak of the process
    texts: list[str] = []
    read = Outcome(texts)
    try:
        for rows in _batches(path, options):
            read.num_rows, read.num_documents = read.num_rows + rows.num_read, read.num_documents + len(rows.rows)
            read.num_bytes += int(np.diff(text_bytes(rows.texts)[1]).sum())
            if keep_texts:
                texts += rows.texts.to_pylist()
            del rows
    except InputError as error:
        read = Outcome(None, said=str(error))
    read.peak = peak_bytes()
    return read


class Children:
    """A pool of one worker; one that was killed is replaced by another."""

    def __init__(self) -> None:
        self._pool = WorkerPool(1)

    def read(self, path: Path, options: dict[str, Any], keep_texts: bool = True) -> Outcome:
        """Return what a worker reads from a file within _SECONDS."""
        timer = threading.Timer(_SECONDS, self._pool.close)
        timer.start()
        try:
            return self._pool.call(_read, [(str(path), options, keep_texts)])[0]
        except WorkerLost as error:
            self._pool.close()
            self._pool = WorkerPool(1)
            return Outcome(None, is_hang=str(error) == STOPPED, said=str(error))
        except Exception as error:  # noqa: BLE001  (an error that no user should see is counted, all of them)
            return Outcome(None, fault=f"{type(error).__name__}: {error}")
        finally:
            timer.cancel()

    def close(self) -> None:
        """End the worker."""
        self._pool.close()
