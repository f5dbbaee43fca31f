"""The manifest of a version: what it holds, and the checksum of every file it lists.

Its checksum is right whoever wrote it, so every field is checked too: names that become paths match their patterns,
counts lie in [0, 2**63) and add up, checksums are hexadecimal. Fields that this release does not know are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from tokenloom.errors import FormatError, message_of
from tokenloom.storage.formats.canonical import read_signed, sha256_of, sign
from tokenloom.storage.formats.names import (
    FILE_PATTERN,
    NAME_PATTERN,
    SHA256_PATTERN,
    SPLIT_PATTERN,
    TOKENIZER_PATTERN,
    VERSION_PATTERN,
)
from tokenloom.storage.formats.records import JsonObject, Mismatch, fields_of
from tokenloom.storage.formats.shard_entries import (
    COUNT_RULE,
    DIGEST_RULE,
    MAX_COUNT,
    ShardEntry,
    Shards,
    decode_shards,
)

FORMAT_VERSION = 1
NAME = "manifest.json"
INPUTS = "inputs.json"
QUARANTINE = "quarantine.jsonl"  # listed like inputs.json, only if a row was skipped
BUILD = "build.json"  # the one file of a version that is not listed: times, hosts, library versions

_ROWS = ("read", "filtered", "excluded", "quarantined", "duplicates", "kept")
_MAX_ID = 2**32 - 1


@dataclass(frozen=True, slots=True)
class TokenizerEntry:
    """The tokenizer that a version was built with."""

    kind: str
    name: str
    fingerprint: str
    vocab_size: int
    eot_id: int

    @property
    def label(self) -> JsonObject:
        """Its name, kind and vocabulary size, as `--json` prints them."""
        return {"name": self.name, "kind": self.kind, "vocab_size": self.vocab_size}


@dataclass(frozen=True, slots=True)
class Split:
    """What a version holds of a split; `duplicates` counts the documents that were dropped as such."""

    tokens: int
    documents: int
    duplicates: int
    shards: Shards


@dataclass(frozen=True, slots=True)
class RowCounts:
    """What became of the rows that were read; 0 where the manifest does not say."""

    read: int = 0
    filtered: int = 0
    excluded: int = 0
    quarantined: int = 0
    duplicates: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a version holds.

    `spec` is the identity part of the spec, `files` the SHA-256 of every other listed file by name. `raw` is the JSON
    that was read, with the fields that this release does not know; it is empty in a manifest that is being built.
    """

    dataset: str
    version: str
    spec: JsonObject
    tokenizer: TokenizerEntry
    splits: dict[str, Split]
    rows: RowCounts
    files: dict[str, str]
    raw: JsonObject = field(default_factory=dict, repr=False, compare=False)

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
        return sum(split.shards.num_bytes() for split in self.splits.values())

    @property
    def tokenizer_definition(self) -> JsonObject:
        """What the tokenizer is made from."""
        return _object(self.spec, "tokenizer")

    @property
    def row_counts(self) -> dict[str, int]:
        """The counts of rows as they were read, by name, with those that this release does not know."""
        return cast(dict[str, int], self.raw["rows"])


def ordered_rows(rows: Mapping[str, int]) -> dict[str, int]:
    """Return a manifest's `rows` in the order of a build: read, what was left out at each step, kept."""
    known = {name: rows[name] for name in _ROWS if name in rows}
    return known | dict(rows)


