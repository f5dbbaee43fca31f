"""Encodings that tiktoken knows by name, kept in the machine's cache in a form that loads faster.

tiktoken parses a vocabulary line by line. A record holds it as a .tiktoken file, which a few calls parse, with the
checksum that a fingerprint needs. It is valid only for the code that made it: the library, which has the SHA-256 of
each vocabulary, and our modules.
"""

from __future__ import annotations

import hashlib
from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import tiktoken
from tiktoken_ext import openai_public

from tokenloom.tokenizers.machine_records import (
    KeptRecord,
    find_kept_record,
    installed_code,
    write_kept_record,
)
from tokenloom.tokenizers.tiktoken_files import ranks_file


class Ranks:
    """The ordinary tokens of an encoding, with their .tiktoken file and their checksum, each made on first use.

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
class _Encoding(KeptRecord):
    """An encoding as it is kept; see Ranks for `file` and `sha256`."""

    pattern: str
    special_tokens: dict[str, int]
    file: str
    sha256: str


@lru_cache(maxsize=4)  # as tiktoken does: the datasets of a process share it
def load_named(name: str) -> tuple[tiktoken.Encoding, Ranks]:
    """Return an encoding of tiktoken: as this machine keeps it, or else from the library, and keep it.

    Args:
        name: one of tiktoken.list_encoding_names(). One of a plugin is not kept: it may change.

    Raises OSError if the vocabulary is neither in a cache nor can be fetched.
    """
    code = installed_code("tiktoken") if name in openai_public.ENCODING_CONSTRUCTORS else ""
    if kept := find_kept_record(name, code, _Encoding):
        return _from_kept(name, kept)
    encoding = tiktoken.get_encoding(name)
    ranks = Ranks(encoding._mergeable_ranks)
    if code:  # else the file would be made for nothing
        special_tokens, file = encoding._special_tokens, ranks.file.decode()
        write_kept_record(_Encoding(name, code, encoding._pat_str, special_tokens, file, ranks.sha256))
    return encoding, ranks


def _from_kept(name: str, kept: _Encoding) -> tuple[tiktoken.Encoding, Ranks]:
    file = kept.file.encode()
    fields = file.split()
    ids = dict(zip(map(a2b_base64, fields[::2]), map(int, fields[1::2]), strict=True))
    encoding = tiktoken.Encoding(name, pat_str=kept.pattern, mergeable_ranks=ids, special_tokens=kept.special_tokens)
    return encoding, Ranks(ids, file, kept.sha256)
