"""What a plan needs to know of a tokenizer, remembered by this machine.

Loading a vocabulary takes 0.2 to 0.4 s, half of a build that finds its version published. All that decides the record
is its definition, the content of its files, the installed library (the checksums of its files, as its package lists
them), and our own modules. A build that encodes does not rely on it: each worker loads the tokenizer, and compares its
fingerprint with the plan's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenloom.errors import TokenizerError
from tokenloom.storage.formats.canonical import sha256_of_bytes
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import ReferenceTokenizer, Tokenizer, TokenizerIdentity
from tokenloom.tokenizers.machine_records import installed_code, remembered

_LIBRARIES = {"tiktoken": "tiktoken", "huggingface": "tokenizers", "sentencepiece": "sentencepiece"}
_FILES = {"huggingface": "tokenizer.json", "sentencepiece": "tokenizer.model"}  # of a definition that has a path


def identify(definition: Mapping[str, Any]) -> tuple[TokenizerIdentity, dict[str, bytes]]:
    """Return what a tokenizer is, and its files (`Tokenizer.files`); loads it unless this machine remembers it.

    Args:
        definition: see load_tokenizer; with its pinned_fields.

    Raises TokenizerError as load_tokenizer.
    """
    files = _deciding_files(definition)
    if files is None:
        tokenizer = load_tokenizer(definition)
        return identity_of(tokenizer), tokenizer.files

    def load() -> TokenizerIdentity:
        tokenizer = load_tokenizer(definition)
        if tokenizer.files != files:
            raise TokenizerError(f"tokenizer {tokenizer.name}: its files changed while they were read; build again")
        return identity_of(tokenizer)

    return remembered(TokenizerIdentity, _deciding(definition, files), load), files


def identity_of(tokenizer: ReferenceTokenizer) -> TokenizerIdentity:
    """Return what a tokenizer is."""
    key, unproven = _encoder_key(tokenizer)
    return TokenizerIdentity(
        kind=tokenizer.kind,
        name=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        bos_ids=tokenizer.bos_ids,
        eot_id=tokenizer.eot_id,
        fingerprint=tokenizer.fingerprint,
        backend=tokenizer.backend,
        max_text_bytes=tokenizer.max_text_bytes,
        eot=tokenizer.eot,
        encoder_key=key,
        unproven=unproven,
    )


def _encoder_key(tokenizer: Tokenizer) -> tuple[str | None, str | None]:
    """Return `encoder_key` and `unproven` of a tokenizer."""
    if tokenizer.kind == "ids":
        return None, "the sources have ids already"
    if tokenizer.kind not in _LIBRARIES:
        return None, f"no fast encoder supports the kind {tokenizer.kind}"
    from tokenloom.tokenizers.fast.known_parts import Unproven
    from tokenloom.tokenizers.fast.parts import parts_of  # late: it imports tiktoken

    try:
        return parts_of(tokenizer).key, None
    except Unproven as error:
        return None, str(error)


def _deciding_files(definition: Mapping[str, Any]) -> dict[str, bytes] | None:
    """Return the files that decide, beside library and definition, what a tokenizer is; None if something else does."""
    kind = definition.get("kind")
    try:
        if kind == "tiktoken":
            from tokenloom.tokenizers.tiktoken_bpe import deciding_files

            return deciding_files(definition)
        if kind in _FILES and definition.get("path"):
            return {_FILES[kind]: read_regular(definition["path"])}
    except (TokenizerError, OSError, ImportError):  # load_tokenizer raises it, with the next step
        pass
    return None


def _deciding(definition: Mapping[str, Any], files: Mapping[str, bytes]) -> dict[str, object] | None:
    """Return all that decides what a tokenizer is; None if not all of it is known."""
    code = installed_code(_LIBRARIES[definition["kind"]])
    sums = {name: sha256_of_bytes(data) for name, data in files.items()}
    return {"definition": dict(definition), "files": sums, "code": code} if code else None
