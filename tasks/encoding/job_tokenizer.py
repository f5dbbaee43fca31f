"""The tokenizer of a job, loaded once a process and checked against the one that the job was made for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tokenloom.errors import TokenizerError
from tokenloom.storage.formats.canonical import canonical_json
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import read_tokenizer_files
from tokenloom.tokenizers import ReferenceTokenizer, Tokenizer, load_tokenizer


def load_job_tokenizer(
    definition: Mapping[str, Any], fingerprint: str, files: Mapping[str, bytes] | None = None
) -> Tokenizer:
    """Return the tokenizer of a job.

    Args:
        definition: see load_tokenizer.
        fingerprint: the fingerprint of the tokenizer that the job was made for.
        files: the tokenizer's files as a published version holds them; None to read those that the definition names.

    Raises TokenizerError if the tokenizer can't be loaded or has another fingerprint.
    """
    key = canonical_json(definition), None if files is None else tuple(sorted(files.items()))
    tokenizer = _load(*key)
    if tokenizer.fingerprint != fingerprint:  # it was loaded for another build, or changed since
        _load.cache_clear()
        tokenizer = _load(*key)
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


def preload_tokenizer(definition: Mapping[str, Any]) -> ReferenceTokenizer:
    """Load the tokenizer of jobs to come, see load_job_tokenizer; raises TokenizerError if it can't be loaded."""
    return _load(canonical_json(definition), None)


def version_decoder(store: Store, manifest: Manifest) -> Tokenizer | None:
    """Return the tokenizer of a version; None if this machine cannot load it."""
    try:
        return load_tokenizer(manifest.tokenizer_definition, read_tokenizer_files(store, manifest))
    except TokenizerError:
        return None


@lru_cache(maxsize=2)
def _load(definition: bytes, files: tuple[tuple[str, bytes], ...] | None) -> ReferenceTokenizer:
    return load_tokenizer(json.loads(definition), None if files is None else dict(files))
