"""Tokenizers from a SentencePiece model: ids of the library, eot and bos, and refusals."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

from tests.tokenloom.tokenizer_conformance import EOT, TokenizerConformance, refused
from tokenloom.tokenizers import load_tokenizer

CORPUS = ["lorem ipsum dolor sit amet, consectetur adipiscing elit", "Hello, world! It's 1234567.", "naïve café"] * 5


@lru_cache
def train(model_type: str, **options: Any) -> bytes:
    """Return a small model: <unk> 0, <s> 1, </s> 2, and a user-defined piece."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type=model_type,
        num_threads=1,
        minloglevel=2,
        user_defined_symbols=["<sep>"],
        **{"vocab_size": 70, "hard_vocab_limit": False, **options},
    )
    return model.getvalue()


def write_model(folder: Path, content: bytes) -> dict[str, Any]:
    """Write a tokenizer.model and return the definition that names it."""
    path = folder / "tokenizer.model"
    path.write_bytes(content)
    return {"kind": "sentencepiece", "path": str(path)}


def library_ids(model: bytes, text: str) -> list[int]:
    """Return the library's ids of one text."""
    ids: list[int] = _library(model).EncodeAsIds(text)
    return ids


@lru_cache
def _library(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


class TestUnigramModel(TokenizerConformance):
    spellings = ("<s>", "</s>", "<unk>", "<sep>", EOT)
    other_boundary_tokens = ({"eot": "<s>"}, {"bos": "<s>"}, {"eot": "<sep>"})

    @pytest.fixture
    def definition(self, tmp_path: Path) -> dict[str, Any]:
        return write_model(tmp_path, train("unigram"))

    def reference_ids(self, definition: dict[str, Any], text: str) -> list[int]:
        return library_ids(train("unigram"), text)


class TestBpeModelWithByteFallback(TokenizerConformance):
    spellings = ("<s>", "</s>", "<unk>", "<0x41>", EOT)
    bos_ids = (1,)
    other_boundary_tokens = ({"eot": "<s>"}, {"bos": None}, {"bos": "</s>"})

    @pytest.fixture
    def definition(self, tmp_path: Path) -> dict[str, Any]:
        return {**write_model(tmp_path, train("bpe", byte_fallback=True, vocab_size=340)), "bos": "<s>"}

    def reference_ids(self, definition: dict[str, Any], text: str) -> list[int]:
        return library_ids(train("bpe", byte_fallback=True, vocab_size=340), text)


# End of text


def test_a_model_without_an_end_of_text_requires_eot(tmp_path: Path) -> None:
    definition = write_model(tmp_path, train("unigram", eos_id=-1))
    with refused(r"is unknown.*give tokenizer\.eot; .* special tokens: <s>$"):
        load_tokenizer(definition)
    assert load_tokenizer({**definition, "eot": "<sep>"}).eot_id == 2


@pytest.mark.parametrize("field", ["eot", "bos"])
@pytest.mark.parametrize("piece", ["<nope>", "<unk>", "<0x41>"])
def test_an_eot_or_bos_that_is_not_a_separate_piece_is_refused(field: str, piece: str, tmp_path: Path) -> None:
    definition = write_model(tmp_path, train("bpe", byte_fallback=True, vocab_size=340))
    with refused(rf"'{piece}' is not a piece that.* special tokens: <s>, </s>"):
        load_tokenizer({**definition, field: piece})


# Decoding


def test_control_pieces_that_the_library_drops_are_spelled(tmp_path: Path) -> None:
    model = train("unigram", pad_id=3)
    assert _library(model).DecodeIds([1, 3]) == ""
    tokenizer = load_tokenizer(write_model(tmp_path, model))
    assert tokenizer.decode(np.array([1, 3, 2], np.uint16)) == f"<s><pad>{EOT}"
