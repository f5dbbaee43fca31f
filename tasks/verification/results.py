"""The result of a verification, as `tokenloom verify --json` prints it."""

from __future__ import annotations

from typing import TypedDict


class DamagedFile(TypedDict):
    """A damaged file of a version, its problem, and the next step."""

    file: str
    what: str
    next_step: str


class VerificationResult(TypedDict):
    """The JSON object of `tokenloom verify --json`."""

    reference: str
    version: str | None
    files: int
    bytes: int
    documents_encoded_again: int
    blocks_written: int
    damages: list[DamagedFile]
    warnings: list[str]
