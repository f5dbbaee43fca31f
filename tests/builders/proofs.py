"""Proofs and checks of fast encoders in the cache of a test, without a probe."""

from __future__ import annotations

from tokenloom.tokenizers.base import ReferenceTokenizer
from tokenloom.tokenizers.fast import machine_check
from tokenloom.tokenizers.fast.machine_check import MachineCheck, Speeds
from tokenloom.tokenizers.fast.parts import parts_of
from tokenloom.tokenizers.fast.proofs import Proof, installed_library
from tokenloom.tokenizers.machine_records import keep_record

SPEEDS = Speeds(200.0, 2.0)


def trust(reference: ReferenceTokenizer, refused: str | None = None) -> Proof:
    """Write a proof for the fast encoder of a tokenizer, and what its check on this machine found."""
    proof = Proof(parts_of(reference).key, str(installed_library()), reference.backend, (), ())
    keep_record(proof, [proof.key, proof.reference])
    keep_record(MachineCheck(refused, SPEEDS), machine_check._deciding(proof.key, proof))
    return proof
