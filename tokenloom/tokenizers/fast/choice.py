"""Choose what encodes: the fast encoder of a tokenizer if it is proven here, or else its reference library."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tokenloom.errors import StoreError
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.fast.encoder import Library
from tokenloom.tokenizers.fast.known_parts import Unproven
from tokenloom.tokenizers.fast.libraries import is_fastest, libraries
from tokenloom.tokenizers.fast.routing import Router
from tokenloom.tokenizers.fast.tokenizer import SAMPLE, Check, FastTokenizer
from tokenloom.tokenizers.fast.verdict import num_failed, read_verdict, verdict_path

AUTO, REFERENCE = "auto", "reference"
_MAX_FAILED = 3
_FAILED = "three probes crashed or took too long (`tokenloom tokenizer SPEC` probes it again)"
_KINDS = ("tiktoken", "huggingface", "sentencepiece")


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

    `reason` says, as a clause, why it is not the fastest library; None if it is. `pending` is the first library whose
    probe may change that.
    """

    tokenizer: Tokenizer
    reason: str | None = None
    pending: Library | None = None

    @property
    def encoder(self) -> str | None:
        """The fast encoder that is used, None for the reference library."""
        return self.tokenizer.encoder if isinstance(self.tokenizer, FastTokenizer) else None


def is_probed(reference: Tokenizer, library: Library) -> bool:
    """Return whether this machine has a verdict on the fast encoder of a tokenizer that was pending."""
    try:
        return verdict_path(reference, library.NAME).exists()
    except OSError:  # the cache can't be read
        return False


def is_proven(reference: Tokenizer, library: Library) -> bool:
    """Return whether the fast encoder of a tokenizer may be used on this machine; raises StoreError without a cache."""
    verdict = read_verdict(verdict_path(reference, library.NAME), reference.fingerprint)
    return verdict is not None and verdict.refused is None


def choose(
    reference: Tokenizer,
    backend: str,
    distrusted: Collection[str] = (),
    check: Check = SAMPLE,
    *,
    probes_again: bool = False,
) -> Choice:
    """Return what encodes with the ids of a tokenizer: the first library whose fast encoder is proven.

    Args:
        reference: the tokenizer, which encodes with its reference library.
        backend: AUTO or REFERENCE, as in a spec.
        distrusted: names and versions of fast encoders that must not be used.
        check: which texts a fast encoder and the reference both encode.
        probes_again: whether a library whose probes crashed or took too long is pending, not refused.
    """
    if reference.kind not in _KINDS:
        return Choice(reference, f"no fast encoder supports the kind {reference.kind}")
    if backend == REFERENCE:
        return Choice(reference, "the spec asks for the reference library")
    found, missing = libraries()
    missing = [*missing, "pip install 'tokenloom[fast]'"] if missing else []
    passed_over: list[tuple[str, str]] = []
    pending = None
    for library in found:
        choice = _choice_of(library, reference, distrusted, check, probes_again)
        if choice.encoder:
            named = [why if name in why else f"{name}: {why}" for name, why in passed_over]
            reasons = [] if is_fastest(library) else [*missing, *named]
            return replace(choice, reason="; ".join(reasons) or None, pending=pending)
        if not (choice.pending and pending):  # the faster one is probed first
            passed_over.append((library.NAME, str(choice.reason)))
        pending = pending or choice.pending
    return Choice(reference, "; ".join(dict.fromkeys([*missing, *(why for _, why in passed_over)])), pending)


def _choice_of(
    library: Library, reference: Tokenizer, distrusted: Collection[str], check: Check, probes_again: bool
) -> Choice:
    name = library.NAME
    if name in distrusted:
        return Choice(reference, f"{name} is distrusted: see the folder distrusted/ of the dataset")
    try:
        path = verdict_path(reference, name)
        verdict = read_verdict(path, reference.fingerprint)
    except StoreError as error:  # without a home folder
        return Choice(reference, str(error))
    if verdict is not None and verdict.refused is not None:
        return Choice(reference, f"{name} is refused: {verdict.refused}")
    try:
        if verdict is None:
            library.check_parts(reference)
            if not probes_again and num_failed(path) >= _MAX_FAILED:
                return Choice(reference, f"{name} is refused: {_FAILED}")
            return Choice(reference, f"{name} has not been probed on this machine", library)
        encoder = library.make_encoder(reference)
    except Unproven as error:
        return Choice(reference, str(error))
    return Choice(FastTokenizer(reference, encoder, Router(verdict.odd, encoder.spellings), check))
