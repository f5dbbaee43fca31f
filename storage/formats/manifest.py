"""The manifest of a version: its splits and shards, and the checksum of every file it lists.

Its checksum is right whoever wrote it, so every field is checked too: names that become paths match their patterns,
counts lie in [0, 2**63) and add up, checksums are hexadecimal. Fields that this release does not know are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any, cast

from tokenloom.errors import FormatError
from tokenloom.storage.formats.names import (
    FILE_PATTERN,
    NAME_PATTERN,
    SPLIT_PATTERN,
    TOKENIZER_PATTERN,
    VERSION_PATTERN,
)
from tokenloom.storage.formats.records import (
    Count,
    Digest,
    JsonObject,
    Rule,
    column,
    decode_record,
    fields_of,
    plain_json,
    read_signed,
    sha256_of,
    sign,
)
from tokenloom.storage.formats.shard_entries import MASK, ListedShard, ShardEntry

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
INPUTS = "inputs.json"
QUARANTINE = "quarantine.jsonl"  # listed like inputs.json, only if a row was skipped
BUILD = "build.json"  # the one file of a version that is not listed: times, hosts, library versions

_Json = dict[str, Any]  # type: ignore[explicit-any]
Name = Annotated[str, Rule(NAME_PATTERN.match, "a name")]
VersionName = Annotated[str, Rule(VERSION_PATTERN.match, "16 hexadecimal digits")]
_TokenId = Annotated[int, Rule(lambda value: 0 <= value < 2**32, "in [0, 2**32)")]


@dataclass(frozen=True, slots=True)
class TokenizerEntry:
    """The tokenizer that a version was built with."""

    kind: Name
    name: Annotated[str, Rule(TOKENIZER_PATTERN.match, "a name")]
    fingerprint: Digest
    vocab_size: Annotated[int, Rule(lambda value: 1 <= value <= 2**32, "in [1, 2**32]")]
    eot_id: _TokenId


@dataclass(frozen=True, slots=True)
class SplitEntry:
    """A split of a version; `duplicates` counts the documents that were dropped as such."""

    tokens: Count
    documents: Count
    duplicates: Count
    shards: Sequence[ListedShard]

    @property
    def shard_bytes(self) -> int:
        """The length of its shards, without the files beside them, in bytes."""
        return sum(column(self.shards, "bytes"))


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The rows that were read, and how many were left out at each step of a build, or kept."""

    read: Count
    filtered: Count
    excluded: Count
    quarantined: Count
    duplicates: Count
    kept: Count


def _add_up(split: _Json) -> bool:
    return all(split[name] == sum(map(itemgetter(name), split["shards"])) for name in ("tokens", "documents"))


def _name_their_shards(splits: dict[str, _Json]) -> bool:
    return all(shard["name"].startswith(f"{name}/") for name, split in splits.items() for shard in split["shards"])


def _are_masked_alike(splits: dict[str, _Json]) -> bool:
    return len({MASK in shard["files"] for split in splits.values() for shard in split["shards"]}) < 2


_Tokenizer = Annotated[
    TokenizerEntry,
    Rule(lambda entry: entry["eot_id"] < entry["vocab_size"], "a tokenizer with an eot_id below vocab_size"),
]
_Split = Annotated[SplitEntry, Rule(_add_up, "a split with the tokens and documents of its shards")]
_Splits = Annotated[
    dict[Annotated[str, Rule(SPLIT_PATTERN.match, "the name of a split")], _Split],
    Rule(_name_their_shards, "splits whose shards are named SPLIT/NNNNNN.tok"),
    Rule(_are_masked_alike, "splits of which all shards have masks, or none has"),
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
    files: dict[Annotated[str, Rule(FILE_PATTERN.match, "the name of a file in the version")], Digest]

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
        """Return its JSON, without the checksum."""
        return {"format_version": FORMAT_VERSION, **plain_json(fields_of(self))}


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


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of manifest.json."""
    return sign({"format_version": FORMAT_VERSION} | fields_of(manifest))


def read_manifest(data: bytes, place: str) -> Manifest:
    """Return the manifest in `data`; raises FormatError if it is damaged, of another format, or not a manifest.

    Args:
        data: the bytes of manifest.json.
        place: its path, for the message.
    """
    value = read_signed(data, place)
    check_format(value, place)
    return decode_manifest(value, place)


def check_format(value: JsonObject, place: str) -> None:
    """Raise FormatError if a manifest has a format that this release does not read."""
    if value.get("format_version") != FORMAT_VERSION:
        raise FormatError(
            f"{place}: manifest format {value.get('format_version')}; this release reads format "
            f"{FORMAT_VERSION}: update tokenloom"
        )


def decode_manifest(value: JsonObject, place: str) -> Manifest:
    """Return the JSON of a manifest, checked; raises FormatError if a field is invalid."""
    manifest = decode_record(Manifest, value, place)
    decode_record(_Spec, manifest.spec, place, "spec")
    return manifest


# Halves of a pair of surrogates come from JSON's escapes.
_Text = Annotated[str, Rule(lambda text: text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text), "text")]
_Absent = Annotated[object, Rule(lambda _: False, "absent: a version names no path")]


@dataclass(frozen=True, slots=True)
class _Definition:
    """The definition of a tokenizer, whose files are in the version, never at a path that the manifest names."""

    kind: Name
    name: _Text | None = None
    revision: _Text | None = None
    eot: _Text | None = None
    bos: _Text | None = None
    pattern: _Text | None = None
    special_tokens: dict[_Text, _TokenId] | None = None
    path: _Absent = None
    ranks: _Absent = None


@dataclass(frozen=True, slots=True)
class _Spec:
    tokenizer: _Definition
