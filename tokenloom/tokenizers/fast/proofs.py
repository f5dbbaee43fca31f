"""Proofs that a fast encoder gives the ids of a reference library, and the choice that follows from them.

A proof belongs to the parts of a tokenizer (Parts.key), so fine-tunes and chat templates share it, and
to one release of both libraries. The package ships those of proofs.json; `tokenloom tokenizer` makes others by a probe
and keeps them in the cache of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from tokenloom.errors import FormatError
from tokenloom.storage.cache import default_cache_folder
from tokenloom.storage.formats.records import decode_record, parse_json, sha256_of, sign
from tokenloom.storage.stores.local_files import read_regular, replace_file
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.fast import Unproven

SHIPPED = Path(__file__).with_name("proofs.json")
REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a probe.

    Attributes:
        key: see Parts.key.
        library: the fast library, with its version.
        reference: the reference library, with its version.
        odd: ranges [first, last] of code points that go to the reference, besides those of left_to_reference.
    """

    key: str
    library: str
    reference: str
    odd: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Choice:
    """The encoder of a build, and the reason for it.

    Attributes:
        proof: the proof of the fast encoder; None if the reference encodes.
        reason: says, as a clause, why the reference encodes; "" if it does not.
        next_step: makes the fast encoder usable; "" if nothing does.
        unproven: the fast encoder that a probe may prove, with its version.
    """

    proof: Proof | None = None
    reason: str = ""
    next_step: str = ""
    unproven: str | None = None

    def line(self, reference: str) -> str:
        """Name the encoder and the reason in one line; `reference` is the reference library with its version."""
        if self.proof is not None:
            return f"encoded by {self.proof.library}, which gives the ids of {reference}"
        return "; ".join(filter(None, [f"encoded by {reference}: {self.reason}", self.next_step]))


def choose(tokenizer: Tokenizer, definition: Mapping[str, Any]) -> Choice:
    """Choose the fast encoder of a tokenizer if it is proven, or else the reference.

    Args:
        tokenizer: the reference.
        definition: its definition, see load_tokenizer.
    """
    if definition.get("backend") == REFERENCE:
        return Choice(reason="the spec asks for the reference library")
    library = installed_library()
    if library is None:
        return Choice(reason="gigatoken is not installed", next_step="pip install 'tokenloom[fast]'")
    from tokenloom.tokenizers.fast.parts import parts_of  # late: it imports tiktoken

    try:
        key = parts_of(tokenizer).key
    except Unproven as error:
        return Choice(reason=str(error))
    if proof := find_proof(key, tokenizer.backend):
        return Choice(proof)
    return Choice(
        reason=f"{library} is not proven for this vocabulary",
        next_step="`tokenloom tokenizer SPEC` proves it in about a minute",
        unproven=library,
    )


def find_proof(key: str, reference: str) -> Proof | None:
    """Return the proof of the installed fast library for the parts of a tokenizer; None if there is none.

    Args:
        key: see Parts.key.
        reference: the installed reference library, with its version. A proof for another one does not hold.
    """
    library = installed_library()
    for proof in shipped_proofs().values():
        if (proof.key, proof.library, proof.reference) == (key, library, reference):
            return proof
    try:
        path = _path(key, str(library), reference)
        return decode_record(Proof, parse_json(read_regular(path), str(path), is_signed=True), str(path))
    except (OSError, FormatError):  # missing or damaged
        return None


@cache
def shipped_proofs() -> dict[str, Proof]:
    """Return the proofs that the package contains, by the name of their vocabulary."""
    proofs = cast("dict[str, object]", parse_json(read_regular(SHIPPED), str(SHIPPED)))
    return {name: decode_record(Proof, value, str(SHIPPED)) for name, value in proofs.items()}


def keep_proof(proof: Proof) -> None:
    """Keep a proof in the cache of this machine; raises OSError if that can't be written."""
    replace_file(_path(proof.key, proof.library, proof.reference), sign(proof))


def _path(*decides: str) -> Path:
    return default_cache_folder() / "proofs" / f"{sha256_of(decides)[:32]}.json"


@cache
def installed_library() -> str | None:
    """Return the fast library that is installed, with its version; None if it is not."""
    try:
        return f"gigatoken {version('gigatoken')}"
    except PackageNotFoundError:
        return None
