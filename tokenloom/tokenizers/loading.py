"""Tokenizers that a process keeps: those of its jobs, checked against the ones that the jobs were made for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from tokenloom.errors import TokenizerError
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.records import canonical_json, sha256_of_bytes
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import read_tokenizer_files
from tokenloom.tokenizers import ReferenceTokenizer, load_tokenizer


def load_once(definition: Mapping[str, Any], files: Mapping[str, bytes] | None = None) -> ReferenceTokenizer:
    """Return a tokenizer, see load_tokenizer; a process keeps the last two, as long as their files do not change."""
    sums = []
    if files is None:
        fields = {**definition, **(definition.get("decode") or {})}
        with suppress(OSError):  # load_tokenizer raises it, with the next step
            paths = (fields[name] for name in ("path", "ranks", "encoder") if fields.get(name))
            sums = [sha256_of_bytes(read_regular(path)) for path in paths]
    return _load(canonical_json(dict(definition)), None if files is None else tuple(sorted(files.items())), tuple(sums))


@lru_cache(maxsize=2)
def _load(definition: bytes, files: tuple[tuple[str, bytes], ...] | None, _sums: tuple[str, ...]) -> ReferenceTokenizer:
    return load_tokenizer(json.loads(definition), None if files is None else dict(files))


def load_job_tokenizer(
    definition: Mapping[str, Any], fingerprint: str, files: Mapping[str, bytes] | None = None
) -> ReferenceTokenizer:
    """Return the tokenizer of a job.

    Args:
        definition: see load_tokenizer.
        fingerprint: the fingerprint of the tokenizer that the job was made for.
        files: the tokenizer's files as a published version holds them; None to read those that the definition names.

    Raises TokenizerError if the tokenizer can't be loaded or has another fingerprint.
    """
    tokenizer = load_once(definition, files)
    if tokenizer.fingerprint == fingerprint:
        return tokenizer
    if files is None:
        raise TokenizerError(
            f"tokenizer {tokenizer.name} is not the one of the plan (its fingerprint differs here): its files changed, "
            "or this process uses another library version; build again"
        )
    raise TokenizerError(
        f"tokenizer {tokenizer.name} ({tokenizer.kind}) encodes differently here than where the version was built; "
        "verify with the library versions of its build.json"
    )


def version_decoder(store: Store, manifest: Manifest) -> ReferenceTokenizer | None:
    """Return the tokenizer of a version; None if this machine cannot load it."""
    try:
        return load_tokenizer(manifest.tokenizer_definition, read_tokenizer_files(store, manifest))
    except TokenizerError:
        return None
