"""Fast encoders of tests: without a sample, and with a proof in the cache of a test without a probe."""

from __future__ import annotations

from tokenloom.tokenizers.base import ReferenceTokenizer, Tokenizer
from tokenloom.tokenizers.fast.parts import parts_of
from tokenloom.tokenizers.fast.proofs import Proof, installed_library, keep_proof
from tokenloom.tokenizers.fast.tokenizer import NO_OVERLAP, FastTokenizer, Router, make_encoder


def trust(reference: ReferenceTokenizer) -> Proof:
    """Write a proof for the fast encoder of a tokenizer."""
    proof = Proof(parts_of(reference).key, str(installed_library()), reference.backend)
    keep_proof(proof)
    return proof


def fast_of(reference: Tokenizer) -> FastTokenizer:
    """Return a fast tokenizer that compares no sample and leaves no character to its reference."""
    encoder = make_encoder(reference)
    return FastTokenizer(reference, encoder, Router([], encoder.spellings), NO_OVERLAP)
