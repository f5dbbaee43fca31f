"""gigatoken as a library of fast encoders.

It remembers the ids of every word that it meets, in 12 bytes for each byte of new words, and forgets none. So that a
worker stays within its memory, the encoder is made again when the process has grown by _MAX_GROWTH; that takes a tenth
of a second. Texts are encoded one by one, since a batch makes awkward arrays, whose import takes longer than the others
of a worker together; with long texts that is also twice as fast.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gigatoken
import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.stores.local_errors import translate_temporary_errors
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.fast.known_parts import Unproven
from tokenloom.tokenizers.fast.parts import Parts, parts_of
from tokenloom.tokenizers.fast.sentencepiece_parts import spaced
from tokenloom.tokenizers.fast.space_runs import SpaceRuns
from tokenloom.tokenizers.fast.tokenizer import FastEncoder, failing_as

NAME = f"gigatoken {version('gigatoken')}"
_MAX_GROWTH = 256_000_000
_MAX_NUM_BYTES = 32_000_000  # where the system does not tell how large a process is


def make_encoder(tokenizer: Tokenizer) -> FastEncoder:
    """Return a fast encoder for a tokenizer; raise Unproven as parts_of, or if gigatoken does not take its parts."""
    return encoder_of(parts_of(tokenizer), tokenizer.bos_ids, tokenizer.eot_id)


def encoder_of(parts: Parts, bos_ids: list[int], eot_id: int) -> FastEncoder:
    """Return a fast encoder for the parts of a tokenizer; raise Unproven if gigatoken does not take them.

    Args:
        parts: see Parts.
        bos_ids: the ids before each document.
        eot_id: the id after each document.
    """
    content, pattern = parts.content.encode(), parts.pattern
    encoder = _Encoder(
        lambda: gigatoken.Tokenizer.from_json(content) if pattern is None else _from_file(content, pattern)
    )
    return FastEncoder(NAME, _prepared(parts, encoder.encode_texts), parts.spellings, bos_ids, eot_id)


_EncodeTexts = Callable[[list[bytes]], list[NDArray[np.uint32]]]


def _prepared(parts: Parts, encode_texts: _EncodeTexts) -> _EncodeTexts:
    """Return `encode_texts` with what must be done with a text before, and with its ids afterwards."""
    if parts.pattern is not None:
        return _with_ids(parts.id_ranges, encode_texts)
    if parts.run_ids:
        encode_texts = SpaceRuns(np.array(parts.run_ids, np.uint32), parts.marker_id).marking(encode_texts)
    if parts.normalizes:
        return _after(_normal_form, encode_texts)
    if parts.adds_space is not None:
        return _after(partial(spaced, adds_space=parts.adds_space), encode_texts)
    return encode_texts


def _after(prepare: Callable[[bytes], bytes], encode_texts: _EncodeTexts) -> _EncodeTexts:
    """Return `encode_texts` for texts that are prepared first."""
    return lambda texts: encode_texts(list(map(prepare, texts)))


def _with_ids(ranges: list[tuple[int, int]], encode_texts: _EncodeTexts) -> _EncodeTexts:
    """Return `encode_texts` with ids in place of ranks; they are the same if the ids begin with 0 and have no gap."""
    if len(ranges) == 1 and ranges[0][0] == 0:
        return encode_texts
    ids = np.concatenate([np.arange(first, last + 1, dtype=np.uint32) for first, last in ranges])
    return lambda texts: [ids[ranks] for ranks in encode_texts(texts)]


def _normal_form(text: bytes) -> bytes:
    """Return a text, UTF-8, in normal form C."""
    if text.isascii() or unicodedata.is_normalized("NFC", decoded := text.decode()):
        return text
    return unicodedata.normalize("NFC", decoded).encode()


def _from_file(content: bytes, pattern: str) -> gigatoken.Tokenizer:
    with _file_of(content) as path:
        return gigatoken.Tokenizer.from_tiktoken(path, pattern, {})


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """Yield the path of a file with these bytes: in memory, or in TMPDIR on systems that have no such files."""
    if sys.platform == "linux" and Path("/proc/self/fd").is_dir():
        with os.fdopen(os.memfd_create("ranks"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with translate_temporary_errors(), tempfile.NamedTemporaryFile(suffix=".tiktoken") as temporary:
        temporary.write(content)
        temporary.flush()
        yield temporary.name


class _Encoder:
    """A tokenizer of gigatoken that is made again when it has used too much memory."""

    def __init__(self, make: Callable[[], gigatoken.Tokenizer]) -> None:
        self._make = make
        self._renew()

    def encode_texts(self, texts: list[bytes]) -> list[NDArray[np.uint32]]:
        """See FastEncoder.encode_texts."""
        if self._is_full():
            self._renew()
        self._num_bytes += sum(map(len, texts))
        return list(map(self._tokenizer.encode, texts))

    def _is_full(self) -> bool:
        resident = _resident_bytes()
        if resident is None:
            return self._num_bytes > _MAX_NUM_BYTES
        return resident > self._max_resident

    def _renew(self) -> None:
        self._tokenizer: Any = None  # frees the memory of the one before
        with failing_as(Unproven, "gigatoken does not take it"):
            self._tokenizer = self._make()
        self._num_bytes = 0
        self._max_resident = (_resident_bytes() or 0) + _MAX_GROWTH


def _resident_bytes() -> int | None:
    """Return the memory of this process; None where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return int(pages) * resource.getpagesize()
