"""Tokenizers convert text to ids and back; a plain definition (`tokenizer` of a spec) makes one.

Each kind is one module with a `load` function, imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.base import Encoded, Tokenizer

__all__ = ["Encoded", "Tokenizer", "load_tokenizer"]

_MODULES = {
    "byte": "tokenloom.tokenizers.byte",
    "tiktoken": "tokenloom.tokenizers.tiktoken_bpe",
    "huggingface": "tokenloom.tokenizers.huggingface_json",
    "sentencepiece": "tokenloom.tokenizers.sentencepiece_model",
}


def load_tokenizer(definition: Mapping[str, Any], files: Mapping[str, bytes] | None = None) -> Tokenizer:
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
    try:
        module = import_module(_MODULES[kind])
    except ModuleNotFoundError as error:
        raise TokenizerError(
            f"a {kind} tokenizer needs the package {error.name!r}: pip install 'tokenloom[build]'"
        ) from error
    tokenizer: Tokenizer = module.load(definition, files)
    return tokenizer
