"""Tokenizers: text to ids and back, made from a plain definition (the `tokenizer` part of a spec).

Each kind is one module with a `load` function; it is imported when first used.
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
        definition: `kind` and the fields of that kind, as in a spec; paths are local.
        files: contents of the tokenizer's files by their fixed names (`Tokenizer.files`), instead of paths.

    Raises:
        TokenizerError: unknown kind, missing package, file that can't be read, or unknown end-of-text id.
    """
    kind = str(definition.get("kind"))
    if kind not in _MODULES:
        raise TokenizerError(f"tokenizer kind {kind!r} is not known to this release: {', '.join(_MODULES)}")
    try:
        module = import_module(_MODULES[kind])
    except ModuleNotFoundError as error:
        raise TokenizerError(
            f"a {kind} tokenizer needs the package {error.name!r}: pip install 'tokenloom[build]'"
        ) from error
    tokenizer: Tokenizer = module.load(definition, files)
    return tokenizer
