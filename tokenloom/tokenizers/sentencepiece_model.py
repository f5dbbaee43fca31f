"""A model file of SentencePiece: BPE, Unigram, word or character pieces.

The library gets UTF-8 bytes from the Arrow buffer and returns numpy arrays, never lists.
Memory per byte of text (0.2.3, one document of 3 to 16 MB): 32 bytes for English with a Unigram model, 45 with a BPE
model, 56 if each byte is a piece. A document may therefore have 12 MB. Only text that the model's normalization expands
needs more (U+FDFA, one character of 3 bytes that becomes 33: 324). Speed on one core with English: BPE 5.5 MB/s with
short documents and 1.3 to 1.9 with long ones, Unigram 30 and 14 to 20. Runs of 0.1 to 1 MB are equally fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import sentencepiece
from numpy.typing import NDArray

from tokenloom.errors import TokenizerError
from tokenloom.storage.formats.records import sha256_of_bytes
from tokenloom.tokenizers.base import (
    END_OF_TEXT,
    PROBE,
    ChatTokens,
    Encoded,
    decode_between,
    encode_in_runs,
    fingerprint,
    library_errors,
    read_file,
    special_tokens_hint,
)
from tokenloom.tokenizers.sentencepiece_file import FILE


class SentencePieceTokenizer:
    """A SentencePiece model that puts its end-of-text piece after each document.

    Args:
        library: the processor, with the model loaded.
        name: shown in the manifest.
        eot_id: the id after each document.
        bos_ids: the ids before each document.
        data: content of the model file.

    Raises TokenizerError if the library can't encode PROBE.
    """

    kind = "sentencepiece"
    backend = f"sentencepiece {sentencepiece.__version__}"
    max_text_bytes = 12_000_000

    def __init__(
        self, library: sentencepiece.SentencePieceProcessor, name: str, eot_id: int, bos_ids: list[int], data: bytes
    ) -> None:
        self.name = name
        self.files = {FILE: data}
        self.vocab_size = library.GetPieceSize()
        self.eot_id = eot_id
        self.eot = library.IdToPiece(eot_id)
        self._library = library
        self.bos_ids = bos_ids
        # The library decodes control pieces to an empty text.
        control = {i: library.IdToPiece(i) for i in range(self.vocab_size) if library.IsControl(i) or i in bos_ids}
        self._spellings = control | {eot_id: END_OF_TEXT}
        definition = {"kind": self.kind, "file": sha256_of_bytes(data), "eot": eot_id, "bos": bos_ids}
        self.fingerprint = fingerprint(definition, self._encode_run(pa.array([PROBE]))[0].tolist())

    def encode(self, texts: pa.Array, dtype: np.dtype[Any]) -> Encoded:
        """See Tokenizer.encode."""
        return encode_in_runs(texts, self._encode_run, self, dtype)

    def _encode_run(self, texts: pa.Array) -> list[NDArray[Any]]:
        with library_errors(f"tokenizer {self.name}: a text can't be encoded"):
            ids: list[NDArray[Any]] = self._library.EncodeAsNumpy(texts.cast(pa.large_binary()).to_pylist())
        return ids

    def chat_tokens(self) -> ChatTokens:
        """See ReferenceTokenizer.chat_tokens."""
        raise TokenizerError(
            f"tokenizer {self.name}: a sentencepiece model finds no special tokens in a text, as chat templates write "
            "them; give the tokenizer.json of the model (kind: huggingface)"
        )

    def decode(self, ids: NDArray[Any]) -> str:
        """See Tokenizer.decode."""
        with library_errors(f"tokenizer {self.name}: ids can't be decoded"):
            return decode_between(np.asarray(ids), self._spellings, self._library.DecodeIds)


def load(definition: Mapping[str, Any], files: Mapping[str, bytes] | None) -> SentencePieceTokenizer:
    """Return the tokenizer; SentencePieceTokenizer of the spec describes the fields of `definition`."""
    label, data = read_file(definition, files, FILE)
    library = sentencepiece.SentencePieceProcessor(num_threads=1)
    with library_errors(
        f"tokenizer file {label} is not a complete SentencePiece model; check tokenizer.kind, or download it again"
    ):
        if not data or not library.LoadFromSerializedProto(data):
            raise ValueError("the file is empty")
        eot_id, bos_ids = _boundary_ids(library, label, definition.get("eot"), definition.get("bos"))
        return SentencePieceTokenizer(library, str(definition.get("name") or "sentencepiece"), eot_id, bos_ids, data)


def _boundary_ids(
    library: sentencepiece.SentencePieceProcessor, label: str, eot: str | None, bos: str | None
) -> tuple[int, list[int]]:
    """Return the end-of-text id, and the ids before each document."""
    eot_id = library.eos_id() if eot is None else _piece_id(library, label, eot)
    if eot_id < 0:
        raise TokenizerError(
            f"tokenizer file {label}: its end-of-text token is unknown, because the model was trained without one; "
            f"give tokenizer.eot; {special_tokens_hint(_special(library))}"
        )
    return eot_id, [] if bos is None else [_piece_id(library, label, bos)]


def _piece_id(library: sentencepiece.SentencePieceProcessor, label: str, piece: str) -> int:
    """Return the id of a piece. For one that the model lacks, the library returns the id of the unknown piece."""
    piece_id = library.PieceToId(piece)
    if library.IdToPiece(piece_id) != piece or library.IsUnknown(piece_id) or library.IsByte(piece_id):
        raise TokenizerError(
            f"tokenizer file {label}: {piece!r} is not a piece that can separate documents; "
            f"{special_tokens_hint(_special(library), piece)}"
        )
    return piece_id


def _special(library: sentencepiece.SentencePieceProcessor) -> list[str]:
    return [library.IdToPiece(i) for i in range(library.GetPieceSize()) if library.IsControl(i)]
