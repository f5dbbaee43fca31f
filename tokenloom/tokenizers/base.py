"""The protocol of tokenizers, and functions of all kinds: fingerprints, bytes of texts, ids around documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenloom.errors import TokenizerError, TokenloomError, message_of
from tokenloom.storage.formats.arrays import runs_of
from tokenloom.storage.stores.local_files import read_regular
from tokenloom.wording import first_of, near_miss

END_OF_TEXT = "<|endoftext|>"  # decode() writes it for the end-of-text id of every tokenizer

_RUN_BYTES = 250_000  # limit for the texts of one call of a library
WORKER_MARK = "TOKENLOOM_WORKER"  # in the environment of a worker process, which may be ended at any time

# Its ids are part of every fingerprint: a library that encodes any of it differently counts as another tokenizer.
PROBE = (
    "Hello, world! It's 2026; we've 1234567 reasons.\r\n\tdef f(x):\n        return x**2  # naïve café\n\n\n"
    "多言語のテキスト。한국어 텍스트. Русский текст. नमस्ते दुनिया مرحبا "
    "👩‍👩‍👧‍👦🇪🇺 e\u0301 \u200b\u00a0\u3000|\x00\x1b[0m <|endoftext|> <s> https://example.org/a?b=c&d=1.5e-3 AAAAAAAA"
)


@dataclass(frozen=True)
class Encoded:
    """The ids of n documents in order, each followed by its end-of-text id.

    Shapes: tokens (sum of num_tokens,) of the requested dtype; num_tokens (n,) uint32.
    """

    tokens: NDArray[Any]
    num_tokens: NDArray[np.uint32]


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in a text before it is cut into words.

    Attributes:
        text: its spelling.
        id: its id.
        special: whether it is a special token, which a text of a user must not become.
    """

    text: str
    id: int
    special: bool


