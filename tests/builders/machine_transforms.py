"""Transforms that harm their worker or the machine, for test_machine_faults.py. All but one return the text."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

from tokenloom.storage.stores import local_files


def _folder() -> Path:
    """The folder that a test and its transforms use to communicate."""
    return Path(os.environ["TOKENLOOM_TEST_NOTES"])


def order_words(text: str) -> str:
    """Return the words in an order that depends on Python's hashes, which differ from process to process."""
    return " ".join(set(text.split()))


def fill_disk(text: str) -> str:
    """Fill the file system of FOLDER/mounted, as another program would."""
    try:
        with (_folder() / "mounted" / "ballast").open("xb", buffering=0) as file:
            while file.write(bytes(4096)) == 4096:
                continue
    except OSError:  # it is full, or was filled before
        return text
    return text


def make_read_only(text: str) -> str:
    """Make the file system of FOLDER/mounted read-only."""
    subprocess.run(["mount", "-o", "remount,ro", str(_folder() / "mounted")], check=True)
    return text


def die_once(text: str) -> str:
    """Die as if killed by the out-of-memory killer, in the first process only."""
    try:
        (_folder() / "died").touch(exist_ok=False)
    except FileExistsError:
        return text
    os.kill(os.getpid(), signal.SIGKILL)
    return text


def leave_little_memory(text: str) -> str:
    """Limit this process, at the first call, to as many more bytes of memory as FOLDER/bytes says."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return text
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int((_folder() / "bytes").read_text())
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return text


def hang_while_writing(text: str) -> str:
    """Let this worker hang in the middle of its next file, unless FOLDER/calm is there; see _write_half."""
    if not (_folder() / "calm").exists():
        local_files.write_all = _write_half
    return text


def _write_half(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write half of the data, and hang; the first process finds the disk full once three others hang."""
    view = memoryview(data).cast("B")
    file.write(view[: len(view) // 2])
    file.flush()
    try:
        (_folder() / "full").touch(exist_ok=False)
    except FileExistsError:
        time.sleep(600)
    deadline = time.monotonic() + 60
    while len(list(_folder().glob("store/data/work/tmp/*.spi*"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
