"""The manifest of a version: its splits and shards, and the checksum of every file it lists.

Its checksum is right whoever wrote it, so every field is checked too: names that become paths match their patterns,
counts lie in [0, 2**63) and add up, checksums are hexadecimal. Fields that this release does not know are ignored;
what a reader must know to use the data is named in `needs`, and a name that this release does not know is refused.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypedDict, cast

from tokenloom.errors import FormatError
from tokenloom.storage.formats.records import (
    Count,
    Digest,
    JsonObject,
    Rule,
    decode_record,
    fields_of,
    parse_json,
    sha256_of,
)
from tokenloom.wording import first_of

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
INPUTS = "inputs.json"
QUARANTINE = "quarantine.jsonl"  # listed like inputs.json, only if a row was skipped
BUILD = "build.json"  # the one file of a version that is not listed: times, hosts, library versions

CATALOGUE = "index.html"  # the catalogue, a file beside the datasets of a store
SHARD, DOCS, BLOCKS = ".tok", ".docs", ".blocks"  # suffixes of a shard and of the files beside it
MASK = ".mask"  # in a version with conversations

# The names in a store; no other name becomes part of a path, whoever wrote it.
#: of datasets and tags
NAME_PATTERN = re.compile(r"(?!(?:[0-9a-f]{16}|index\.html)\Z)[a-z][a-z0-9._-]{0,63}\Z")
VERSION_PATTERN = re.compile(r"[0-9a-f]{16}\Z")
#: of tokenizers: a label, or a model on the Hugging Face Hub
_TOKENIZER = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,95}\Z")
_SPLIT = re.compile(r"[a-z][a-z0-9_-]{0,31}\Z")
_SHARD = re.compile(r"[a-z][a-z0-9_-]{0,31}/[0-9]{6,18}\.tok\Z")
_SUFFIX = re.compile(r"\.(?!tok\Z)[a-z]{1,16}\Z")
#: of the files that a manifest lists beside its shards: inputs.json, tokenizer/vocab.bpe
_FILE = re.compile(r"(?:[a-z][a-z0-9_-]{0,31}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")

Name = Annotated[str, Rule(NAME_PATTERN.match, "a name")]
VersionName = Annotated[str, Rule(VERSION_PATTERN.match, "16 hexadecimal digits")]
_TokenId = Annotated[int, Rule(lambda value: 0 <= value < 2**32, "in [0, 2**32)")]


@dataclass(frozen=True, slots=True)
class TokenizerEntry:
    """The tokenizer that a version was built with."""

    kind: Name
    name: Annotated[str, Rule(_TOKENIZER.match, "a name")]
    fingerprint: Digest
    vocab_size: Annotated[int, Rule(lambda value: 1 <= value <= 2**32, "in [1, 2**32]")]
    eot_id: _TokenId


class FileEntry(TypedDict):
    """The length and SHA-256 of a file; a dictionary as in JSON, since a manifest may list 300,000."""

    bytes: Count
    sha256: Digest


@dataclass(slots=True)  # not frozen: a manifest may list 100,000, and Python takes four times as long for frozen ones
class ShardEntry:
    """A shard as the manifest lists it.

    `name` is the path of its `.tok` file in the version, `bytes` and `sha256` are of that file. `files` are those
    beside it by suffix, among them its document table and the checksums of its blocks. `first_key` and `last_key` are
    those of its documents, 16 hexadecimal digits each, None if it has none.
    """

    name: Annotated[str, Rule(_SHARD.match, "SPLIT/NNNNNN.tok")]
    bytes: Count
    tokens: Count
    documents: Count
    sha256: Digest
    files: _ShardFiles
    first_key: str | None
    last_key: str | None

    @property
    def split(self) -> str:
        """The name of its split."""
        return self.name.partition("/")[0]

    @property
    def has_mask(self) -> bool:
        """Whether its tokens have classes."""
        return MASK in self.files

    @property
    def listed(self) -> dict[str, FileEntry]:
        """Its files by their paths in the version: the `.tok` file, and those beside it."""
        files = {beside(self.name, suffix): file for suffix, file in self.files.items()}
        return {self.name: FileEntry(bytes=self.bytes, sha256=self.sha256)} | files


def beside(name: str, suffix: str) -> str:
    """Return the name of a file beside a shard: ("train/000000.tok", ".docs") -> "train/000000.docs"."""
    return name.removesuffix(SHARD) + suffix


@dataclass(frozen=True, slots=True)
class SplitEntry:
    """A split of a version; `duplicates` counts the documents that were dropped as such."""

    tokens: Count
    documents: Count
    duplicates: Count
    shards: list[_Shard]

    @property
    def shard_bytes(self) -> int:
        """The length of its shards, without the files beside them, in bytes."""
        return sum(shard.bytes for shard in self.shards)


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The rows that were read, and how many were left out at each step of a build, or kept; `copies` of those."""

    read: Count
    filtered: Count
    excluded: Count
    quarantined: Count
    duplicates: Count
    kept: Count
    marked: Count = field(default=0, metadata={"absent": 0})
    copies: Count = field(default=0, metadata={"absent": 0})


