"""What a plan needs to know of a tokenizer, remembered by this machine.

Loading a vocabulary takes 0.2 to 0.4 s, half of a build that finds its version published. A record is found by a hash
of all that decides it: the definition, the content of its files, the installed library (the checksums of its files,
as its package lists them), and our own modules. So a record can be missing, but not out of date. A build that encodes
does not rely on it either: each worker loads the tokenizer, and compares its fingerprint with the plan's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenloom.errors import StoreError, TokenizerError
from tokenloom.storage.formats.canonical import canonical_json, sha256_of_bytes
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.machine_records import (
    find_machine_record,
    installed_code,
    machine_record_path,
    write_machine_record,
)

_LIBRARIES = {"tiktoken": "tiktoken", "huggingface": "tokenizers", "sentencepiece": "sentencepiece"}
_FILES = {"huggingface": "tokenizer.json", "sentencepiece": "tokenizer.model"}  # of a definition that has a path


@dataclass(frozen=True, slots=True)
class TokenizerIdentity:
    """What a tokenizer is, without its vocabulary; see Tokenizer for the fields, and ReferenceTokenizer for `eot`."""

    kind: str
    name: str
    vocab_size: int
    bos_ids: list[int]
    eot_id: int
    fingerprint: str
    backend: str
    max_text_bytes: int
    eot: str | None


def identify(definition: Mapping[str, Any]) -> tuple[TokenizerIdentity, dict[str, bytes]]:
    """Return what a tokenizer is, and its files (`Tokenizer.files`); loads it unless this machine remembers it.

    Args:
        definition: see load_tokenizer; with its pinned_fields.

    Raises TokenizerError as load_tokenizer.
    """
    files, path = _files_and_path(definition)
    if found := _find(files, path):
        return found
    tokenizer = load_tokenizer(definition)
    identity = TokenizerIdentity(
        kind=tokenizer.kind,
        name=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        bos_ids=tokenizer.bos_ids,
        eot_id=tokenizer.eot_id,
        fingerprint=tokenizer.fingerprint,
        backend=tokenizer.backend,
        max_text_bytes=tokenizer.max_text_bytes,
        eot=tokenizer.eot,
    )
    if path is not None and tokenizer.files == files:  # they did not change in between
        with contextlib.suppress(OSError):  # the next plan loads it again
            write_machine_record(path, identity)
    return identity, tokenizer.files


def find_identity(definition: Mapping[str, Any]) -> tuple[TokenizerIdentity, dict[str, bytes]] | None:
    """Return what a tokenizer is, and its files, if this machine remembers it; see identify."""
    return _find(*_files_and_path(definition))


def _find(files: dict[str, bytes] | None, path: Path | None) -> tuple[TokenizerIdentity, dict[str, bytes]] | None:
    known = None if path is None else find_machine_record(path, TokenizerIdentity)
    return None if known is None or files is None else (known, files)


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


def _files_and_path(definition: Mapping[str, Any]) -> tuple[dict[str, bytes] | None, Path | None]:
    """Return the files that decide what a tokenizer is, and where its record is; None for what is not known."""
    files = _deciding_files(definition)
    return files, None if files is None else _record_path(definition, files)


def _record_path(definition: Mapping[str, Any], files: Mapping[str, bytes]) -> Path | None:
    """Return where the record of a tokenizer is; None if not all that decides it is known, or there is no cache."""
    code = installed_code(_LIBRARIES[definition["kind"]])
    if not code:
        return None
    decides = {
        "definition": dict(definition),
        "files": {name: sha256_of_bytes(data) for name, data in files.items()},
        "code": code,
    }
    try:
        return machine_record_path(canonical_json(decides).decode())
    except StoreError:
        return None
