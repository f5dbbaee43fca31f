"""Byte-pair encodings of tiktoken, by name or from local files.

Each document is encoded by a call, without special tokens: 14 MB/s with documents of 2 KB, where documents that are
joined with the end-of-text token take twice as long, because tiktoken then looks for special tokens. A text on which
tiktoken's regular expression engine gives up (a million spaces followed by a letter) is cut by Python's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import tiktoken
from numpy.typing import NDArray
from tiktoken_ext import openai_public

from tokenloom.errors import TokenizerError, message_of
from tokenloom.storage.formats.records import sha256_of_bytes
from tokenloom.tokenizers.base import (
    END_OF_TEXT,
    PROBE,
    AddedToken,
    ChatTokens,
    Encoded,
    fingerprint,
    library_errors,
    num_bytes,
    read_path,
    special_tokens_hint,
    with_boundary_ids,
)
from tokenloom.tokenizers.tiktoken_files import (
    MAX_ID,
    described,
    file_name,
    named_format,
    parse_file,
)
from tokenloom.wording import did_you_mean


class TiktokenTokenizer:
    """A tiktoken encoding that puts its end-of-text token after each document.

    Args:
        encoding: the tiktoken encoding.
        name: shown in the manifest.
        eot: the end-of-text token as text, a special token of the encoding.
        bos: a token to put before each document, as text; None for none.
        files: the files that the encoding was read from, by fixed names.
    """

    kind = "tiktoken"
    backend = f"tiktoken {tiktoken.__version__}"
    max_text_bytes = 2**31 - 1

    def __init__(
        self,
        encoding: tiktoken.Encoding,
        name: str,
        eot: str,
        bos: str | None,
        files: dict[str, bytes],
    ) -> None:
        self.name = name
        self.files = files
        self.vocab_size = encoding.n_vocab
        self._encoding = encoding
        self.ranks: dict[bytes, int] = encoding._mergeable_ranks
        self.pattern: str = encoding._pat_str  # cuts a text into words
        self.eot = eot
        self.eot_id = encoding._special_tokens[eot]
        self.bos_ids = [encoding._special_tokens[bos]] if bos else []
        probe_ids = self._encode_text(PROBE).tolist()
        if encoding.decode_bytes(probe_ids) != PROBE.encode():
            raise TokenizerError(
                f"tokenizer {name}: its pattern drops text; give the pattern that belongs to its vocabulary"
            )
        tokens = sorted((i, token) for token, i in self.ranks.items())
        definition = {
            "kind": "tiktoken",
            "pattern": self.pattern,
            "ranks": sha256_of_bytes(b"".join([b"%d %d %b" % (i, len(token), token) for i, token in tokens])),
            "special_tokens": encoding._special_tokens,
            "vocab_size": encoding.n_vocab,
        }
        self.fingerprint = fingerprint(definition | {"eot": eot, "bos": bos}, probe_ids)

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """See Tokenizer.encode."""
        ids = [self._encode_text(text.as_py()) for text in texts]
        return with_boundary_ids(ids, self.bos_ids, self.eot_id, dtype)

    def _encode_text(self, text: str) -> NDArray[Any]:
        """Return the ids of one text, in which special tokens are ordinary text."""
        try:
            return self._encoding.encode_to_numpy(text, allowed_special=set(), disallowed_special=())
        except BaseException as error:  # a panic of the native library is not an Exception
            if type(error).__name__ != "PanicException" and "Regex error" not in str(error):
                raise
        # The same merges, after Python's own regular expression engine, which has no limit.
        return np.array(self._encoding._encode_only_native_bpe(text), np.uint32)

    def chat_tokens(self) -> ChatTokens:
        """See ReferenceTokenizer.chat_tokens."""
        added = [AddedToken(text, i, special=True) for text, i in self._encoding._special_tokens.items()]
        lengths = num_bytes(self.ranks.values(), map(len, self.ranks), added, self.vocab_size)
        return ChatTokens(added, lengths, added, needs_nfc=False, locate=None)

    def decode(self, ids: NDArray[Any]) -> str:
        """See Tokenizer.decode."""
        try:
            text = self._encoding.decode(np.asarray(ids).tolist())
        except KeyError as error:
            raise TokenizerError(f"tokenizer {self.name}: ids can't be decoded: {error.args[0]}") from error
        return text if self.eot == END_OF_TEXT else text.replace(self.eot, END_OF_TEXT)


def load(definition: Mapping[str, Any], files: Mapping[str, bytes] | None) -> TiktokenTokenizer:
    """Return the tokenizer; TiktokenTokenizer of the spec describes the fields of `definition`."""
    name, contents = str(definition.get("name") or "tiktoken"), dict(files or {})
    if not contents and definition.get("ranks"):
        contents = {file_name(definition): read_path(definition["ranks"], described(definition))}
    encoding, eot = _from_file(definition, contents, name) if contents else (_by_name(name), END_OF_TEXT)
    special = sorted(encoding._special_tokens, key=encoding._special_tokens.__getitem__)
    if not special:
        raise TokenizerError(
            f"tokenizer {name}: it has no special tokens, but an end-of-text token must follow each document; give "
            f"those of the model and their ids, such as tokenizer.special_tokens: {{{END_OF_TEXT}: {encoding.n_vocab}}}"
        )
    given, bos = definition.get("eot"), definition.get("bos")
    if given is None and eot not in special:
        raise TokenizerError(
            f"tokenizer {name}: its end-of-text token is unknown; give tokenizer.eot; {special_tokens_hint(special)}"
        )
    for token in (given, bos):
        if token is not None and token not in special:
            hint = special_tokens_hint(special, token)
            raise TokenizerError(f"tokenizer {name}: {token!r} is not one of its special tokens; {hint}")
    return TiktokenTokenizer(encoding, name, eot if given is None else given, bos, contents)


@cache
def _by_name(name: str) -> tiktoken.Encoding:
    """Return an encoding of tiktoken; gpt2 is r50k_base by another name, whose file is read in a third of the time."""
    known = tiktoken.list_encoding_names()
    if name not in known:
        raise TokenizerError(f"tiktoken has no encoding {name!r}. {did_you_mean(name, sorted(known))}")
    try:
        return tiktoken.get_encoding("r50k_base" if name == "gpt2" else name)
    except OSError as error:  # errors of requests are OSErrors
        raise TokenizerError(
            f"tokenizer {name}: its vocabulary is missing or damaged in TIKTOKEN_CACHE_DIR, and can't be fetched "
            f"({type(error).__name__}); set TIKTOKEN_CACHE_DIR to a folder that has it, or give ranks: a local file"
        ) from error


def _from_file(definition: Mapping[str, Any], files: Mapping[str, bytes], name: str) -> tuple[tiktoken.Encoding, str]:
    """Return the encoding, and the end-of-text token of its format."""
    try:
        pairs = parse_file(definition, files.get(file_name(definition), b""))
    except ValueError as error:
        other = ", or give pattern and special_tokens of another vocabulary" if named_format(definition) else ""
        raise TokenizerError(
            f"tokenizer file {definition.get('ranks') or file_name(definition)} is not {described(definition)}: "
            f"{message_of(error)}; download it again{other}"
        ) from error
    special = pairs.special_tokens | (definition.get("special_tokens") or {})
    _check_special(name, special, pairs.ranks)
    pattern = pairs.pattern or _pattern(str(definition.get("pattern") or "gpt2"))
    with library_errors(
        f"tokenizer {name}: its pattern is not a regular expression of tiktoken",
        "; repair tokenizer.pattern, or give the name of an encoding, such as gpt2",
    ):
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=pairs.ranks, special_tokens=special)
    return encoding, pairs.eot


def _check_special(name: str, special: Mapping[str, Any], ranks: Mapping[bytes, int]) -> None:
    """Raise TokenizerError if special tokens don't have ids of their own."""
    taken = dict.fromkeys(ranks.values(), "the rank of an ordinary token")
    for token, i in special.items():
        is_id = isinstance(i, int) and 0 <= i <= MAX_ID
        if problem := taken.get(i) if is_id else f"not in [0, {MAX_ID:,}]":
            raise TokenizerError(
                f"tokenizer {name}: the id {i!r} of the special token {token!r} is {problem}; give it an id of its own "
                "in tokenizer.special_tokens"
            )
        taken[i] = "that of another special token"


def _pattern(pattern: str) -> str:
    """Return the regular expression that tiktoken uses under this name, or else `pattern` itself."""
    if pattern in ("gpt2", "r50k_base", "p50k_base"):
        return str(openai_public.r50k_pat_str)
    if pattern in tiktoken.list_encoding_names():
        return _by_name(pattern)._pat_str
    return pattern
