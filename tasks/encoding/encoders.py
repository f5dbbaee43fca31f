"""What encodes a partition: the fast encoder that the build has chosen, or the reference library."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from tokenloom.errors import DistrustedEncoder, EncoderMismatch, ReencodingMismatch
from tokenloom.storage.formats.canonical import canonical_json
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.distrust import distrust
from tokenloom.tasks.encoding.job_tokenizer import load_job_tokenizer, preload_tokenizer
from tokenloom.tasks.running import progress
from tokenloom.tasks.running.steps import has_lost_worker
from tokenloom.tokenizers import Tokenizer, pinned_fields
from tokenloom.tokenizers.fast.choice import REFERENCE, backend_of
from tokenloom.tokenizers.fast.encoder import FastEncoder
from tokenloom.tokenizers.fast.machine_check import check_here, find_check, this_machine
from tokenloom.tokenizers.fast.proofs import Proof, find_proof, installed_library
from tokenloom.tokenizers.fast.routing import Router
from tokenloom.tokenizers.fast.tokenizer import NO_CHECK, SAMPLE, Check, FastTokenizer
from tokenloom.tokenizers.fast.unicode_14 import left_to_reference
from tokenloom.tokenizers.identity import identity_of


@dataclass(frozen=True)
class EncodingRules:
    """How a build encodes.

    Attributes:
        version: the build's, because each build compares texts of its own.
        proof: of the fast encoder that it uses; None if the reference encodes.
        machine: where the encoder was checked, see this_machine. A worker elsewhere checks it first.
        distrusted: names and versions of fast encoders that must not be used.
        check: which texts the reference encodes too.
    """

    version: str = ""
    proof: Proof | None = None
    machine: str = ""
    distrusted: frozenset[str] = frozenset()
    check: Check = SAMPLE


ONLY_REFERENCE = EncodingRules()


@contextmanager
def encoding(store: Store, definition: dict[str, Any], fingerprint: str, rules: EncodingRules) -> Iterator[Tokenizer]:
    """Yield what encodes the documents of a partition in the block; all that it may be give the same ids.

    Args:
        store: the dataset's store, where an encoder that gives other ids is marked as distrusted.
        definition: see load_tokenizer.
        fingerprint: of the tokenizer that the job was made for.
        rules: how the build encodes.

    Raises:
        TokenizerError: as load_job_tokenizer.
        DistrustedEncoder: the block found that the encoder gives other ids.
    """
    tokenizer = _tokenizer(canonical_json(definition), fingerprint, rules)
    if not isinstance(tokenizer, FastTokenizer):
        yield tokenizer
    elif has_lost_worker():  # perhaps in native code, which may crash or hang
        instead = f"{tokenizer.backend} encodes what it was given, not {tokenizer.encoder}"
        _say_once(f"a worker was killed or crashed: {instead}")
        yield tokenizer.reference
    else:
        with distrusting(store, [tokenizer.encoder], fingerprint):
            yield tokenizer


def encoding_again(tokenizer: Tokenizer, encoders: Collection[str]) -> Tokenizer:
    """Return what encodes documents of a build for a second time, to check them: the encoder that the build has used.

    Args:
        tokenizer: see encoding. A fast one gives the reference only the texts of its check, since that library might
            take as long for all of them as the rest of the build.
        encoders: the fast encoders that encoded some of the build.
    """
    if isinstance(tokenizer, FastTokenizer) and tokenizer.encoder not in encoders:
        return tokenizer.reference
    return tokenizer


@lru_cache(maxsize=4)
def _tokenizer(definition: bytes, fingerprint: str, rules: EncodingRules) -> Tokenizer:
    """Return what encodes, with a count of compared texts of its own for each build and step."""
    plain = json.loads(definition)
    reference = load_job_tokenizer(plain, fingerprint)
    proof = rules.proof
    if proof is None or proof.reference != reference.backend or not _is_checked(plain, proof, rules.machine):
        return reference
    encoder = _fast_encoder(definition, fingerprint)
    if encoder.library in rules.distrusted:  # that of this machine may be another than that of the plan
        return reference
    router = Router([*left_to_reference(), *proof.odd], encoder.spellings)
    return FastTokenizer(reference, encoder, router, rules.check)


def _is_checked(definition: Mapping[str, Any], proof: Proof, machine: str) -> bool:
    """Return whether an encoder may be used here: it was checked on such a machine, or is now."""
    if this_machine() == machine:
        return True
    check = check_here(definition, proof.key, proof)
    if check.refused is not None:
        _say_once(f"{installed_library()} is refused on a machine: {check.refused}")
    return check.refused is None


@cache
def _say_once(message: str) -> None:
    progress.report(progress.Message(message))


@lru_cache(maxsize=2)
def _fast_encoder(definition: bytes, fingerprint: str) -> FastEncoder:
    """Return the fast encoder of a tokenizer."""
    from tokenloom.tokenizers.fast.gigatoken_library import make_encoder  # late: its package may be missing

    return make_encoder(load_job_tokenizer(json.loads(definition), fingerprint))


def preload_encoder(definition: Mapping[str, Any]) -> None:
    """Load the tokenizer of jobs to come, and its fast encoder if that is proven and this machine has checked it.

    A model of the hub is left to its jobs, because only the plan knows its commit.

    Args:
        definition: as in a spec.

    Raises TokenizerError if the tokenizer can't be loaded.
    """
    loaded = definition.get("decode") or definition
    if loaded["kind"] == "huggingface" and loaded.get("name"):
        return
    definition = {**definition, **pinned_fields(definition)}
    tokenizer = preload_tokenizer(definition)
    known = identity_of(tokenizer)
    if known.encoder_key is None or backend_of(definition) == REFERENCE:
        return
    proof = find_proof(known.encoder_key, known.backend)
    check = None if proof is None else find_check(proof.key, proof)
    if check is not None and check.refused is None:
        _fast_encoder(canonical_json(definition), tokenizer.fingerprint)


def load_for_measuring(definition: dict[str, Any], fingerprint: str, rules: EncodingRules) -> Tokenizer:
    """Return what encodes, without its sample, to measure its speed; errors as load_job_tokenizer."""
    return _tokenizer(canonical_json(definition), fingerprint, replace(rules, check=NO_CHECK))


@contextmanager
def distrusting(store: Store, encoders: Collection[str], fingerprint: str) -> Iterator[None]:
    """Mark fast encoders as distrusted if the block finds that ids differ.

    Args:
        store: the dataset's store.
        encoders: those that encode in the block, or encoded what is compared in it.
        fingerprint: of the tokenizer.

    Raises:
        DistrustedEncoder: ids differ, and some are of one of `encoders`.
        ReencodingMismatch: ids differ, and the reference encoded them all.
    """
    try:
        yield
    except (EncoderMismatch, ReencodingMismatch) as error:
        if not encoders:
            raise
        why = error.found if isinstance(error, ReencodingMismatch) else str(error)
        for encoder in encoders:
            distrust(store, encoder, fingerprint, why)
        used = f"{' and '.join(sorted(encoders))} {'is' if len(encoders) == 1 else 'are'}"
        raise DistrustedEncoder(f"{why}; {used} not used for this dataset from now on") from error