def given_options(options: Mapping[str, object]) -> JsonObject:
    """Return the options that a name depends on: all but those that are absent (null, an empty list or object).

    Defaults are among them, so that a default that changes makes other names. A new option must default to absent: then
    the names of what does not use it stay.
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
    splits = {name: fields_of(split) | {"shards": split.shards.rows} for name, split in manifest.splits.items()}
    value = fields_of(manifest) | {"format_version": FORMAT_VERSION, "splits": splits}
    del value["raw"]
    return sign(value)


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
    try:
        return Manifest(
            dataset=_text(value, "dataset", NAME_PATTERN.match, "a dataset's name"),
            version=_text(value, "version", VERSION_PATTERN.match, "16 hexadecimal digits"),
            tokenizer=_tokenizer(_object(value, "tokenizer")),
            spec=_spec(_object(value, "spec")),
            rows=_rows(_object(value, "rows")),
            files=_files(_object(value, "files")),
            splits=_splits(_object(value, "splits")),
            raw=value,
        )
    except Mismatch as error:
        raise FormatError(f"{place}: {message_of(error)}; the program that wrote it has a bug; restore it") from error


def _tokenizer(value: JsonObject) -> TokenizerEntry:
    kind = _text(value, "kind", NAME_PATTERN.match, "a name", "tokenizer.kind")
    name = _text(value, "name", TOKENIZER_PATTERN.match, "a name", "tokenizer.name")
    fingerprint = _text(value, "fingerprint", SHA256_PATTERN.match, DIGEST_RULE, "tokenizer.fingerprint")
    vocab_size = _count(value.get("vocab_size"), "tokenizer.vocab_size", "in [1, 2**32]", _MAX_ID + 1)
    _require(vocab_size > 0, "tokenizer.vocab_size", "in [1, 2**32]")
    eot_id = _count(value.get("eot_id"), "tokenizer.eot_id", "in [0, vocab_size)", vocab_size - 1)
    return TokenizerEntry(kind, name, fingerprint, vocab_size, eot_id)


def _spec(value: JsonObject) -> JsonObject:
    """Check what a tokenizer is made from: its files are in the version, never at a path that the manifest names."""
    definition = _object(value, "tokenizer", "spec.tokenizer")
    _text(definition, "kind", NAME_PATTERN.match, "a name", "spec.tokenizer.kind")
    for name in ("path", "ranks", "encoder"):
        _require(name not in definition, f"spec.tokenizer.{name}", "absent: a version names no path")
    for name in ("name", "revision", "eot", "bos", "pattern"):
        text = definition.get(name)
        _require(text is None or (isinstance(text, str) and _is_unicode(text)), f"spec.tokenizer.{name}", "text")
    special = definition.get("special_tokens", {})
    is_valid = isinstance(special, dict) and all(
        _is_count(number, _MAX_ID) and _is_unicode(token) for token, number in special.items()
    )
    _require(is_valid, "spec.tokenizer.special_tokens", "ids in [0, 2**32) by token")
    return value


def _rows(value: JsonObject) -> RowCounts:
    for name, count in value.items():
        _require(_is_count(count) and name.isidentifier(), f"rows.{name[:64]}", "a name with a count in [0, 2**63)")
    return RowCounts(**{name: _count(value[name], f"rows.{name}") for name in _ROWS if name in value})


def _files(value: JsonObject) -> dict[str, str]:
    for name in value:
        _require(bool(FILE_PATTERN.match(name)), "files", f"names of files in the version, not {name[:64]!r}")
    return {name: _text(value, name, SHA256_PATTERN.match, DIGEST_RULE, f"files.{name}") for name in value}


def _splits(value: JsonObject) -> dict[str, Split]:
    for name in value:
        _require(bool(SPLIT_PATTERN.match(name)), "splits", f"names of splits, not {name[:64]!r}")
    return {name: _split(name, _object(value, name, f"splits.{name}")) for name in value}


def _split(name: str, value: JsonObject) -> Split:
    tokens, documents, duplicates = (
        _count(value.get(field), f"splits.{name}.{field}") for field in ("tokens", "documents", "duplicates")
    )
    try:
        shards = decode_shards(value.get("shards"), name)
    except Mismatch as error:
        raise error.inside(f"splits.{name}") from None
    _require(sum(shards.num_tokens()) == tokens, f"splits.{name}.tokens", "the sum of its shards' tokens")
    return Split(tokens, documents, duplicates, shards)


def _is_count(value: object, largest: int = MAX_COUNT) -> bool:
    return type(value) is int and 0 <= value <= largest


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)  # halves of a pair, from JSON's escapes


def _count(value: object, place: str, rule: str = COUNT_RULE, largest: int = MAX_COUNT) -> int:
    if type(value) is not int or not 0 <= value <= largest:
        raise Mismatch(place, rule)
    return value


def _text(parent: JsonObject, name: str, matches: Callable[[str], object], rule: str, place: str = "") -> str:
    value = parent.get(name)
    if not isinstance(value, str) or not matches(value):
        raise Mismatch(place or name, rule)
    return value


def _object(parent: JsonObject, name: str, place: str = "") -> JsonObject:
    value = parent.get(name)
    if not isinstance(value, dict):
        raise Mismatch(place or name, "an object")
    return value


def _require(holds: bool, place: str, rule: str) -> None:
    if not holds:
        raise Mismatch(place, rule)
