"""Probe a fast encoder and keep the verdict, here or in a process in the background.

A build starts such a process while the reference library encodes, and does not wait for it. It may outlive the build,
so that the next one has its verdict. It ends after half an hour at the latest, and one machine probes a tokenizer once
at a time. A probe that crashes or takes too long is counted, one that is killed is not: after three, builds start none.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tokenloom.errors import named_message_of
from tokenloom.storage.cache.cache_files import translate_cache_errors
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.fast.encoder import Library
from tokenloom.tokenizers.fast.libraries import library_of
from tokenloom.tokenizers.fast.probe import FULL_SIZE, ProbeSize, probe
from tokenloom.tokenizers.fast.verdict import (
    Verdict,
    check_cache,
    failures_path,
    read_verdict,
    verdict_path,
    write_verdict,
)
from tokenloom.tokenizers.fast.vocabulary import vocabulary_of

_START = "import sys; sys.path[:] = sys.argv[3:]; from tokenloom.tokenizers.fast.probe_process import main; main()"
_MAX_SECONDS = 1800


def start_probe(reference: Tokenizer, library: Library, definition: Mapping[str, Any]) -> bool:
    """Start a probe of a tokenizer's fast encoder in the background.

    Return False if one is running on this machine, or if the cache can't keep its verdict.
    """
    path = verdict_path(reference, library.NAME)
    try:
        check_cache()
        with _lock(path).acquire(timeout=0):
            pass
        lock = _lock_for_child(path.with_suffix(".started"))
    except (Timeout, OSError):
        return False
    try:
        subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(dict(definition)), library.NAME, *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[lock],
            env=os.environ | {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
    finally:
        os.close(lock)
    return True


def _lock_for_child(path: Path) -> int:
    """Return a file that is locked as long as a process has it open; raise BlockingIOError if it is locked already."""
    lock = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def run_probe(
    reference: Tokenizer,
    library: Library,
    report: Callable[[str, int], None],
    size: ProbeSize = FULL_SIZE,
    seconds: float | None = None,
) -> Verdict:
    """Probe the fast encoder of a tokenizer, keep the verdict and return it; wait for a probe that is running.

    Args:
        reference: the tokenizer.
        library: makes the encoder.
        report: called with what is compared and the number of texts so far.
        size: how much is compared.
        seconds: end the process after this time; None: no limit.

    Raises StoreError if the cache can't be written.
    """
    path = verdict_path(reference, library.NAME)
    check_cache()
    with translate_cache_errors(default_cache_folder()), _lock(path):
        if verdict := read_verdict(path, reference.fingerprint):  # of the probe that was running
            return verdict
        with _counting(path, seconds):
            verdict = _probe(reference, library, report, size)
        write_verdict(path, verdict)
        failures_path(path).unlink(missing_ok=True)
    return verdict


@contextmanager
def _counting(path: Path, seconds: float | None) -> Iterator[None]:
    """Count the block as a failed probe if native code crashes in it, or it takes longer than `seconds`.

    Only a process that ends by itself can count that, so a file in which Python dumps its stack then is the count.
    """
    was_enabled = faulthandler.is_enabled()
    with failures_path(path).open("ab") as file:
        faulthandler.enable(file)
        if seconds is not None:
            faulthandler.dump_traceback_later(seconds, exit=True, file=file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            faulthandler.disable()
            if was_enabled:
                faulthandler.enable(2)  # stderr, as PYTHONFAULTHANDLER has it


def _probe(reference: Tokenizer, library: Library, report: Callable[[str, int], None], size: ProbeSize) -> Verdict:
    try:
        return probe(reference, library.make_encoder(reference), vocabulary_of(reference), report, size)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        why = f"its probe failed ({named_message_of(error)})"
    return Verdict(reference.fingerprint, reference.backend, library.NAME, why, [])


def _lock(path: Path) -> FileLock:
    return FileLock(path.with_suffix(".lock"))


def main() -> None:
    """Run in the process: probe the tokenizer that the first argument defines, for the library of the second."""
    os.nice(5)
    reference, library = load_tokenizer(json.loads(sys.argv[1])), library_of(sys.argv[2])
    run_probe(reference, library, lambda what, num_texts: None, seconds=_MAX_SECONDS)
