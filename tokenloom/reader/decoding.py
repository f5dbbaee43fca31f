"""Ids back to text, with the tokenizer that a version was built with."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tokenloom.errors import FormatError, TokenizerError
from tokenloom.storage.formats.manifest import NAME
from tokenloom.storage.stores.store import Store
from tokenloom.storage.versions.versions import read_listed, version_path
from tokenloom.tokenizers import Tokenizer, load_tokenizer

_FOLDER = "tokenizer/"
_FROM_FILES = ("huggingface", "sentencepiece")


def version_tokenizer(store: Store, manifest: dict[str, Any]) -> Tokenizer:
    """Return the tokenizer of a version, made from its manifest and the files that lie in it.

    Raises:
        FormatError: a tokenizer file of the version is damaged.
        TokenizerError: its package or its vocabulary is missing here.
    """
    names = [name for name in manifest["files"] if name.startswith(_FOLDER)]
    files = {name.removeprefix(_FOLDER): read_listed(store, manifest, name) for name in names}
    place = store.place(version_path(manifest["version"], NAME))
    definition = manifest["spec"]["tokenizer"]
    if definition["kind"] in _FROM_FILES and not files:
        raise FormatError(f"{place}: it lists no file of its {definition['kind']} tokenizer; restore it")
    try:
        return load_tokenizer(definition, files)
    except TokenizerError as error:
        raise TokenizerError(f"{place}: {error}") from error


def decode(tokenizer: Tokenizer, ids: NDArray[Any]) -> str:
    """Return the text of (n,) ids; see TokenDataset.decode."""
    if ids.size and ids.dtype.kind not in "iu":
        raise TypeError(f"ids are whole numbers, not {ids.dtype}")
    vocab_size = tokenizer.vocab_size
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise TokenizerError(f"ids {ids.min()} to {ids.max()} are not all in the vocabulary [0, {vocab_size})")
    return tokenizer.decode(ids)
