"""What a probe found out about a fast encoder and one vocabulary, kept in the machine's cache.

A verdict holds for one fingerprint, one version of both libraries and of Python's Unicode tables, by which texts get
their normal form, and processors with the same vector instructions, by which a library may choose its code; a cache can
be in a home folder that several machines share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from unicodedata import unidata_version

from tokenloom.storage.cache.cache_files import translate_cache_errors
from tokenloom.storage.cache.cache_settings import default_cache_folder
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.machine_records import find_machine_record, machine_record_path, write_machine_record

_PROBE_FORMAT = 6  # of the verdicts, of the texts that the probe compares, and of how encoders are made

_CHECKED_BYTES = 65_536  # a verdict has at most some thousand ranges


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a probe found.

    `refused` says why the encoder is not used, None if it is. `odd` are ranges [first, last] of code points that it may
    encode differently: texts that contain one are left to the reference.
    """

    fingerprint: str
    reference: str
    library: str
    refused: str | None
    odd: list[tuple[int, ...]]


def verdict_path(tokenizer: Tokenizer, library: str) -> Path:
    """Return where the verdict on an encoder and a tokenizer is kept.

    The fingerprint covers `eot` and `bos` too, as only the reference refuses those that ordinary text also encodes to.
    """
    decides = (
        _PROBE_FORMAT,
        tokenizer.fingerprint,
        tokenizer.backend,
        library,
        unidata_version,
        _vector_instructions(),
    )
    return machine_record_path("\n".join(map(str, decides)))


@cache
def _vector_instructions() -> str:
    """Return the names of the processor's vector instructions; empty where the system does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "").split()
    return " ".join(sorted(flag for flag in flags if flag.startswith(("sse", "avx", "asimd", "sve"))))


def read_verdict(path: Path, fingerprint: str) -> Verdict | None:
    """Return the verdict in a file; None if it is missing, damaged or about another tokenizer."""
    verdict = find_machine_record(path, Verdict)
    return verdict if verdict and verdict.fingerprint == fingerprint else None


def failures_path(path: Path) -> Path:
    """Return the file beside a verdict in which probes that crash or take too long leave their stacks."""
    return path.with_suffix(".failures")


def num_failed(path: Path) -> int:
    """Return how many probes for a verdict crashed or took too long; those that were killed don't count."""
    try:
        stacks = read_regular(failures_path(path))
    except OSError:
        return 0
    return stacks.count(b"Fatal Python error: ") + stacks.count(b"Timeout (")


def check_cache() -> None:
    """Raise StoreError, with the next step, if the machine's cache can't keep a verdict."""
    cache_folder = default_cache_folder()
    with translate_cache_errors(cache_folder):
        folder = cache_folder / "tokenizers"
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:
            file.write(bytes(_CHECKED_BYTES))


def write_verdict(path: Path, verdict: Verdict) -> None:
    """Write a verdict atomically; raises OSError if the cache can't be written."""
    write_machine_record(path, verdict)
