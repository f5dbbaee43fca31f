"""Encodings that tiktoken knows by name, remembered by this machine in a form that loads faster.

tiktoken parses a vocabulary line by line, GPT-2's in 0.13 s. A record holds it as a .tiktoken file, which a few calls
parse in 0.03 s, with the checksum that a fingerprint needs. It is decided by the library, which has the SHA-256 of each
vocabulary, and our modules.
"""

from __future__ import annotations

import hashlib
from binascii import a2b_base64
from dataclasses import dataclass
from functools import cached_property, lru_cache

import tiktoken
from tiktoken_ext import openai_public

from tokenloom.tokenizers.machine_records import installed_code, remembered
from tokenloom.tokenizers.tiktoken_files import ranks_file


class Ranks:
    """The ordinary tokens of an encoding, with their .tiktoken file and their checksum, each made on first use.

    Args:
        ids: the id of each token.
    """

    def __init__(self, ids: dict[bytes, int]) -> None:
        self.ids = ids

    @cached_property
    def file(self) -> bytes:
        """The tokens as a .tiktoken file."""
        return ranks_file(self.ids)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of id, length and token of each, in the order of their ids."""
        tokens = sorted((i, token) for token, i in self.ids.items())
        return hashlib.sha256(b"".join([b"%d %d %b" % (i, len(token), token) for i, token in tokens])).hexdigest()


@dataclass(frozen=True, slots=True)
class NamedEncoding:
    """An encoding as it is kept; see Ranks for `file` and `sha256`."""

    pattern: str
    special_tokens: dict[str, int]
    file: str
    sha256: str


@lru_cache(maxsize=4)  # as tiktoken does: the datasets of a process share it
def load_named(name: str) -> tuple[tiktoken.Encoding, Ranks]:
    """Return an encoding of tiktoken.

    Args:
        name: one of tiktoken.list_encoding_names(). One of a plugin is not kept: it may change.

    Raises OSError if the vocabulary is neither kept, nor in tiktoken's cache, nor can be fetched.
    """
    code = installed_code("tiktoken") if name in openai_public.ENCODING_CONSTRUCTORS else None
    kept = remembered(NamedEncoding, [name, code] if code else None, lambda: _kept(tiktoken.get_encoding(name)))
    file = kept.file.encode()
    fields = file.split()
    ids = dict(zip(map(a2b_base64, fields[::2]), map(int, fields[1::2]), strict=True))
    encoding = tiktoken.Encoding(name, pat_str=kept.pattern, mergeable_ranks=ids, special_tokens=kept.special_tokens)
    ranks = Ranks(ids)
    vars(ranks).update(file=file, sha256=kept.sha256)
    return encoding, ranks


def _kept(encoding: tiktoken.Encoding) -> NamedEncoding:
    ranks = Ranks(encoding._mergeable_ranks)
    return NamedEncoding(encoding._pat_str, encoding._special_tokens, ranks.file.decode(), ranks.sha256)
