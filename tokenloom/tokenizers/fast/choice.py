"""Choose what encodes: the fast encoder of a tokenizer if it is proven and checked here, or else its reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenloom.tokenizers.base import TokenizerIdentity
from tokenloom.tokenizers.fast.machine_check import Speeds, check_here, find_check
from tokenloom.tokenizers.fast.proofs import Proof, find_proof, find_refusal, installed_library

AUTO, REFERENCE = "auto", "reference"


def backend_of(definition: Mapping[str, Any]) -> str:
    """Return the `backend` of a tokenizer's definition, REFERENCE for a kind that has none."""
    return str(definition.get("backend", REFERENCE))


def may_use(encoder: str | None, definition: Mapping[str, Any]) -> bool:
    """Return whether a build may use what an encoder has encoded.

    Args:
        encoder: the fast encoder's name and version; None for the reference library.
        definition: of the build's tokenizer.
    """
    return encoder is None or backend_of(definition) != REFERENCE


@dataclass(frozen=True)
class Choice:
    """What encodes.

    Attributes:
        encoder: the fast encoder, with its version; None if the reference encodes.
        proof: of the fast encoder.
        reason: says, as a clause, why the reference encodes; None if it does not.
        unproven: the fast encoder whose probe may change that.
        speeds: of both; None if that is unknown.
    """

    encoder: str | None = None
    proof: Proof | None = None
    reason: str | None = None
    unproven: str | None = None
    speeds: Speeds | None = None


def choose(
    known: TokenizerIdentity,
    definition: Mapping[str, Any],
    *,
    may_check: bool = True,
    again: bool = False,
) -> Choice:
    """Return what encodes with the ids of a tokenizer on this machine.

    Args:
        known: what the tokenizer is.
        definition: see load_tokenizer.
        may_check: whether the encoder is checked if this machine has not done so.
        again: whether a check of this machine that refused the encoder is repeated.
    """
    reference = known.backend
    if known.encoder_key is None:
        return Choice(reason=known.unproven)
    if backend_of(definition) == REFERENCE:
        return Choice(reason="the spec asks for the reference library")
    library = installed_library()
    if library is None:
        return Choice(reason="gigatoken is not installed; pip install 'tokenloom[fast]'")
    if refusal := find_refusal(known.encoder_key, reference):
        return Choice(reason=f"{library} is refused: {refusal}")
    proof = find_proof(known.encoder_key, reference)
    if proof is None:
        check = find_check(known.encoder_key, None)
        reason = f"{library} is not proven for this vocabulary"
        return Choice(reason=reason, unproven=library, speeds=check.speeds if check else None)
    if not may_check and find_check(known.encoder_key, proof) is None:
        return Choice(reason=f"checking {library} on this machine would take longer; a larger build checks it")
    check = check_here(definition, known.encoder_key, proof, again=again)
    if check.refused is not None:
        why = f"{check.refused}; `tokenloom tokenizer SPEC` checks it again"
        return Choice(reason=f"{library} is refused on this machine: {why}", speeds=check.speeds)
    return Choice(library, proof, speeds=check.speeds)
