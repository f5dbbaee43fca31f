"""Check a proven fast encoder on this machine, once for each version of the library, of Python and of the processor.

The library may choose its code by the processor's vector instructions, and texts get their normal form from Python's
Unicode tables. So a process of its own encodes a tenth of the probe's texts with the fast library, in about a second,
and compares hashes of the ids with those of the proof; with another version of the library than the proof's, it encodes
all texts. If that process crashes, hangs or finds other ids, the library is refused. This machine remembers the
outcome, and how fast both libraries are.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import unidata_version

import numpy as np
import pyarrow as pa

from tokenloom.errors import message_of
from tokenloom.storage.formats.canonical import canonical_json
from tokenloom.storage.formats.records import decode_record
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import Tokenizer, text_bytes
from tokenloom.tokenizers.fast.encoder import FastEncoder, failing_as
from tokenloom.tokenizers.fast.known_parts import Unproven
from tokenloom.tokenizers.fast.proofs import Proof, installed_library
from tokenloom.tokenizers.machine_records import find_record, keep_record
from tokenloom.without_pandas import keep_pandas_out

if TYPE_CHECKING:
    from tokenloom.tokenizers.fast.probe import SliceEncoder

_FORMAT = 1  # of the checks, whose outcomes are remembered
_START = "import sys; sys.path[:] = sys.argv[1:]; from tokenloom.tokenizers.fast.machine_check import main; main()"
_MAX_SECONDS = 120
_CPU_INFO = Path("/proc/cpuinfo")
_STEP = 10  # one slice of so many is encoded
_FAST_BYTES, _REFERENCE_BYTES = 400_000, 100_000  # to measure with
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


@dataclass(frozen=True, slots=True)
class Speeds:
    """MB of text a second on one core, by a fast encoder (None if there is none) and by the reference."""

    fast: float | None
    reference: float


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """What a check found: why the fast encoder is refused, and how fast both libraries are; None if it is not known."""

    refused: str | None = None
    speeds: Speeds | None = None


def check_here(definition: Mapping[str, Any], key: str, proof: Proof | None, *, again: bool = False) -> MachineCheck:
    """Return what the check of an encoder found on this machine; make it if nobody did.

    Args:
        definition: of a tokenizer, see load_tokenizer.
        key: of what its fast encoder is given, see Parts; or its fingerprint, if it has none.
        proof: of the encoder; None only to measure both libraries.
        again: whether to repeat a check that refused it.
    """
    found = find_check(key, proof)
    if found is None or (again and found.refused is not None):
        found, is_final = _in_process(definition, proof)
        keep_record(found, _deciding(key, proof), only_here=not is_final)
    return found


def find_check(key: str, proof: Proof | None) -> MachineCheck | None:
    """Return what check_here has found on this machine; None if nobody made the check."""
    return find_record(MachineCheck, _deciding(key, proof))


def _deciding(key: str, proof: Proof | None) -> list[object]:
    return [_FORMAT, key, proof, this_machine()]


def _in_process(definition: Mapping[str, Any], proof: Proof | None) -> tuple[MachineCheck, bool]:
    """Run the check in a process of its own; return what it found, and whether it would find the same again."""
    try:
        process = subprocess.run(
            [sys.executable, "-c", _START, *sys.path],
            input=canonical_json([dict(definition), proof]),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            check=False,
        )
    except OSError as error:
        return MachineCheck(f"its check can't be started ({message_of(error)})"), False
    if process.returncode == 0:
        return decode_record(MachineCheck, json.loads(process.stdout.splitlines()[-1])), True
    if -process.returncode == signal.SIGALRM:
        return MachineCheck(f"its check took longer than {_MAX_SECONDS} s"), True
    if -process.returncode in _CRASHES:
        return MachineCheck(f"its check crashed ({signal.Signals(-process.returncode).name})"), True
    return MachineCheck(f"its check was ended (exit code {process.returncode})"), False


@cache
def this_machine() -> str:
    """Return what decides, beside a vocabulary, the ids of the fast encoder: versions and vector instructions."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:  # this system does not list them
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "").split()
    vectors = sorted(flag for flag in flags if flag.startswith(("sse", "avx", "asimd", "sve")))
    return " ".join([str(installed_library()), sys.version.split()[0], unidata_version, os.uname().machine, *vectors])


# ---- in the process


def main() -> None:
    """Check the encoder that stdin names and print what was found, in a process of its own."""
    signal.alarm(_MAX_SECONDS)  # it ends the process, also in native code
    keep_pandas_out()  # its import takes longer than the check
    definition, proof = json.load(sys.stdin)
    found = _check(load_tokenizer(definition), None if proof is None else decode_record(Proof, proof))
    print(canonical_json(found).decode())  # noqa: T201  (for the process that started this one)


def _check(reference: Tokenizer, proof: Proof | None) -> MachineCheck:
    fast, refused = None, None
    try:
        with failing_as(Unproven, "its check failed"):
            from tokenloom.tokenizers.fast.parts import parts_of
            from tokenloom.tokenizers.fast.probe import SliceEncoder  # gigatoken's package may be broken

            encoder = SliceEncoder(parts_of(reference))
            if proof is not None and (wrong := _wrong_slice(encoder, proof)) is not None:
                refused = f"it gives other ids than those of its proof (slice {wrong} of the probe's texts)"
            fast = _speed(encoder.of_slice(-1), _FAST_BYTES)
    except Unproven as error:
        refused = str(error)
    return MachineCheck(refused, Speeds(fast, _speed(reference, _REFERENCE_BYTES)))


def _wrong_slice(encoder: SliceEncoder, proof: Proof) -> int | None:
    """Return a slice for which the fast library gives other ids than those of its proof; None if there is none."""
    from tokenloom.tokenizers.fast.gigatoken_library import NAME

    step = _STEP if proof.library == NAME else 1
    for index in range(0, len(proof.slices), step):
        if encoder.ids_hash(index, proof.odd) != proof.slices[index]:
            return index
    return None


def _speed(encoder: Tokenizer | FastEncoder, num_bytes: int) -> float:
    """Return how many MB of Python's own sources are encoded in a second of processor time, the second time."""
    texts = _sources(num_bytes)
    for _ in range(2):
        start = time.process_time()
        encoder.encode(texts, np.dtype(np.uint32))
        seconds = time.process_time() - start
    return round(len(text_bytes(texts)[0]) / seconds / 1e6, 1)


def _sources(num_bytes: int) -> pa.Array:
    """Return some of Python's own sources, one text a file."""
    texts, num_left = [], num_bytes
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        if num_left > 0:
            texts.append(path.read_text(encoding="utf-8", errors="replace")[:num_left])
            num_left -= len(texts[-1])
    return pa.array(texts, pa.large_string())
