"""The rows of a manifest that list shards: checked by columns, decoded one at a time.

A loop over the rows of 100,000 shards takes as long as parsing them, so the fields are checked as columns, and a row
becomes a ShardEntry on access.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from types import NoneType
from typing import TypedDict, cast

from tokenloom.storage.formats.records import COUNT_RULE, DIGEST_RULE, MAX_COUNT, JsonObject, Mismatch, fields_of

DOCS, BLOCKS = ".docs", ".blocks"  # suffixes of the files beside every shard
MASK = ".mask"  # beside every shard of a version with conversations
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}/[0-9]{6,18}\.tok")
_SUFFIX = re.compile(r"\.(?!tok\Z)[a-z]{1,16}\Z")

_Rule = tuple[Callable[[list[object]], bool], str]  # whether a column holds, and the rule in words


@dataclass(frozen=True, slots=True)
class FileEntry:
    """The length and SHA-256 of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard as the manifest lists it.

    `name` is the path of its `.tok` file in the version, `bytes` and `sha256` are of that file. `files` are those
    beside it by suffix, among them its document table and the checksums of its blocks. `first_key` and `last_key` are
    those of its documents, 16 hexadecimal digits each, None if it has none.
    """

    name: str
    bytes: int
    tokens: int
    documents: int
    sha256: str
    files: dict[str, FileEntry]
    first_key: str | None
    last_key: str | None

    @property
    def has_mask(self) -> bool:
        """Whether its tokens have classes."""
        return MASK in self.files

    @property
    def docs_name(self) -> str:
        """The path of its document table in the version."""
        return beside(self.name, DOCS)

    @property
    def listed(self) -> dict[str, FileEntry]:
        """Its files by their paths in the version: the `.tok` file, and those beside it."""
        files = {beside(self.name, suffix): file for suffix, file in self.files.items()}
        return {self.name: FileEntry(self.bytes, self.sha256)} | files


def beside(name: str, suffix: str) -> str:
    """Return the name of a file beside a shard: ("train/000000.tok", ".docs") -> "train/000000.docs"."""
    return name.removesuffix(".tok") + suffix


class FileRow(TypedDict):
    """The JSON of a FileEntry."""

    bytes: int
    sha256: str


class ShardRow(TypedDict):
    """The JSON of a ShardEntry."""

    name: str
    bytes: int
    tokens: int
    documents: int
    sha256: str
    files: dict[str, FileRow]
    first_key: str | None
    last_key: str | None


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
        found = ((entry, {suffix: fields_of(file) for suffix, file in entry.files.items()}) for entry in entries)
        return cls([cast(ShardRow, fields_of(entry) | {"files": files}) for entry, files in found])

    @classmethod
    def from_json(cls, value: object) -> Shards:
        """Return the shards in the JSON of `shards`; raises Mismatch if a field is invalid."""
        if not isinstance(value, list) or not _are_objects(value):
            raise Mismatch("", "a list of objects")
        _check(value, _RULES, "[]")
        files: list[JsonObject] = [row["files"] for row in value]
        suffixes = {DOCS, BLOCKS}.union(*files)
        for suffix in sorted(suffixes):
            if not _SUFFIX.match(suffix):
                raise Mismatch("[].files", f"files by suffix, not {suffix[:64]!r}")
            having = files if suffix in (DOCS, BLOCKS, MASK) else [each for each in files if suffix in each]
            _check(having, {suffix: _OBJECTS}, "[].files")
            _check([cast(JsonObject, each[suffix]) for each in having], _FILE_RULES, f"[].files{suffix}")
        if MASK in suffixes and any(row["files"][MASK]["bytes"] != row["tokens"] for row in value):
            raise Mismatch(f"[].files{MASK}.bytes", "the number of tokens")
        return cls(value)

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

    def are_of(self, split: str) -> bool:
        """Return whether all names begin with that of a split; if the least and the greatest do, all do."""
        names = [row["name"] for row in self.rows]
        return not names or all(name.startswith(f"{split}/") for name in (min(names), max(names)))

    def num_tokens(self) -> list[int]:
        """Return the tokens of each shard."""
        return [row["tokens"] for row in self.rows]

    def num_bytes(self) -> int:
        """Return the bytes of all `.tok` files."""
        return sum(row["bytes"] for row in self.rows)


def _entry(row: ShardRow) -> ShardEntry:
    files = {suffix: FileEntry(file["bytes"], file["sha256"]) for suffix, file in row["files"].items()}
    return ShardEntry(
        name=row["name"],
        bytes=row["bytes"],
        tokens=row["tokens"],
        documents=row["documents"],
        sha256=row["sha256"],
        files=files,
        first_key=row["first_key"],
        last_key=row["last_key"],
    )


def _check(rows: list[JsonObject], rules: Mapping[str, _Rule], place: str) -> None:
    """Raise Mismatch unless all rows, which are at `place`, have fields that follow the rules."""
    for field, (holds, text) in rules.items():
        name = f"{place}.{field.removeprefix('.')}"
        try:
            column = list(map(itemgetter(field), rows))
        except KeyError as error:
            raise Mismatch(name, "given for every shard") from error
        if not holds(column):
            raise Mismatch(name, text)


def _are(kind: type, column: list[object]) -> bool:
    return set(map(type, column)) <= {kind}


def _are_objects(column: list[object]) -> bool:
    return _are(dict, column)


def _are_names(column: list[object]) -> bool:
    return _are(str, column) and all(map(_NAME.fullmatch, cast(list[str], column)))


def _are_counts(column: list[object]) -> bool:
    if not _are(int, column):
        return False
    counts = cast(list[int], column)
    return min(counts, default=0) >= 0 and max(counts, default=0) <= MAX_COUNT


def _are_digests(column: list[object]) -> bool:
    if not _are(str, column):
        return False
    digests = cast(list[str], column)
    if set(map(len, digests)) - {64}:
        return False
    return not "".join(digests).encode("ascii", "replace").translate(None, b"0123456789abcdef")


def _are_keys(column: list[object]) -> bool:
    return set(map(type, column)) <= {str, NoneType}  # verification compares them with those of the documents


_OBJECTS: _Rule = (_are_objects, "an object")
_FILE_RULES: dict[str, _Rule] = {"bytes": (_are_counts, COUNT_RULE), "sha256": (_are_digests, DIGEST_RULE)}
_RULES: dict[str, _Rule] = {
    "name": (_are_names, "SPLIT/NNNNNN.tok"),
    **_FILE_RULES,
    "tokens": (_are_counts, COUNT_RULE),
    "documents": (_are_counts, COUNT_RULE),
    "files": _OBJECTS,
    "first_key": (_are_keys, "text or null"),
    "last_key": (_are_keys, "text or null"),
}
