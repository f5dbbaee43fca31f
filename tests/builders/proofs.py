"""Proofs of fast encoders in the cache of a test, without a probe."""

from __future__ import annotations

from tokenloom.tokenizers.base import ReferenceTokenizer
from tokenloom.tokenizers.fast.parts import parts_of
from tokenloom.tokenizers.fast.proofs import Proof, installed_library, keep_proof


def trust(reference: ReferenceTokenizer) -> Proof:
    """Write a proof for the fast encoder of a tokenizer."""
    proof = Proof(parts_of(reference).key, str(installed_library()), reference.backend)
    keep_proof(proof)
    return proof
