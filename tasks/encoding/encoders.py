"""What encodes a partition: the fast encoder that the build has chosen, or the reference library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from tokenloom.errors import EncoderMismatch
from tokenloom.storage.formats.canonical import canonical_json
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import find_build_record, published_versions
from tokenloom.storage.work.partition_records import remove_spills_of
from tokenloom.tasks.encoding.job_tokenizer import load_job_tokenizer, preload_tokenizer
from tokenloom.tasks.planning.plan import Build, EncodingRules
from tokenloom.tasks.running import progress
from tokenloom.tokenizers import Tokenizer, pinned_fields
from tokenloom.tokenizers.fast.choice import REFERENCE, backend_of
from tokenloom.tokenizers.fast.encoder import FastEncoder
from tokenloom.tokenizers.fast.machine_check import check_here, find_check, this_machine
from tokenloom.tokenizers.fast.proofs import Proof, find_proof, installed_library
from tokenloom.tokenizers.fast.routing import Router
from tokenloom.tokenizers.fast.tokenizer import NO_CHECK, FastTokenizer
from tokenloom.tokenizers.fast.unicode_14 import left_to_reference
from tokenloom.tokenizers.identity import identity_of
from tokenloom.wording import counted

_REPORT_AT = "https://github.com/tokenloom/tokenloom/issues"


def encoding_tokenizer(build: Build) -> Tokenizer:
    """Return the tokenizer of a build: with its fast encoder, or the reference; both give the same ids.

    Raises TokenizerError as load_job_tokenizer.
    """
    return _tokenizer(canonical_json(build.definition), build.tokenizer.fingerprint, build.encoding)


@lru_cache(maxsize=4)
def _tokenizer(definition: bytes, fingerprint: str, rules: EncodingRules) -> Tokenizer:
    """Return what encodes, with a count of compared texts of its own for each build and step."""
    plain = json.loads(definition)
    reference = load_job_tokenizer(plain, fingerprint)
    proof = rules.proof
    if proof is None or proof.reference != reference.backend or not _is_checked(plain, proof, rules.machine):
        return reference
    encoder = _fast_encoder(definition, fingerprint)
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


def load_for_measuring(build: Build) -> Tokenizer:
    """Return what encodes, without its sample, to measure its speed; errors as load_job_tokenizer."""
    return encoding_tokenizer(replace(build, encoding=replace(build.encoding, check=NO_CHECK)))


def rejected(store: Store, error: EncoderMismatch) -> EncoderMismatch:
    """Delete the spills that wrong fast encoders left in work/, also of earlier builds; return the error for the user.

    Args:
        store: the dataset's store.
        error: says which ids differ, and the encoders that may have given them.
    """
    num_removed = remove_spills_of(store, error.encoders)
    records = {version: find_build_record(store, version) for version in published_versions(store)}
    versions = [version for version, record in records.items() if record and {*error.encoders} & {*record.encoders}]
    doubtful = (
        f"it also encoded {', '.join(versions)}: verify them with `tokenloom verify --deep`; " if versions else ""
    )
    used = " and ".join(error.encoders)
    return EncoderMismatch(
        f"{error}. Nothing was published; {counted(num_removed, 'partition')} that {used} encoded "
        f"{'was' if num_removed == 1 else 'were'} deleted from {store.place('work')}; {doubtful}set tokenizer: "
        f"{{backend: reference}} and build again, and please report this message at {_REPORT_AT}",
        error.encoders,
    )
