"""Encodings that tiktoken knows by name, kept in the machine's cache in a form that loads in half the time.

tiktoken parses a vocabulary line by line. A record has it as a .tiktoken file, which a few calls parse, and with the
checksum that a fingerprint needs. It holds for the code that made it: the library, which in turn has the checksum of
the vocabulary, and our own.
"""

from __future__ import annotations

import contextlib
import hashlib
from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import tiktoken
from tiktoken_ext import openai_public

from tokenloom.errors import StoreError
from tokenloom.storage.formats.canonical import sha256_of
from tokenloom.tokenizers.machine_records import (
    find_machine_record,
    installed_code,
    named_record_path,
    write_machine_record,
)
from tokenloom.tokenizers.tiktoken_files import ranks_file


class Ranks:
    """The ordinary tokens of an encoding, and what is made of all of them at most once.

    Args:
        ids: the id of each token.
        file: see `file`; None to make it.
        sha256: see `sha256`; None to compute it.
    """

    def __init__(self, ids: dict[bytes, int], file: bytes | None = None, sha256: str | None = None) -> None:
        self.ids = ids
        self._file, self._sha256 = file, sha256

    @cached_property
    def file(self) -> bytes:
        """The tokens as a .tiktoken file."""
        return ranks_file(self.ids) if self._file is None else self._file

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of id, length and token of each, in the order of their ids."""
        return _sha256_of(self.ids) if self._sha256 is None else self._sha256


def _sha256_of(ids: Mapping[bytes, int]) -> str:
    tokens = sorted((i, token) for token, i in ids.items())
    return hashlib.sha256(b"".join([b"%d %d %b" % (i, len(token), token) for i, token in tokens])).hexdigest()


@dataclass(frozen=True, slots=True)
class _Kept:
    """An encoding as it is kept; see Ranks for `file` and `sha256`. `code` is the checksum of what made it."""

    code: str
    pattern: str
    special_tokens: dict[str, int]
    file: str
    sha256: str


def load_named(name: str) -> tuple[tiktoken.Encoding, Ranks]:
    """Return an encoding of tiktoken: as this machine keeps it, or else from the library, and try to keep it.

    Args:
        name: one of tiktoken.list_encoding_names().

    Raises OSError if the vocabulary is neither in a cache nor can be fetched.
    """
    code = _code(name)
    if code is not None and (found := _find(name, code)):
        return found
    encoding = tiktoken.get_encoding(name)
    ranks = Ranks(encoding._mergeable_ranks)
    if code is not None:
        _keep(name, _Kept(code, encoding._pat_str, encoding._special_tokens, ranks.file.decode(), ranks.sha256))
    return encoding, ranks


def _code(name: str) -> str | None:
    """Return the checksum of the code that makes an encoding; None if it is unknown, as that of a plugin is."""
    code = installed_code("tiktoken") if name in openai_public.ENCODING_CONSTRUCTORS else None
    return None if code is None else sha256_of(code)


def _find(name: str, code: str) -> tuple[tiktoken.Encoding, Ranks] | None:
    try:
        kept = find_machine_record(named_record_path(name), _Kept)
    except StoreError:  # there is no cache
        return None
    if kept is None or kept.code != code:
        return None
    file = kept.file.encode()
    fields = file.split()
    ids = dict(zip(map(a2b_base64, fields[::2]), map(int, fields[1::2]), strict=True))
    encoding = tiktoken.Encoding(name, pat_str=kept.pattern, mergeable_ranks=ids, special_tokens=kept.special_tokens)
    return encoding, Ranks(ids, file, kept.sha256)


def _keep(name: str, encoding: _Kept) -> None:
    with contextlib.suppress(OSError, StoreError):  # the next process parses it again
        write_machine_record(named_record_path(name), encoding)
