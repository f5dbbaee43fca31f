"""A manifest of an empty version, for tests of the fields around it."""

from __future__ import annotations

from typing import Any


def empty_manifest(dataset: str, version: str) -> dict[str, Any]:
    """Return the JSON of a valid manifest of a version without splits."""
    tokenizer = {"kind": "byte", "name": "byte", "fingerprint": "f" * 64, "vocab_size": 256, "eot_id": 255}
    return {
        "format_version": 1,
        "dataset": dataset,
        "version": version,
        "spec": {"tokenizer": {"kind": "byte"}},
        "tokenizer": tokenizer,
        "splits": {},
        "rows": {},
        "files": {},
    }
