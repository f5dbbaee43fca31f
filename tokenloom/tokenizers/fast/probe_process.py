"""Probe a fast encoder and keep the verdict, here or in a process in the background.

A build starts such a process while the reference library encodes, and does not wait for it. It may outlive the build,
so that the next one has its verdict. It ends after half an hour at the latest, and one machine probes a tokenizer once
at a time. A probe that did not finish is counted, unless it was interrupted: after three of them, builds start no more.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

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
    num_unfinished,
    read_verdict,
    starts_path,
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
    reference: Tokenizer, library: Library, report: Callable[[str, int], None], size: ProbeSize = FULL_SIZE
) -> Verdict:
    """Probe the fast encoder of a tokenizer, keep the verdict and return it; wait for a probe that is running.

    Args:
        reference: the tokenizer.
        library: makes the encoder.
        report: called with what is compared and the number of texts so far.
        size: how much is compared.

    Raises StoreError if the cache can't be written.
    """
    path = verdict_path(reference, library.NAME)
    check_cache()
    with translate_cache_errors(default_cache_folder()), _lock(path):
        if verdict := read_verdict(path, reference.fingerprint):  # of the probe that was running
            return verdict
        with _counting(path):
            verdict = _probe(reference, library, report, size)
        write_verdict(path, verdict)
        starts_path(path).unlink(missing_ok=True)
    return verdict


@contextmanager
def _counting(path: Path) -> Iterator[None]:
    """Count the block as a probe that did not finish, unless it finishes or is interrupted."""
    num_before = num_unfinished(path)
    starts_path(path).write_bytes(b"x" * (num_before + 1))
    try:
        with _raising_on_signals():
            yield
    except BaseException:  # crashes and hangs, which count, don't get here
        starts_path(path).write_bytes(b"x" * num_before)
        raise


@contextmanager
def _raising_on_signals() -> Iterator[None]:
    """Raise SystemExit in the block on SIGTERM and SIGHUP, as Ctrl-C raises KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():  # others can't handle signals
        yield
        return
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _probe(reference: Tokenizer, library: Library, report: Callable[[str, int], None], size: ProbeSize) -> Verdict:
    try:
        return probe(reference, library.make_encoder(reference), vocabulary_of(reference), report, size)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        why = f"its probe failed ({type(error).__name__}: {error})"
    return Verdict(reference.fingerprint, reference.backend, library.NAME, why, [])


def _lock(path: Path) -> FileLock:
    return FileLock(path.with_suffix(".lock"))


def main() -> None:
    """Run in the process: probe the tokenizer that the first argument defines, for the library of the second."""
    signal.alarm(_MAX_SECONDS)
    os.nice(5)
    run_probe(load_tokenizer(json.loads(sys.argv[1])), library_of(sys.argv[2]), lambda what, num_texts: None)
