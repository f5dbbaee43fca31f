"""A tokenizer.json of the library tokenizers: BPE, Unigram, WordPiece or WordLevel.

Each document is encoded alone, as ordinary text: the template, truncation and padding of the file are switched off,
and special tokens that stand in a text stay text. The library keeps every word with its offsets until a call ends.
Measured (0.23.3, one document of 3 MB): 122 to 150 bytes of memory a byte of prose or code in any script, 207 of a
table of numbers, 295 of marks between letters; WordPiece 106, 307 and 440. So a document may have 2 MB, or any size
where long_texts knows places to cut it: then it is encoded in parts of 0.25 MB, and joined. With 100 MB of English and
gpt-neox a process takes 417 MiB in all. A text of more with a stretch of 2 MB without such a place (base64 in one line,
a script of no letters that it knows) is refused by `takes`. Speed on one core: 4.8 to 5.5 MB/s with short
documents in runs of 0.25 MB (0.1 and 1 MB alike), 2.2 to 2.9 with long ones.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.base import (
    END_OF_TEXT,
    PROBE,
    Encoded,
    concatenate,
    decode_between,
    fingerprint,
    read_file,
    text_bytes,
    text_runs,
    with_marks,
)
from tokenloom.tokenizers.long_texts import agrees, cut_text, find_cut

_RUN_BYTES = 250_000
_MAX_WHOLE_BYTES = 2_000_000
_UINT32 = np.dtype(np.uint32)
FILE = "tokenizer.json"
# Every byte that UTF-8 has, in characters of one to four bytes that no trained alphabet holds all of.
_CODES = [*range(0x100), *range(0x100, 0x800, 0x40), 0x800, *range(0x1000, 0x10000, 0x1000)]
_EVERY_BYTE = "".join(map(chr, [*_CODES, 0x10000, 0x40000, 0x80000, 0xC0000, 0x100000]))


class HuggingFaceTokenizer:
    """A tokenizer.json with its end-of-text token put behind each document.

    Args:
        library: the tokenizer of the library; its settings are changed.
        name: as the manifest shows it.
        marks: the ids before each document, and the one behind it.
        data: content of the tokenizer.json.

    Raises TokenizerError if ids could be lost, change from run to run, or if the library can't encode PROBE.
    """

    kind = "huggingface"
    max_text_bytes = _MAX_WHOLE_BYTES
    backend = f"tokenizers {tokenizers.__version__}"

    def __init__(self, library: tokenizers.Tokenizer, name: str, marks: tuple[list[int], int], data: bytes) -> None:
        self.name = name
        self.files = {FILE: data}
        self._library = library
        self._bos_ids, self.eot_id = marks
        self.vocab_size = max(library.get_vocab(with_added_tokens=True).values()) + 1
        self._spelled = {i: library.id_to_token(i) or "" for i in self._bos_ids} | {self.eot_id: END_OF_TEXT}
        definition = {"kind": self.kind, "file": hashlib.sha256(data).hexdigest()}
        marked = {"eot": self.eot_id, "bos": self._bos_ids}
        probe_ids = self._encode_texts([PROBE], _UINT32)[0].tolist()
        self.fingerprint = fingerprint(definition | marked, probe_ids)
        with _library_errors(f"tokenizer {name}: a text can't be encoded"):
            cut = find_cut(library)
            self._cut = cut if cut is not None and agrees(library, cut) else None

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """See Tokenizer.encode."""
        data, offsets = text_bytes(texts)
        parts = []
        for start, end in text_runs(offsets, _RUN_BYTES):
            if self._cut is not None and end - start == 1:
                ids = [self._encode_long(data[offsets[start] : offsets[end]], self._cut, dtype)]
            else:
                ids = self._encode_texts(texts[start:end].to_pylist(), dtype)
            parts.append(with_marks(ids, self._bos_ids, self.eot_id, dtype))
        return concatenate(parts, dtype)

    def _encode_long(self, text: NDArray[np.uint8], cut: re.Pattern[str], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the ids of one text, (num_bytes,) UTF-8, part by part."""
        parts = (str(text[start:end].data, "utf-8") for start, end in cut_text(text, cut))
        return np.concatenate([self._encode_texts([part], dtype)[0] for part in parts])

    def _encode_texts(self, texts: list[str], dtype: np.dtype[Any]) -> list[NDArray[Any]]:
        with _library_errors(f"tokenizer {self.name}: a text can't be encoded"):
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype) for encoding in encodings]

    def takes(self, text: NDArray[np.uint8]) -> bool:
        """See Tokenizer.takes: whether it can be cut into parts."""
        return self._cut is not None and all(
            end - start <= self.max_text_bytes for start, end in cut_text(text, self._cut)
        )

    def decode(self, ids: NDArray[Any]) -> str:
        """See Tokenizer.decode."""
        with _library_errors(f"tokenizer {self.name}: ids can't be decoded"):
            return decode_between(np.asarray(ids), self._spelled, self._decode_run)

    def _decode_run(self, ids: list[int]) -> str:
        return self._library.decode(ids, skip_special_tokens=False)


