"""The rows of a manifest that list shards: checked by columns, decoded one at a time.

A loop over the rows of 100,000 shards takes as long as parsing them, so the fields are checked as columns, and a row
becomes a ShardEntry on access.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Annotated, Any, get_type_hints

from tokenloom.storage.formats.records import Count, Digest, Mismatch, Rule, check_column, fields_of

DOCS, BLOCKS = ".docs", ".blocks"  # suffixes of the files beside every shard
MASK = ".mask"  # beside every shard of a version with conversations
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}/[0-9]{6,18}\.tok")
_SUFFIX = re.compile(r"\.(?!tok\Z)[a-z]{1,16}\Z")

#: the JSON of a ShardEntry or FileEntry, and the values of a field of many
_Row = dict[str, Any]  # type: ignore[explicit-any]
_Column = list[Any]  # type: ignore[explicit-any]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """The length and SHA-256 of a file."""

    bytes: Count
    sha256: Digest


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard as the manifest lists it.

    `name` is the path of its `.tok` file in the version, `bytes` and `sha256` are of that file. `files` are those
    beside it by suffix, among them its document table and the checksums of its blocks. `first_key` and `last_key` are
    those of its documents, 16 hexadecimal digits each, None if it has none.
    """

    name: Annotated[str, Rule(_NAME.fullmatch, "SPLIT/NNNNNN.tok")]
    bytes: Count
    tokens: Count
    documents: Count
    sha256: Digest
    files: dict[str, FileEntry]
    first_key: str | None  # verification compares both with the keys of the documents
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


_FIELDS = [field.name for field in fields(ShardEntry)]
_HINTS: dict[type, _Row] = {kind: get_type_hints(kind, include_extras=True) for kind in (ShardEntry, FileEntry)}


def beside(name: str, suffix: str) -> str:
    """Return the name of a file beside a shard: ("train/000000.tok", ".docs") -> "train/000000.docs"."""
    return name.removesuffix(".tok") + suffix


class Shards:
    """The shards of a split, each decoded on access.

    Args:
        rows: their JSON, checked.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: list[_Row]) -> None:
        self.rows = rows

    @classmethod
    def of(cls, entries: Iterable[ShardEntry]) -> Shards:
        """Return the shards with these entries."""
        found = ((entry, {suffix: fields_of(file) for suffix, file in entry.files.items()}) for entry in entries)
        return cls([fields_of(entry) | {"files": files} for entry, files in found])

    @classmethod
    def from_json(cls, value: object) -> Shards:
        """Return the shards in the JSON of `shards`; raises Mismatch if a field is invalid."""
        if not isinstance(value, list) or not set(map(type, value)) <= {dict}:
            raise Mismatch("", "a list of objects")
        columns = _columns(ShardEntry, value, "[]")
        files = columns["files"]
        suffixes = {DOCS, BLOCKS}.union(*files)
        for suffix in sorted(suffixes):
            if not _SUFFIX.match(suffix):
                raise Mismatch("[].files", f"files by suffix, not {suffix[:64]!r}")
            having = files if suffix in (DOCS, BLOCKS, MASK) else [each for each in files if suffix in each]
            listed = _column(having, suffix, dict[str, object], "[].files")
            lengths = _columns(FileEntry, listed, f"[].files{suffix}")["bytes"]
            if suffix == MASK and lengths != columns["tokens"]:
                raise Mismatch(f"[].files{MASK}.bytes", "the number of tokens")
        return cls(value)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> ShardEntry:
        row = self.rows[index]
        files = {suffix: FileEntry(file["bytes"], file["sha256"]) for suffix, file in row["files"].items()}
        return ShardEntry(**{name: row[name] for name in _FIELDS} | {"files": files})

    def __iter__(self) -> Iterator[ShardEntry]:
        return map(self.__getitem__, range(len(self.rows)))

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


def _columns(kind: type, rows: list[_Row], place: str) -> dict[str, _Column]:
    """Return the fields of records that are at `place`, each as a column; raise Mismatch if one is invalid."""
    return {name: _column(rows, name, hint, place) for name, hint in _HINTS[kind].items()}


def _column(rows: list[_Row], name: str, hint: object, place: str) -> _Column:
    place = f"{place}.{name.removeprefix('.')}"
    try:
        column = list(map(itemgetter(name), rows))
    except KeyError as error:
        raise Mismatch(place, "given for every shard") from error
    check_column(hint, column, place)
    return column
