"""The shards of a version as its manifest lists them, and their measures while they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from tokenloom.storage.formats.arrays import AnyArray
from tokenloom.storage.formats.records import Count, Digest, Rule

DOCS, BLOCKS = ".docs", ".blocks"  # suffixes of the files beside every shard
MASK = ".mask"  # beside every shard of a version with conversations
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}/[0-9]{6,18}\.tok")
_SUFFIX = re.compile(r"\.(?!tok\Z)[a-z]{1,16}\Z")
_Suffix = Annotated[str, Rule(_SUFFIX.match, "the suffix of a file")]


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
    files: dict[_Suffix, FileEntry]
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


def beside(name: str, suffix: str) -> str:
    """Return the name of a file beside a shard: ("train/000000.tok", ".docs") -> "train/000000.docs"."""
    return name.removesuffix(".tok") + suffix


class ShardMeasures:
    """Measures the documents of a shard while they are written, for the columns of its entry."""

    def __init__(self) -> None:
        self.columns: dict[str, Any] = {"first_key": None, "last_key": None}  # type: ignore[explicit-any]

    def add(self, rows: AnyArray) -> None:
        """Measure the next documents: their rows in the spills, (n,), in the order of the shard."""
        if len(keys := rows["key"]):
            self.columns["first_key"] = self.columns["first_key"] or f"{keys[0]:016x}"
            self.columns["last_key"] = f"{keys[-1]:016x}"


def _has_its_files(shard: dict[str, Any]) -> bool:  # type: ignore[explicit-any]
    files = shard["files"]
    return DOCS in files and BLOCKS in files and (MASK not in files or files[MASK]["bytes"] == shard["tokens"])


#: A shard of a manifest, checked.
ListedShard = Annotated[
    ShardEntry, Rule(_has_its_files, "a shard with .docs, .blocks, and as many bytes of .mask as tokens")
]
