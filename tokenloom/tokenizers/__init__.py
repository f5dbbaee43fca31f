"""Tokenizers convert text to ids and back; a plain definition (`tokenizer` of a spec) makes one.

Each library is one module with a `load` function, imported on first use. A process keeps the tokenizers of its jobs,
which are compared with those of the plan or the version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tokenloom.errors import TokenizerError
from tokenloom.storage.formats.manifest import Manifest
from tokenloom.storage.formats.records import canonical_json, sha256_of_bytes
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import read_tokenizer_files
from tokenloom.tokenizers.base import Encoded, ReferenceTokenizer, Tokenizer
from tokenloom.tokenizers.plain import ByteTokenizer, IdsTokenizer

__all__ = [
    "Encoded",
    "ReferenceTokenizer",
    "Tokenizer",
    "load_job_tokenizer",
    "load_once",
    "load_tokenizer",
    "pinned_fields",
    "version_decoder",
]

_MODULES = {  # by kind, imported on first use: each needs a library; another kind is a module of its own name
    "tiktoken": "tokenloom.tokenizers.tiktoken_bpe",
    "huggingface": "tokenloom.tokenizers.huggingface_json",
    "sentencepiece": "tokenloom.tokenizers.sentencepiece_model",
}


def load_tokenizer(definition: Mapping[str, Any], files: Mapping[str, bytes] | None = None) -> ReferenceTokenizer:
    """Make a tokenizer.

    Args:
        definition: `kind` and the fields of that kind, as in a spec, with local paths.
        files: contents of the tokenizer's files by their fixed names (`Tokenizer.files`); used instead of paths.

    Raises:
        TokenizerError: the kind or the end-of-text id is unknown, a package is missing, or a file can't be read.
    """
    kind = str(definition.get("kind"))
    if kind == "byte":
        return ByteTokenizer(str(definition.get("name") or "byte"))
    if kind == "ids":
        decode = definition.get("decode")
        return IdsTokenizer(definition, load_tokenizer(decode, files) if decode else None)
    place = _MODULES.get(kind, f"{__name__}.{kind}")
    is_module = kind in _MODULES or (kind.isidentifier() and find_spec(place) is not None)
    try:
        load = getattr(import_module(place), "load", None) if is_module else None
    except ModuleNotFoundError as error:
        raise TokenizerError(
            f"a {kind} tokenizer needs the package {error.name!r}: pip install 'tokenloom[build]'"
        ) from error
    if load is None:
        known = ", ".join(["byte", *_MODULES, "ids"])
        raise TokenizerError(f"tokenizer kind {kind!r} is not supported by this release; supported kinds: {known}")
    tokenizer: ReferenceTokenizer = load(definition, files)
    return tokenizer


def load_once(definition: Mapping[str, Any], files: Mapping[str, bytes] | None = None) -> ReferenceTokenizer:
    """Return a tokenizer, see load_tokenizer; a process keeps the last two, as long as their files do not change."""
    sums = []
    if files is None:
        fields = {**definition, **(definition.get("decode") or {})}
        with suppress(OSError):  # load_tokenizer raises it, with the next step
            paths = (fields[name] for name in ("path", "ranks") if fields.get(name))
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
    raise TokenizerError(
        f"tokenizer {tokenizer.name} ({tokenizer.kind}) is not the one of the plan or version (its fingerprint differs "
        "here): its files changed, or this process uses another library version; build again, or verify with the "
        "library versions of build.json"
    )


def version_decoder(store: Store, manifest: Manifest) -> ReferenceTokenizer | None:
    """Return the tokenizer of a version; None if this machine cannot load it."""
    try:
        return load_tokenizer(manifest.tokenizer_definition, read_tokenizer_files(store, manifest))
    except TokenizerError:
        return None


def pinned_fields(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that make a definition name the same tokenizer from now on: the commit of a name on the hub.

    A plan asks for them once. Raises TokenizerError as load_tokenizer.
    """
    if definition.get("decode"):
        return {"decode": {**definition["decode"], **pinned_fields(definition["decode"])}}
    if definition.get("kind") != "huggingface":
        return {}
    pinned: dict[str, Any] = import_module(_MODULES["huggingface"]).pinned_fields(definition)
    return pinned
