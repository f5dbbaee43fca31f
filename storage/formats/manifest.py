"""The manifest of a version: what it holds, and the checksum of every file it lists."""

from __future__ import annotations

from typing import Any

from tokenloom.errors import FormatError
from tokenloom.storage.formats.canonical import read_signed, sha256_of
from tokenloom.storage.formats.manifest_check import Mismatch, check_manifest

FORMAT_VERSION = 1
NAME = "manifest.json"
INPUTS = "inputs.json"
QUARANTINE = "quarantine.jsonl"  # listed like inputs.json, only if a row was skipped
BUILD = "build.json"  # the one file of a version that is not listed: times, hosts, library versions

_ROWS = ("read", "filtered", "excluded", "quarantined", "duplicates", "kept")


def ordered_rows(rows: dict[str, int]) -> dict[str, int]:
    """Return a manifest's `rows` in the order of a build: read, what was left out at each step, kept."""
    known = {name: rows[name] for name in _ROWS if name in rows}
    return known | rows


def version_name(identity: dict[str, Any], inputs: list[tuple[str, str, str]], tokenizer_fingerprint: str) -> str:
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


def read_manifest(data: bytes, place: str) -> dict[str, Any]:
    """Return the manifest in `data`, checked; raises FormatError if it is damaged, of another format, or no manifest.

    Args:
        data: the bytes of manifest.json.
        place: its path, for the message.
    """
    manifest = read_signed(data, place)
    check_format(manifest, place)
    check_fields(manifest, place)
    return manifest


def check_format(manifest: dict[str, Any], place: str) -> None:
    """Raise FormatError if a manifest is of a format that this release does not read."""
    if manifest.get("format_version") != FORMAT_VERSION:
        raise FormatError(
            f"{place}: manifest format {manifest.get('format_version')}; this release reads format "
            f"{FORMAT_VERSION}: update tokenloom"
        )


def check_fields(manifest: dict[str, Any], place: str) -> None:
    """Raise FormatError if a field of a manifest is not what it must be."""
    try:
        check_manifest(manifest)
    except Mismatch as error:
        raise FormatError(f"{place}: {error.field} must be {error.rule}; its writer was wrong; restore it") from error
