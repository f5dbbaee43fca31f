"""Proofs that a fast encoder gives the ids of the reference."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Proof:
    """What a probe found about a vocabulary.

    Attributes:
        key: that of its Parts.
        library: the fast encoder's name and version.
        reference: the reference library's name and version.
        odd: ranges [first, last] of code points that go to the reference, besides those of left_to_reference.
        slices: the hash of the ids of each slice of texts, see probe_texts.py.
    """

    key: str
    library: str
    reference: str
    odd: list[tuple[int, int]]
    slices: list[str]
