"""A manifest of nothing, for tests of what stands around it."""

from __future__ import annotations

from typing import Any


def empty_manifest(dataset: str, version: str) -> dict[str, Any]:
    """Return a manifest that is right in every field, of a version without splits."""
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
