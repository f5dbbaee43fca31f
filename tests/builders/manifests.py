"""Parts of manifests, for tests of the fields around them."""

from __future__ import annotations

from typing import Any

NO_ROWS = dict.fromkeys(("read", "filtered", "excluded", "quarantined", "duplicates", "kept"), 0)
_FILE = {"bytes": 0, "sha256": "0" * 64}
#: what the manifest says of the files beside a shard, which readers of its tokens do not need
NO_FILES = {"files": {".docs": _FILE, ".blocks": _FILE}, "first_key": None, "last_key": None}


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
        "rows": NO_ROWS,
        "files": {},
    }
