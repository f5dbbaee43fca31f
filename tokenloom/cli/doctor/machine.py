"""What this machine allows: memory, open files, shared memory, and folders for caches and temporary files."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tokenloom.cli.doctor.finding import Finding
from tokenloom.cores import num_cores
from tokenloom.errors import message_of
from tokenloom.storage.cache.cache_settings import default_cache_folder, default_limit
from tokenloom.storage.stores.local_files import check_folder, free_bytes
from tokenloom.wording import counted, shown_bytes

_WORKER_BYTES = 10**9  # what a worker may use, besides its largest document
_FEW_FILES = 1024  # the default of most systems
_SHARED_MEMORY = Path("/dev/shm")
_FEW_SHARED_BYTES = 10**8  # containers get 64 MB
_FEW_TEMPORARY_BYTES = 10**9


def of_limits() -> Iterator[Finding]:
    """Yield the limits of memory, open files and shared memory."""
    yield _memory()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= files < _FEW_FILES:
        advice = "run `ulimit -n 4096` first; in a service of systemd: LimitNOFILE=4096"
        few = f"{files:,}: a loader keeps fewer shards open, a Prefect server may run out of them"
        yield Finding("open files", few, "warning", advice)
    else:
        yield Finding("open files", "unlimited" if files < 0 else f"{files:,}")
    if _SHARED_MEMORY.is_dir() and (free := free_bytes(_SHARED_MEMORY)) is not None:
        is_small = free < _FEW_SHARED_BYTES
        advice = "give a container more, such as `docker run --shm-size=1g`" if is_small else ""
        small = ": workers of torch's DataLoader pass batches through it" if is_small else ""
        found = f"{_SHARED_MEMORY}, {shown_bytes(free)} free{small}"
        yield Finding("shared memory", found, "warning" if is_small else "ok", advice)


def _memory() -> Finding:
    from tokenloom.reader.shards.disk_reads import memory_bytes

    of_process = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    num_bytes = min([memory_bytes(), *(limit for limit in of_process if limit >= 0)])
    found = f"{shown_bytes(num_bytes)}, by the machine, the container and ulimit"
    workers = num_bytes // _WORKER_BYTES
    if workers >= num_cores():
        return Finding("memory", found)
    few = f"{found}: {counted(num_cores(), 'worker')} may need a gigabyte each"
    return Finding("memory", few, "warning", f"build with --workers {max(1, workers)}, or raise the limit")


def of_caches() -> Iterator[Finding]:
    """Yield the folders that keep what was downloaded or found out, and that of temporary files."""
    yield _folder("cache", default_cache_folder(), "set TOKENLOOM_CACHE")
    if find_spec("huggingface_hub"):
        from huggingface_hub.constants import HF_HUB_CACHE

        yield _folder("Hugging Face's cache", Path(HF_HUB_CACHE), "set HF_HOME")
    if find_spec("tiktoken"):
        default = os.environ.get("DATA_GYM_CACHE_DIR") or f"{tempfile.gettempdir()}/data-gym-cache"  # in tiktoken 0.14
        folder = os.environ.get("TIKTOKEN_CACHE_DIR") or default
        yield _folder("tiktoken's cache", Path(folder), "set TIKTOKEN_CACHE_DIR")
    free = free_bytes(Path(tempfile.gettempdir()))
    is_full = free is not None and free < _FEW_TEMPORARY_BYTES
    found = f"{tempfile.gettempdir()}, {shown_bytes(free or 0)} free"
    advice = "set TMPDIR: uploads to an object store need room for a shard per worker" if is_full else ""
    yield Finding("temporary files", found, "warning" if is_full else "ok", advice)
    yield Finding("cache of shards", f"of remote stores, at most {shown_bytes(default_limit(default_cache_folder()))}")


def _folder(topic: str, folder: Path, setting: str) -> Finding:
    try:
        check_folder(folder)
    except OSError as error:
        advice = f"{setting} to a folder that this user can write"
        return Finding(topic, f"{folder} can't be written: {message_of(error)}", "warning", advice)
    return Finding(topic, str(folder))
