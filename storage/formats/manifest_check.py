"""What a manifest must look like before any of it is believed: its checksum holds whoever wrote it.

Names that become paths match their patterns, counts are in [0, 2**63) and add up, checksums are hexadecimal; so what
reads a checked manifest meets no other types, and no path leaves the version. Fields that are not known are left alone.
Shards are checked by columns: a loop over 100,000 of them would take as long as parsing them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from tokenloom.storage.formats.names import FILE_PATTERN, NAME_PATTERN, SHA256_PATTERN, SPLIT_PATTERN, VERSION_PATTERN

_MAX_COUNT = 2**63 - 1
_MAX_ID = 2**32 - 1
_SHARD_FIELDS = ("name", "bytes", "tokens", "documents", "sha256", "samples")  # what a reader needs
_COUNT, _DIGEST = "a count in [0, 2**63)", "a SHA-256 in hexadecimal"


class Mismatch(Exception):
    """A field is not what it must be."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(field, rule)
        self.field, self.rule = field, rule


def check_manifest(manifest: dict[str, Any]) -> None:
    """Raise Mismatch if a field of a manifest is missing, of another type, or out of range."""
    _text(manifest, "dataset", NAME_PATTERN.match, "a dataset's name")
    _text(manifest, "version", VERSION_PATTERN.match, "16 hexadecimal digits")
    _check_tokenizer(_object(manifest, "tokenizer"))
    _check_definition(_object(_object(manifest, "spec"), "tokenizer", "spec.tokenizer"))
    for name, count in _object(manifest, "rows").items():
        _require(_is_count(count) and name.isidentifier(), f"rows.{name[:64]}", "a name with a count in [0, 2**63)")
    for name, digest in _object(manifest, "files").items():
        _require(bool(FILE_PATTERN.match(name)), "files", f"names of files in the version, not {name[:64]!r}")
        _require(_is_text(digest, SHA256_PATTERN.match), f"files.{name}", _DIGEST)
    for name, split in _object(manifest, "splits").items():
        _require(bool(SPLIT_PATTERN.match(name)), "splits", f"names of splits, not {name[:64]!r}")
        _require(isinstance(split, dict), f"splits.{name}", "an object")
        _check_split(name, split)


def _check_tokenizer(tokenizer: dict[str, Any]) -> None:
    for field in ("kind", "name"):
        _text(tokenizer, field, NAME_PATTERN.match, "a name", f"tokenizer.{field}")
    _text(tokenizer, "fingerprint", SHA256_PATTERN.match, _DIGEST, "tokenizer.fingerprint")
    size: Any = tokenizer.get("vocab_size")
    _require(_is_count(size, _MAX_ID + 1) and size != 0, "tokenizer.vocab_size", "in [1, 2**32]")
    _require(_is_count(tokenizer.get("eot_id"), size - 1), "tokenizer.eot_id", "in [0, vocab_size)")


def _check_definition(definition: dict[str, Any]) -> None:
    """Check what a tokenizer is made from: its files lie in the version, never at a path that the manifest names."""
    _text(definition, "kind", NAME_PATTERN.match, "a name", "spec.tokenizer.kind")
    for field in ("path", "ranks", "encoder"):
        _require(field not in definition, f"spec.tokenizer.{field}", "absent: a version names no path")
    for field in ("name", "eot", "bos", "pattern"):
        value = definition.get(field)
        _require(value is None or _is_text(value, _is_unicode), f"spec.tokenizer.{field}", "text")
    special = definition.get("special_tokens", {})
    is_valid = isinstance(special, dict) and all(_is_count(i, _MAX_ID) for i in special.values())
    is_valid = is_valid and all(map(_is_unicode, special))
    _require(is_valid, "spec.tokenizer.special_tokens", "ids in [0, 2**32) by token")


def _check_split(name: str, split: dict[str, Any]) -> None:
    place = f"splits.{name}"
    for field in ("tokens", "documents", "duplicates"):
        _require(_is_count(split.get(field)), f"{place}.{field}", _COUNT)
    shards = split.get("shards")
    _require(isinstance(shards, list) and set(map(type, shards)) <= {dict}, f"{place}.shards", "a list of objects")
    columns = {field: _column(shards, field, place) for field in _SHARD_FIELDS}
    rules = {
        "name": (_are_named(columns["name"], name), f"{name}/NNNNNN.tok"),
        "bytes": (_are_counts(columns["bytes"]), _COUNT),
        "tokens": (_are_counts(columns["tokens"]), _COUNT),
        "documents": (_are_counts(columns["documents"]), _COUNT),
        "sha256": (_are_digests(columns["sha256"]), _DIGEST),
        "samples": (set(map(type, columns["samples"])) <= {dict}, "an object"),
    }
    for field, (holds, rule) in rules.items():
        _require(holds, f"{place}.shards[].{field}", rule)
    _require(sum(columns["tokens"]) == split["tokens"], f"{place}.tokens", "what its shards add up to")


def _column(shards: Any, field: str, place: str) -> list[Any]:
    try:
        return list(map(itemgetter(field), shards))
    except KeyError as error:
        raise Mismatch(f"{place}.shards[].{field}", "given for every shard") from error


def _are_named(names: list[Any], split: str) -> bool:
    matches = re.compile(rf"{split}/[0-9]{{6,18}}\.tok").fullmatch
    return set(map(type, names)) <= {str} and all(map(matches, names))


def _are_digests(digests: list[Any]) -> bool:
    if set(map(type, digests)) - {str} or set(map(len, digests)) - {64}:
        return False
    return not "".join(digests).encode("ascii", "replace").translate(None, b"0123456789abcdef")


def _are_counts(counts: list[Any]) -> bool:
    return not counts or (set(map(type, counts)) == {int} and min(counts) >= 0 and max(counts) <= _MAX_COUNT)


def _is_count(value: Any, largest: int = _MAX_COUNT) -> bool:
    return type(value) is int and 0 <= value <= largest


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)  # halves of a pair, from JSON's escapes


def _is_text(value: Any, matches: Callable[[str], Any]) -> bool:
    return isinstance(value, str) and bool(matches(value))


def _text(parent: dict[str, Any], field: str, matches: Callable[[str], Any], rule: str, place: str = "") -> None:
    _require(_is_text(parent.get(field), matches), place or field, rule)


def _object(parent: dict[str, Any], field: str, place: str = "") -> dict[str, Any]:
    value = parent.get(field)
    _require(isinstance(value, dict), place or field, "an object")
    return value  # type: ignore[return-value]  # checked


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise Mismatch(field, rule)