@dataclass(frozen=True)
class Located:
    """The ids of a text, and where their characters are.

    Shapes: ids (n,) uint32; starts and ends (n,) int64, in characters.
    """

    ids: NDArray[np.uint32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


@dataclass(frozen=True)
class ChatTokens:
    """The properties of a tokenizer that decide how conversations are encoded.

    Attributes:
        added: the added tokens.
        num_bytes: the length of each token's text, (vocab_size,) int64; 0 if it is not known.
        cuts: the added tokens at which a text may be cut, its parts encoded on their own; None if it must be encoded
            as a whole, by `locate`.
        needs_nfc: whether only texts in normal form C may be cut.
        locate: returns the ids of a text in which added tokens are found, except in its parts [start, end).
    """

    added: Sequence[AddedToken]
    num_bytes: NDArray[np.int64]
    cuts: Sequence[AddedToken] | None
    needs_nfc: bool
    locate: Callable[[str, Sequence[tuple[int, int]]], Located] | None


class Tokenizer(Protocol):
    """Converts text to ids and back; every id is in [0, vocab_size)."""

    kind: str
    name: str
    vocab_size: int
    bos_ids: list[int]  # before each document
    eot_id: int
    fingerprint: str  # SHA-256 of the whole definition and the ids of PROBE, in hexadecimal
    backend: str  # the library whose ids it gives, with its version
    files: dict[str, bytes]  # the files it was made from, by fixed names; empty if it is built in or named
    max_text_bytes: int  # a longer text is a bad row: a worker's limit of memory is 1 GB + 4 times its largest text

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """Return the ids of each document, encoded as ordinary text, followed by the end-of-text id.

        Args:
            texts: (n,) large_string without nulls, valid UTF-8.
            dtype: an unsigned type that holds every id.

        Raises TokenizerError if the library can't encode a text.
        """

    def decode(self, ids: NDArray[Any]) -> str:
        """Return the text of ids, with <|endoftext|> for end of text and U+FFFD for bytes that are not UTF-8."""


class ReferenceTokenizer(Tokenizer, Protocol):
    """A tokenizer of a reference library, as load_tokenizer makes it."""

    @property
    def eot(self) -> str | None:
        """The end-of-text token as the library spells it; None if it has no spelling."""

    def chat_tokens(self) -> ChatTokens:
        """Return the properties for conversations; raises TokenizerError if the kind has no added tokens."""


def num_bytes(
    ids: Collection[int], lengths: Iterable[int], added: Sequence[AddedToken], vocab_size: int
) -> NDArray[np.int64]:
    """Return the bytes of the text of each token, see ChatTokens.

    Args:
        ids: the ordinary tokens.
        lengths: the length of each of them, in bytes.
        added: the added tokens.
        vocab_size: above every id.
    """
    result = np.zeros(vocab_size, np.int64)
    result[np.fromiter(ids, np.int64, len(ids))] = np.fromiter(lengths, np.int64, len(ids))
    for token in added:
        result[token.id] = len(token.text.encode())
    return result


def fingerprint(definition: dict[str, Any], probe_ids: list[int]) -> str:
    """Return the SHA-256 of a definition (JSON values) and the ids of PROBE, in hexadecimal."""
    value = json.dumps({"definition": definition, "probe": probe_ids}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(value.encode()).hexdigest()


def text_bytes(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the UTF-8 bytes of a large_string array without a copy, and the offsets of its texts.

    Returns:
        (num_bytes,) uint8, and (n + 1,) int64 offsets into it, the first of which is 0.
    """
    _, offset_buffer, data = texts.buffers()
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    # A buffer from a file may be longer, by any number of bytes.
    offsets = np.frombuffer(offset_buffer, np.int64, texts.offset + len(texts) + 1)[texts.offset :]
    flat = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return flat[offsets[0] : offsets[-1]], offsets - offsets[0]


def with_boundary_ids(ids: Sequence[NDArray[Any]], bos_ids: list[int], eot_id: int, dtype: np.dtype[Any]) -> Encoded:
    """Return n >= 0 documents, each with `bos_ids` before and `eot_id` after its `ids`, (num_ids,) of one type."""
    ids_dtype = ids[0].dtype if len(ids) else dtype
    between = np.array([eot_id, *bos_ids], ids_dtype)  # so that joining them only copies
    bos = between[1:]
    tokens = np.concatenate([bos, *(part for document in ids for part in (document, between))])
    num_tokens = np.array(list(map(len, ids)), np.uint32) + np.uint32(len(between))
    # Casting is safe: every id is below vocab_size, so it fits.
    return Encoded(tokens[: len(tokens) - len(bos)].astype(dtype, copy=False), num_tokens)


def concatenate(parts: Sequence[Encoded], dtype: np.dtype[Any]) -> Encoded:
    """Return the documents of all parts in order."""
    tokens = [np.empty(0, dtype), *(part.tokens for part in parts)]
    num_tokens = [np.empty(0, np.uint32), *(part.num_tokens for part in parts)]
    return Encoded(np.concatenate(tokens), np.concatenate(num_tokens))


@contextmanager
def library_errors(
    message: str, next_step: str = "", make: Callable[[str], Exception] = TokenizerError
) -> Iterator[None]:
    """Translate errors of a library in the block, also panics of native code, which are BaseExceptions.

    Args:
        message: says what failed; the library's message is appended to it.
        next_step: ends the message.
        make: the class of the error, or a function that makes it.
    """
    try:
        yield
    except (TokenloomError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise make(f"{message}: {message_of(error)}{next_step}") from error


def encode_in_runs(
    texts: pa.Array, encode: Callable[[pa.Array], list[NDArray[Any]]], tokenizer: Tokenizer, dtype: np.dtype[Any]
) -> Encoded:
    """Return what Tokenizer.encode does, by a library that holds more than the ids of a call in memory until its end.

    Args:
        texts: see Tokenizer.encode.
        encode: returns the ids of each text of a run, without those around documents.
        tokenizer: has the ids around documents.
        dtype: see Tokenizer.encode.
    """
    parts = (encode(texts[start:end]) for start, end in runs_of(text_bytes(texts)[1], _RUN_BYTES))
    return concatenate([with_boundary_ids(ids, tokenizer.bos_ids, tokenizer.eot_id, dtype) for ids in parts], dtype)


def decode_between(ids: NDArray[Any], spellings: Mapping[int, str], decode_run: Callable[[list[int]], str]) -> str:
    """Return the text of (n,) ids: those in `spellings` as spelled there, the runs between them decoded."""
    parts, start = [], 0
    for index in np.flatnonzero(np.isin(ids, list(spellings))).tolist():
        parts += [decode_run(ids[start:index].tolist()), spellings[int(ids[index])]]
        start = index + 1
    return "".join([*parts, decode_run(ids[start:].tolist())])


def read_file(definition: Mapping[str, Any], files: Mapping[str, bytes] | None, name: str) -> tuple[str, bytes]:
    """Return a label for messages and the content of a tokenizer's only file, from `files` or else from `path`.

    Raises TokenizerError if there is no file or it can't be read.
    """
    if files:
        if name not in files:
            raise TokenizerError(
                f"a {definition['kind']} tokenizer needs {name}; the files given are: {', '.join(files)}"
            )
        return name, files[name]
    path = definition.get("path")
    if not path:
        raise TokenizerError(f"a {definition['kind']} tokenizer needs a file; give tokenizer.path: {name}")
    is_name = definition["kind"] == "huggingface" and not str(path).endswith(".json")
    hub = "; give a model on the Hugging Face Hub as name, not path" if is_name else ""
    return str(path), read_path(str(path), f"a {name}", hub)


def read_path(path: str, wanted: str, otherwise: str = "") -> bytes:
    """Return the content of a file; raise TokenizerError if it can't be read.

    Args:
        path: the path of the file.
        wanted: what the file should be, for messages.
        otherwise: another next step if there is no such file.
    """
    try:
        return read_regular(path)
    except FileNotFoundError as error:
        raise TokenizerError(f"tokenizer file {path}: no such file; give the path of {wanted}{otherwise}") from error
    except OSError as error:
        problem = "this is a folder" if isinstance(error, IsADirectoryError) else error.strerror
        raise TokenizerError(f"tokenizer file {path}: {problem}; give the path of {wanted}") from error


def special_tokens_hint(tokens: Sequence[str], given: str = "") -> str:
    """Return the special tokens of a tokenizer for a message, at most ten, and the one closest to a given one.

    Example: (["<s>", "</s>"], "<\\s>") -> "it has these special tokens: <s>, </s>. Did you mean </s>?"
    """
    return f"it has these special tokens: {first_of(tokens)}. {near_miss(given, tokens)}".removesuffix(". ")
