"""The rows of a manifest that list shards: checked by columns, decoded one at a time.

A loop over the rows of 100,000 shards takes as long as parsing them, so the fields are checked as columns, and a row
becomes a ShardEntry on access.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import NotRequired, TypedDict, cast

from tokenloom.storage.formats.records import Mismatch, fields_of

MAX_COUNT = 2**63 - 1
COUNT_RULE, DIGEST_RULE = "a count in [0, 2**63)", "a SHA-256 in hexadecimal"


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard as the manifest lists it.

    `name` is the path of its `.tok` file in the version, `bytes` and `sha256` are of that file, `docs_sha256` is of its
    document table. `first_key` and `last_key` are those of its documents, 16 hexadecimal digits each, None if it has
    none. `samples` counts its samples by packing and length, see `sample_key`.
    """

    name: str
    bytes: int
    tokens: int
    documents: int
    sha256: str
    docs_sha256: str | None
    first_key: str | None
    last_key: str | None
    samples: dict[str, int]

    @property
    def docs_name(self) -> str:
        """The path of its document table in the version."""
        return f"{self.name.removesuffix('.tok')}.docs"


class ShardRow(TypedDict):
    """The JSON of a ShardEntry; a reader does not need the last three."""

    name: str
    bytes: int
    tokens: int
    documents: int
    sha256: str
    samples: dict[str, int]
    docs_sha256: NotRequired[str]
    first_key: NotRequired[str | None]
    last_key: NotRequired[str | None]


class Shards:
    """The shards of a split, each decoded on access.

    Args:
        rows: their JSON, checked.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: list[ShardRow]) -> None:
        self.rows = rows

    @classmethod
    def of(cls, entries: Iterable[ShardEntry]) -> Shards:
        """Return the shards with these entries."""
        return cls([cast(ShardRow, fields_of(entry)) for entry in entries])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> ShardEntry:
        return _entry(self.rows[index])

    def __iter__(self) -> Iterator[ShardEntry]:
        return map(_entry, self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shards) and self.rows == other.rows

    def __repr__(self) -> str:
        return f"Shards({list(self)})"

    def num_tokens(self) -> list[int]:
        """Return the tokens of each shard."""
        return [row["tokens"] for row in self.rows]

    def num_bytes(self) -> int:
        """Return the bytes of all `.tok` files."""
        return sum(row["bytes"] for row in self.rows)


def _entry(row: ShardRow) -> ShardEntry:
    return ShardEntry(
        name=row["name"],
        bytes=row["bytes"],
        tokens=row["tokens"],
        documents=row["documents"],
        sha256=row["sha256"],
        docs_sha256=row.get("docs_sha256"),
        first_key=row.get("first_key"),
        last_key=row.get("last_key"),
        samples=row["samples"],
    )


def decode_shards(value: object, split: str) -> Shards:
    """Return the shards of a split; raises Mismatch if a field that a reader needs is invalid.

    Args:
        value: the JSON of `shards` in the split.
        split: its name, with which its shards' names begin.
    """
    if not isinstance(value, list) or set(map(type, value)) - {dict}:
        raise Mismatch("shards", "a list of objects")
    for field, (holds, rule) in _rules(split).items():
        if not holds(_column(value, field)):
            raise Mismatch(f"shards[].{field}", rule)
    return Shards(value)


def _rules(split: str) -> dict[str, tuple[Callable[[list[object]], bool], str]]:
    """Return the check of each column that a reader needs, and its rule in words, by field."""
    names = re.compile(rf"{split}/[0-9]{{6,18}}\.tok").fullmatch
    return {
        "name": (lambda column: _are(str, column) and all(map(names, cast(list[str], column))), f"{split}/NNNNNN.tok"),
        "bytes": (_are_counts, COUNT_RULE),
        "tokens": (_are_counts, COUNT_RULE),
        "documents": (_are_counts, COUNT_RULE),
        "sha256": (_are_digests, DIGEST_RULE),
        "samples": (lambda column: _are(dict, column), "an object"),
    }


def _column(rows: list[object], field: str) -> list[object]:
    try:
        return list(map(itemgetter(field), cast(list[ShardRow], rows)))
    except KeyError as error:
        raise Mismatch(f"shards[].{field}", "given for every shard") from error


def _are(kind: type, column: list[object]) -> bool:
    return set(map(type, column)) <= {kind}


def _are_digests(column: list[object]) -> bool:
    if not _are(str, column):
        return False
    digests = cast(list[str], column)
    if set(map(len, digests)) - {64}:
        return False
    return not "".join(digests).encode("ascii", "replace").translate(None, b"0123456789abcdef")


def _are_counts(column: list[object]) -> bool:
    if not column or not _are(int, column):
        return not column
    counts = cast(list[int], column)
    return min(counts) >= 0 and max(counts) <= MAX_COUNT
