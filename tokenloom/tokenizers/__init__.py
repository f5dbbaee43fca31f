"""Tokenizers convert text to ids and back; a plain definition (`tokenizer` of a spec) makes one.

Each kind is one module with a `load` function, imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.base import Encoded, ReferenceTokenizer, Tokenizer

__all__ = ["Encoded", "ReferenceTokenizer", "Tokenizer", "load_tokenizer", "pinned_fields"]

_MODULES = {
    "byte": "tokenloom.tokenizers.byte",
    "tiktoken": "tokenloom.tokenizers.tiktoken_bpe",
    "huggingface": "tokenloom.tokenizers.huggingface_json",
    "sentencepiece": "tokenloom.tokenizers.sentencepiece_model",
    "ids": "tokenloom.tokenizers.ids",
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
    if kind not in _MODULES:
        raise TokenizerError(
            f"tokenizer kind {kind!r} is not supported by this release; supported kinds: {', '.join(_MODULES)}"
        )
    tokenizer: ReferenceTokenizer = _module(_MODULES[kind], kind).load(definition, files)
    return tokenizer


def pinned_fields(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that make a definition name the same tokenizer from now on: the commit of a name on the hub.

    A plan asks for them once. Raises TokenizerError as load_tokenizer.
    """
    if definition.get("decode"):
        return {"decode": {**definition["decode"], **pinned_fields(definition["decode"])}}
    if definition.get("kind") != "huggingface":
        return {}
    fields: dict[str, Any] = _module("tokenloom.tokenizers.pretrained", "huggingface").pinned_fields(definition)
    return fields


def _module(name: str, kind: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise TokenizerError(
            f"a {kind} tokenizer needs the package {error.name!r}: pip install 'tokenloom[build]'"
        ) from error
