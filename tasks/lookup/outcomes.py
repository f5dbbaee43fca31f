"""What a lookup returns; docs/format.md describes the fields that `tokenloom where --json` prints of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict

Status = Literal[
    "found",
    "duplicate",  # the text is in the version, from another row
    "filtered",
    "excluded",
    "quarantined",
    "not_an_input",
    "no_such_row",
    "not_found",
]


class FoundDocument(TypedDict):
    """A document of a version: tokens [start, start + num_tokens) of a shard, and where it comes from."""

    split: str
    shard: str
    start: int
    num_tokens: int
    source: str
    path: str
    row: int
    content: str
    id: NotRequired[str | None]  # where a source of the version names ids


class HashedText(TypedDict):
    """A text whose content was looked up, and what it is of the file."""

    what: str
    bytes: int
    content: str


@dataclass(frozen=True)
class Lookup:
    """The result of a lookup: its status, the reason in words, the documents, and the texts that were hashed."""

    status: Status
    reason: str
    documents: list[FoundDocument]
    hashed: list[HashedText]
