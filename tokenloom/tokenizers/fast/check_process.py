"""The process that checks a fast encoder on this machine, see machine_check.py."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from tokenloom.storage.formats.canonical import canonical_json
from tokenloom.storage.formats.records import decode_record
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import Tokenizer, text_bytes
from tokenloom.tokenizers.fast.encoder import FastEncoder, failing_as
from tokenloom.tokenizers.fast.known_parts import Unproven
from tokenloom.tokenizers.fast.machine_check import MAX_SECONDS, MachineCheck, Speeds
from tokenloom.tokenizers.fast.parts import Parts, parts_of
from tokenloom.tokenizers.fast.proofs import Proof

_STEP = 10  # one slice of so many is encoded
_FAST_BYTES, _REFERENCE_BYTES = 400_000, 100_000


def main() -> None:
    """Run in the process: check the encoder that stdin names, and print what was found."""
    signal.alarm(MAX_SECONDS)  # it ends the process, also in native code
    definition, proof = json.load(sys.stdin)
    found = _check(load_tokenizer(definition), None if proof is None else decode_record(Proof, proof))
    print(canonical_json(found).decode())  # noqa: T201  (for the process that started this one)


def _check(reference: Tokenizer, proof: Proof | None) -> MachineCheck:
    fast, refused = None, None
    try:
        with failing_as(Unproven, "its check failed"):
            from tokenloom.tokenizers.fast.gigatoken_library import encoder_of  # its package may be broken

            parts = parts_of(reference)
            if proof is not None and (wrong := _wrong_slice(parts, proof)) is not None:
                refused = f"it gives other ids than those of its proof (slice {wrong} of the probe's texts)"
            fast = _speed(encoder_of(parts, [], reference.eot_id), _FAST_BYTES)
    except Unproven as error:
        refused = str(error)
    return MachineCheck(refused, Speeds(fast, _speed(reference, _REFERENCE_BYTES)))


def _wrong_slice(parts: Parts, proof: Proof) -> int | None:
    """Return a slice for which the fast library gives other ids than those of its proof; None if there is none."""
    from tokenloom.tokenizers.fast.gigatoken_library import NAME
    from tokenloom.tokenizers.fast.slices import SliceEncoder

    encoder = SliceEncoder(parts)
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
