"""Proofs that a fast encoder gives the ids of a reference library: shipped with the package, or made on this machine.

A proof belongs to what the encoder is given of a tokenizer (Parts.key), so fine-tunes and chat templates share it. It
is made by the probe, which compares both libraries on all texts of its slices. The hashes of the reference's ids let
another machine, or another version of the fast library, be checked without the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tokenloom.errors import FormatError, TokenizerError, message_of
from tokenloom.storage.formats.canonical import read_signed_record
from tokenloom.tokenizers.machine_records import find_record, keep_record

_FOLDER = Path(__file__).parent / "proofs"
_KEY_DIGITS = 16  # in the name of a file


@dataclass(frozen=True, slots=True)
class Proof:
    """What a probe proved.

    Attributes:
        key: see Parts.key.
        library: the fast library, with its version.
        reference: the reference library, with its version.
        odd: ranges [first, last] of code points that go to the reference, besides those of left_to_reference.
        slices: a hash of the ids of each slice of the probe's texts.
    """

    key: str
    library: str
    reference: str
    odd: tuple[tuple[int, int], ...]
    slices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Refused:
    """What a probe found instead of a proof."""

    why: str


def find_proof(key: str, reference: str) -> Proof | None:
    """Return the proof for what a fast encoder is given, None if there is none.

    Args:
        key: see Parts.key.
        reference: the installed reference library, with its version. A proof for another one does not hold.
    """
    for path in _FOLDER.glob(f"*-{key[:_KEY_DIGITS]}.json"):
        proof = _shipped(path)
        if (proof.key, proof.reference) == (key, reference):
            return proof
    return find_record(Proof, [key, reference])


def _shipped(path: Path) -> Proof:
    try:
        return read_signed_record(path.read_bytes(), str(path), Proof)
    except (OSError, FormatError) as error:
        raise TokenizerError(
            f"a file of tokenloom itself is damaged: install it again ({message_of(error)})"
        ) from error


def keep_proof(proof: Proof) -> None:
    """Keep a proof that this machine made."""
    keep_record(proof, [proof.key, proof.reference])


def find_refusal(key: str, reference: str) -> str | None:
    """Return why a probe of this machine did not prove an encoder, as a clause; None if none has found a reason."""
    found = find_record(_Refused, _deciding_refusal(key, reference))
    return found.why if found else None


def keep_refusal(key: str, reference: str, why: str) -> None:
    """Keep why a probe of this machine did not prove an encoder."""
    keep_record(_Refused(why), _deciding_refusal(key, reference))


def _deciding_refusal(key: str, reference: str) -> list[object]:
    return [key, reference, installed_library()]


def installed_library() -> str | None:
    """Return the fast library that is installed, with its version; None if it is not."""
    try:
        return f"gigatoken {version('gigatoken')}"
    except PackageNotFoundError:
        return None