@dataclass(frozen=True, slots=True)
class InputEntry:
    """An input file; `path` is relative to the root of its source."""

    source: str
    path: str
    fingerprint: str
    bytes: Count


@dataclass(frozen=True, slots=True)
class Inputs:
    """The content of inputs.json."""

    inputs: list[InputEntry]


_Tokenizer = Annotated[
    TokenizerEntry,
    Rule(lambda entry: entry.eot_id < entry.vocab_size, "a tokenizer with an eot_id below vocab_size"),
]
_ShardFiles = Annotated[
    dict[str, FileEntry],
    Rule(lambda shards: all(map(_SUFFIX.match, set().union(*shards))), "files by suffix", of_all=True),
]
_Files = Annotated[
    dict[str, Digest], Rule(lambda files: all(map(_FILE.match, files)), "files by their names in the version")
]
_Shard = Annotated[
    ShardEntry,
    Rule(lambda shard: DOCS in shard.files and BLOCKS in shard.files, "a shard with .docs and .blocks"),
    Rule(
        lambda shard: MASK not in shard.files or shard.files[MASK]["bytes"] == shard.tokens,
        "a shard with a byte of .mask for each token",
    ),
]
_SUMS = ("tokens", "documents")
_Split = Annotated[
    SplitEntry,
    Rule(
        lambda split: all(getattr(split, name) == sum(getattr(each, name) for each in split.shards) for name in _SUMS),
        "a split with the tokens and documents of its shards",
    ),
]
_Splits = Annotated[
    dict[str, _Split],
    Rule(lambda splits: all(map(_SPLIT.match, splits)), "splits with names of [a-z][a-z0-9_-]*"),
    Rule(
        lambda splits: all({s.name.partition("/")[0] for s in splits[name].shards} <= {name} for name in splits),
        "splits whose shards are named SPLIT/NNNNNN.tok",
    ),
    Rule(
        lambda splits: len({MASK in shard.files for split in splits.values() for shard in split.shards}) < 2,
        "splits of which all shards have masks, or none has",
    ),
]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version: splits with their shards, and other files.

    `spec` is the identity part of the spec, `files` the SHA-256 of every listed file by name, without those of shards.
    """

    dataset: Name
    version: VersionName
    spec: JsonObject
    tokenizer: _Tokenizer
    splits: _Splits
    rows: RowCounts
    files: _Files
    format_version: int = FORMAT_VERSION

    @property
    def shards(self) -> list[ShardEntry]:
        """The shards of all splits."""
        return [shard for split in self.splits.values() for shard in split.shards]

    @property
    def num_documents(self) -> int:
        """The number of documents in all splits."""
        return sum(split.documents for split in self.splits.values())

    @property
    def num_tokens(self) -> int:
        """The number of tokens in all splits."""
        return sum(split.tokens for split in self.splits.values())

    @property
    def shard_bytes(self) -> int:
        """The length of all shards, without their document tables, in bytes."""
        return sum(split.shard_bytes for split in self.splits.values())

    @property
    def tokenizer_definition(self) -> JsonObject:
        """The definition from which the tokenizer is loaded."""
        return cast(JsonObject, self.spec["tokenizer"])

    @property
    def row_counts(self) -> dict[str, int]:
        """The counts of rows by name, in the order of a build."""
        return cast(dict[str, int], fields_of(self.rows))

    def json(self) -> JsonObject:
        """Return its JSON, without the checksum, and the format first."""
        return {"format_version": FORMAT_VERSION, **json.loads(json.dumps(self, default=fields_of))}


def given_options(options: Mapping[str, object]) -> JsonObject:
    """Return the options that a name depends on: all but those that are absent (null, an empty list or object).

    Defaults are among them, so that a default that changes makes other names. A new option must default to absent: then
    versions that do not use it keep their names.
    """
    nested = {name: given_options(value) if isinstance(value, dict) else value for name, value in options.items()}
    return {name: value for name, value in nested.items() if value not in (None, [], {})}


def version_name(identity: Mapping[str, object], inputs: list[tuple[str, str, str]], tokenizer_fingerprint: str) -> str:
    """Return the name of the version that these inputs make: 16 hexadecimal digits.

    Args:
        identity: the identity part of the spec, see BuildSpec.identity.
        inputs: (source name, path, fingerprint) of every file, in order.
        tokenizer_fingerprint: see tokenloom/tokenizers.
    """
    parts = {
        "format_version": FORMAT_VERSION,
        "identity": identity,
        "inputs": [list(item) for item in inputs],
        "tokenizer": tokenizer_fingerprint,
    }
    return sha256_of(parts)[:16]


@dataclass(frozen=True, slots=True)
class _Needs:
    """What a reader of a version must know; this release knows no entry."""

    needs: list[str] = field(default_factory=list)


def read_manifest(data: bytes, place: str, version: str | None = None) -> Manifest:
    """Return the manifest in `data`.

    Raises FormatError if it is damaged, of another format, not a manifest, or needs what this release does not know.

    Args:
        data: the bytes of manifest.json.
        place: its path, for the message.
        version: the version that it must be of, None for any.
    """
    collects = gc.isenabled()
    gc.disable()  # JSON has no cycles, and one collection in a program with torch takes 150 ms
    try:
        value = cast(JsonObject, parse_json(data, place, is_signed=True))
        if (given := value.get("format_version")) != FORMAT_VERSION:
            raise FormatError(
                f"{place}: manifest format {given}; this release reads format {FORMAT_VERSION}: update tokenloom"
            )
        if needs := decode_record(_Needs, value, place).needs:
            raise FormatError(f"{place}: it needs {first_of(needs)}, unknown to this release: update tokenloom")
        manifest = decode_record(Manifest, value, place)
        decode_record(_Spec, manifest.spec, place, "spec")
    finally:
        if collects:
            gc.enable()
    if version and manifest.version != version:
        raise FormatError(f"{place}: it is the manifest of {manifest.version}, not of {version}")
    return manifest


# Halves of a pair of surrogates come from JSON's escapes.
_TEXT = re.compile(r"[^\ud800-\udfff]*\Z")
_Text = Annotated[str, Rule(_TEXT.match, "text")]
_Tokens = Annotated[dict[str, _TokenId], Rule(lambda tokens: all(map(_TEXT.match, tokens)), "ids by text")]
_Absent = Annotated[object, Rule(lambda value: value is None, "absent: a version names no path")]


@dataclass(frozen=True, slots=True)
class _Definition:
    """The definition of a tokenizer, whose files are in the version, never at a path that the manifest names."""

    kind: Name
    name: _Text | None = None
    revision: _Text | None = None
    eot: _Text | None = None
    bos: _Text | None = None
    pattern: _Text | None = None
    special_tokens: _Tokens | None = None
    path: _Absent = None
    ranks: _Absent = None


@dataclass(frozen=True, slots=True)
class _Spec:
    tokenizer: _Definition
