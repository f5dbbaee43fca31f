"""Choose what encodes: the fast encoder of a tokenizer if it is proven here, or else its reference library."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import StoreError
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.fast.known_parts import Unproven
from tokenloom.tokenizers.fast.routing import Router
from tokenloom.tokenizers.fast.tokenizer import SAMPLE, Check, FastTokenizer
from tokenloom.tokenizers.fast.verdict import read_verdict, verdict_path

AUTO, REFERENCE = "auto", "reference"
_KINDS = ("tiktoken", "huggingface")


def backend_of(definition: Mapping[str, Any]) -> str:
    """Return the `backend` of a tokenizer's definition, REFERENCE for a kind that has none."""
    return str(definition.get("backend", REFERENCE))


def may_use(encoder: str | None, definition: Mapping[str, Any], distrusted: Collection[str]) -> bool:
    """Return whether a build may use what an encoder has encoded.

    Args:
        encoder: the fast encoder's name and version; None for the reference library.
        definition: of the build's tokenizer.
        distrusted: names and versions of fast encoders that must not be used.
    """
    return encoder is None or (backend_of(definition) != REFERENCE and encoder not in distrusted)


@dataclass(frozen=True)
class Choice:
    """What encodes.

    `reason` says, as a clause, why it is not a fast encoder; None if it is. `is_pending` if a probe may change that.
    """

    tokenizer: Tokenizer
    reason: str | None = None
    is_pending: bool = False

    @property
    def encoder(self) -> str | None:
        """The fast encoder that is used, None for the reference library."""
        return self.tokenizer.encoder if isinstance(self.tokenizer, FastTokenizer) else None


def is_probed(reference: Tokenizer) -> bool:
    """Return whether this machine has a verdict on the fast encoder of a tokenizer that was pending."""
    from tokenloom.tokenizers.fast.encoder import ENCODER

    return verdict_path(reference, ENCODER).exists()


def choose(reference: Tokenizer, backend: str, distrusted: Collection[str] = (), check: Check = SAMPLE) -> Choice:
    """Return what encodes with the ids of a tokenizer.

    Args:
        reference: the tokenizer, which encodes with its reference library.
        backend: AUTO or REFERENCE, as in a spec.
        distrusted: names and versions of fast encoders that must not be used.
        check: which texts a fast encoder and the reference both encode.
    """
    if backend == REFERENCE:
        return Choice(reference, "the spec asks for the reference library")
    if reference.kind not in _KINDS:
        return Choice(reference, f"no fast encoder supports the kind {reference.kind}")
    try:
        from tokenloom.tokenizers.fast.encoder import ENCODER, check_parts, make_encoder
    except Exception as error:  # noqa: BLE001  (whatever a missing, broken or other version of the package raises)
        why = f"{type(error).__name__}: {error}"
        return Choice(reference, f"splintr-rs can't be imported ({why}): pip install 'tokenloom[fast]'")
    if ENCODER in distrusted:
        return Choice(reference, f"{ENCODER} is distrusted: see the folder distrusted/ of the dataset")
    try:
        verdict = read_verdict(verdict_path(reference, ENCODER), reference.fingerprint)
    except StoreError as error:  # without a home folder
        return Choice(reference, str(error))
    if verdict is not None and verdict.refused is not None:
        return Choice(reference, f"{ENCODER} is refused: {verdict.refused}")
    try:
        if verdict is None:
            check_parts(reference)
            return Choice(reference, f"{ENCODER} has not been probed on this machine", is_pending=True)
        encoder = make_encoder(reference)
    except Unproven as error:
        return Choice(reference, str(error))
    return Choice(FastTokenizer(reference, encoder, Router(verdict.odd, encoder.spellings), check))