def load(definition: Mapping[str, Any], files: Mapping[str, bytes] | None) -> HuggingFaceTokenizer:
    """Make the tokenizer; see HuggingFaceTokenizer of the spec for the fields of `definition`."""
    label, data = read_file(definition, files, FILE)
    with _library_errors(
        f"tokenizer file {label} is no whole tokenizer.json of the library tokenizers; "
        "save it again (Tokenizer.save) or fetch it again"
    ):
        library = tokenizers.Tokenizer.from_buffer(data)
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = True
    with _library_errors(f"tokenizer file {label}: a text can't be encoded"):
        _refuse_chance(library, label)
        _refuse_loss(library, label)
        marks = _marks(library, label, definition.get("eot"), definition.get("bos"))
    return HuggingFaceTokenizer(library, str(definition.get("name") or "huggingface"), marks, data)


@contextmanager
def _library_errors(message: str) -> Iterator[None]:
    """Raise the library's errors, which are bare Exceptions or panics (no Exceptions at all), as TokenizerError."""
    try:
        yield
    except BaseException as error:
        if type(error) not in (Exception, ValueError) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{message}: {error}") from error


def _refuse_chance(library: tokenizers.Tokenizer, label: str) -> None:
    """Refuse what gives a text other ids from run to run."""
    model = library.model
    if isinstance(model, models.BPE) and model.dropout:
        raise TokenizerError(
            f"tokenizer file {label}: model.dropout is {model.dropout:.3g}, so its ids are drawn by chance and differ "
            "from run to run; set it to null"
        )
    seen: dict[str, str] = {}
    for token in library.get_added_tokens_decoder().values():
        if token.normalized and not token.special and library.normalizer is not None:
            normal = library.normalizer.normalize_str(token.content)
            if (other := seen.setdefault(normal, token.content)) != token.content:
                raise TokenizerError(
                    f"tokenizer file {label}: its added tokens {other!r} and {token.content!r} are the same behind its "
                    "normalizer, so which id a text gets differs from run to run; remove one of them"
                )


def _refuse_loss(library: tokenizers.Tokenizer, label: str) -> None:
    """Refuse a BPE that drops what is not in its alphabet; other models have an unknown token or raise."""
    model, text = library.model, _EVERY_BYTE
    if not isinstance(model, models.BPE) or model.unk_token is not None:
        return
    if library.normalizer is not None:
        text = library.normalizer.normalize_str(text)  # what it leaves out is left out by declaration
    words = [text] if library.pre_tokenizer is None else [w for w, _ in library.pre_tokenizer.pre_tokenize_str(text)]
    lost = sorted({character for word in words for character in word if not model.tokenize(character)})
    if lost:
        raise TokenizerError(
            f"tokenizer file {label}: it drops characters that are not in its alphabet, {lost[-1]!a} for one, without "
            "a trace: it has no unknown token, no byte fallback and not all bytes; train it with one of these"
        )


def _marks(library: tokenizers.Tokenizer, label: str, eot: str | None, bos: str | None) -> tuple[list[int], int]:
    """Return the ids before each document, and the end-of-text id.

    A given `eot` is taken at its word. Else the file's template decides where it puts one token behind a text (BERT:
    [CLS] $A [SEP], and what it puts before the text is bos); one without (Llama: <s> $A) does not.
    """
    front, back = _template(library)
    special = sorted(token.content for token in library.get_added_tokens_decoder().values() if token.special)
    bos_ids = [] if bos is None else [_token_id(library, label, bos, special)]
    if eot is not None:
        return bos_ids, _token_id(library, label, eot, special)
    if len(back) == 1:
        if None in [library.id_to_token(i) for i in (*front, *back)]:
            raise TokenizerError(f"tokenizer file {label}: its template puts ids {front}, {back}: no tokens of it")
        return front if bos is None else bos_ids, back[0]
    known = [token for token in (END_OF_TEXT, "</s>") if token in special]
    if len(known) != 1:
        raise TokenizerError(
            f"tokenizer file {label}: its end-of-text token can't be known; give tokenizer.eot; it has these special "
            f"tokens: {', '.join(special) or 'none'}"
        )
    return bos_ids, _token_id(library, label, known[0], special)


def _template(library: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids that the file's post-processor puts before and behind one text."""
    encoding = library.encode("a 0")
    text_at = [i for i, is_special in enumerate(encoding.special_tokens_mask) if not is_special]
    if not text_at:
        return [], []
    return encoding.ids[: text_at[0]], encoding.ids[text_at[-1] + 1 :]


def _token_id(library: tokenizers.Tokenizer, label: str, token: str, special: list[str]) -> int:
    token_id = library.token_to_id(token)
    if token_id is None:
        raise TokenizerError(
            f"tokenizer file {label}: {token!r} is no token of it; it has these special tokens: "
            f"{', '.join(special) or 'none'}"
        )
    return token_id
