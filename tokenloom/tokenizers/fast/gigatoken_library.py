"""gigatoken as a library of fast encoders.

It remembers the ids of every word that it meets, in 12 bytes for each byte of new words, and forgets none. So that a
worker stays within its memory, the encoder is made again when the process has grown by _MAX_GROWTH; that takes a tenth
of a second. Texts are encoded one by one, since a batch makes awkward arrays, whose import takes longer than the others
of a worker together; with long texts that is also twice as fast.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import gigatoken
import numpy as np
from numpy.typing import NDArray
from tiktoken_ext import openai_public

from tokenloom.storage.stores.local_errors import translate_temporary_errors
from tokenloom.tokenizers.base import Tokenizer
from tokenloom.tokenizers.fast import sentencepiece_parts
from tokenloom.tokenizers.fast.bare_json import bare_json
from tokenloom.tokenizers.fast.encoder import FastEncoder, refusals
from tokenloom.tokenizers.fast.known_parts import Unproven, check_tokenizer_json
from tokenloom.tokenizers.fast.sentencepiece_parts import read_model
from tokenloom.tokenizers.huggingface_json import FILE
from tokenloom.tokenizers.patterns import CL100K, GPT_2, GPT_4O, QWEN_2
from tokenloom.tokenizers.tiktoken_bpe import TiktokenTokenizer

if TYPE_CHECKING:  # its module imports sentencepiece, which other kinds do without
    from tokenloom.tokenizers.sentencepiece_model import SentencePieceTokenizer

NAME = f"gigatoken {version('gigatoken')}"
_MAX_GROWTH = 256_000_000
_MAX_NUM_BYTES = 32_000_000  # where the system does not tell how large a process is
_PATTERNS = {
    openai_public.r50k_pat_str: "gpt2",
    GPT_2: "gpt2",
    CL100K: "cl100k",
    GPT_4O: "o200k",
    QWEN_2: "qwen2",
}


def check_parts(tokenizer: Tokenizer) -> None:
    """See Library.check_parts."""
    if isinstance(tokenizer, TiktokenTokenizer):
        if tokenizer.pattern not in _PATTERNS:
            raise Unproven("its pattern is not that of GPT-2, cl100k_base, GPT-4o or Qwen 2")
        if sorted(tokenizer.ranks.ids.values()) != list(range(len(tokenizer.ranks.ids))):
            raise Unproven("its ranks are not 0, 1, 2, ...")
    elif tokenizer.kind == "huggingface":
        check_tokenizer_json(json.loads(tokenizer.files[FILE]))
    elif tokenizer.kind == "sentencepiece":
        read_model(tokenizer.files[sentencepiece_parts.FILE])
    else:
        raise Unproven(f"gigatoken does not encode the kind {tokenizer.kind}")


def starts_thread(tokenizer: Tokenizer) -> bool:
    """See Library.starts_thread; it does not."""
    return False


def make_encoder(tokenizer: Tokenizer) -> FastEncoder:
    """See Library.make_encoder."""
    if tokenizer.kind == "sentencepiece":
        return _for_sentencepiece(cast("SentencePieceTokenizer", tokenizer))
    if tokenizer.kind == "huggingface":
        return _for_tokenizer_json(tokenizer)
    check_parts(tokenizer)
    assert isinstance(tokenizer, TiktokenTokenizer)
    pattern, file = _PATTERNS[tokenizer.pattern], tokenizer.ranks.file
    encoder = _Encoder(lambda: _from_file(file, pattern))
    return FastEncoder(NAME, encoder.encode_texts, [], tokenizer.bos_ids, tokenizer.eot_id)


def _for_tokenizer_json(tokenizer: Tokenizer) -> FastEncoder:
    bare = bare_json(tokenizer.files[FILE])
    runs, normalizes, data = bare.space_runs(), bare.normalizes, bare.content.encode()
    encoder = _Encoder(lambda: gigatoken.Tokenizer.from_json(data))

    def encode_texts(texts: list[bytes]) -> list[NDArray[np.uint32]]:
        if normalizes:  # not `bare.normalizes`: that would keep its content a second time
            texts = list(map(_normal_form, texts))
        if runs is None:
            return encoder.encode_texts(texts)
        marked, ids = runs.mark(texts)
        return runs.restore(encoder.encode_texts(marked), ids)

    return FastEncoder(NAME, encode_texts, bare.spellings, tokenizer.bos_ids, tokenizer.eot_id)


def _normal_form(text: bytes) -> bytes:
    """Return a text, UTF-8, in normal form C."""
    if text.isascii() or unicodedata.is_normalized("NFC", decoded := text.decode()):
        return text
    return unicodedata.normalize("NFC", decoded).encode()


def _for_sentencepiece(tokenizer: SentencePieceTokenizer) -> FastEncoder:
    model = read_model(tokenizer.files[sentencepiece_parts.FILE])
    data = json.dumps(model.tokenizer_json()).encode()
    encoder = _Encoder(lambda: gigatoken.Tokenizer.from_json(data))

    def encode_texts(texts: list[bytes]) -> list[NDArray[np.uint32]]:
        return encoder.encode_texts([model.prepared(text) for text in texts])

    return FastEncoder(NAME, encode_texts, [], tokenizer.bos_ids, tokenizer.eot_id)


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
        with refusals("gigatoken"):
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
