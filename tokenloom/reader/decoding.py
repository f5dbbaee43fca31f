"""Ids back to text, with the tokenizer that a version was built with.

Only this module of the reader uses tokenloom.tokenizers, and only when a tokenizer is loaded.
"""

from __future__ import annotations

from typing import Protocol

from tokenloom.errors import FormatError, TokenizerError
from tokenloom.storage.formats.arrays import AnyArray
from tokenloom.storage.formats.manifest import MANIFEST, Manifest
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.published import read_tokenizer_files, version_path

_FROM_FILES = ("huggingface", "sentencepiece")


class Decoder(Protocol):
    """What decoding needs of a tokenizer."""

    vocab_size: int

    def decode(self, ids: AnyArray, /) -> str:
        """Return the text of (n,) ids."""


def version_tokenizer(store: Store, manifest: Manifest) -> Decoder:
    """Return the tokenizer of a version, made from its manifest and the tokenizer files in the version.

    Raises:
        FormatError: a tokenizer file of the version is damaged.
        TokenizerError: the tokenizer's package or vocabulary is missing on this machine.
    """
    from tokenloom.tokenizers import load_tokenizer

    files = read_tokenizer_files(store, manifest)
    place = store.place(version_path(manifest.version, MANIFEST))
    definition = manifest.tokenizer_definition
    kind = (definition.get("decode") or definition)["kind"]  # type: ignore[index]
    if kind in _FROM_FILES and not files:
        raise FormatError(f"{place}: the manifest lists no file of its {kind} tokenizer; restore it")
    try:
        return load_tokenizer(definition, files)
    except TokenizerError as error:
        raise TokenizerError(f"{place}: {error}") from error


def decode(tokenizer: Decoder, ids: AnyArray) -> str:
    """Return the text of (n,) ids; raises as TokenDataset.decode."""
    if ids.ndim != 1:
        raise ValueError(f"ids must have one dimension, as those of one sample have, not the shape {ids.shape}")
    if ids.size and ids.dtype.kind not in "iu":
        raise TypeError(f"ids must be integers, not {ids.dtype}")
    vocab_size = tokenizer.vocab_size
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise TokenizerError(f"ids {ids.min()} to {ids.max()} are not all in the vocabulary [0, {vocab_size})")
    return tokenizer.decode(ids)
