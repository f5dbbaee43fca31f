"""The result of a verification: what `tokenloom verify --json` prints and the flow `verify-dataset` returns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypedDict

from tokenloom.storage.verification.verification import Damage


class DamagedFile(TypedDict):
    """A damaged file of a version: what is wrong, and what to do."""

    file: str
    what: str
    next_step: str


class VerificationResult(TypedDict):
    """What a verification read and found, as JSON."""

    reference: str
    version: str | None
    files: int
    bytes: int
    documents_encoded_again: int
    damages: list[DamagedFile]
    warnings: list[str]


def damaged_files(damages: Iterable[Damage]) -> list[DamagedFile]:
    """Return the damaged files, in the order they were found."""
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for damage in damages:
        by_file[damage.file].append(damage.what)
    return [DamagedFile(file=file, what="; ".join(what), next_step=_next_step(file)) for file, what in by_file.items()]


def _next_step(file: str) -> str:
    if file.startswith("tags/"):
        return "restore it from a copy; deleting the newest entry of a log makes the previous entry valid again"
    what = "it" if file.endswith("/manifest.json") else "it and the manifest.json of its version"
    return f"restore it from a copy, or delete {what} and build again from the same inputs, which makes the same bytes"
