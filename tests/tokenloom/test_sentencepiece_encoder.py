"""The fast encoder of SentencePiece models: the same ids where it is used, and every other model is refused."""

from __future__ import annotations

import io
import random
import struct
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from tests.builders.proofs import fast_of
from tests.counts import count
from tests.tokenloom.test_fast_encoders import ids_of
from tests.tokenloom.tokenizer_conformance import TEXTS
from tokenloom.errors import TokenizerError
from tokenloom.tokenizers import ReferenceTokenizer, load_tokenizer
from tokenloom.tokenizers.fast import Unproven
from tokenloom.tokenizers.fast.tokenizer import FastTokenizer, make_encoder
from tokenloom.tokenizers.patterns import SPACE_MARK
from tokenloom.tokenizers.sentencepiece_file import FILE

_CORPUS = ["lorem ipsum dolor sit amet", "aaaa aaa ababab -----", "été, été: naïve café", "x = f(x)\n    y"] * 5
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_TRAINER, _NORMALIZER = 2, 3


def train(**options: Any) -> bytes:
    """Return a model with byte fallback and without normalization, as Llama 2 and Mistral 7B have it."""
    model = io.BytesIO()
    defaults: dict[str, Any] = {
        "model_type": "bpe",
        "byte_fallback": True,
        "vocab_size": 340,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<sep>", "\n\n", "m▁i"],
    }
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(_CORPUS), model_writer=model, num_threads=1, minloglevel=2, **(defaults | options)
    )
    return model.getvalue()


def field(number: int, value: bytes | int) -> bytes:
    """Return a field of a message of protobuf; one that is appended to a file is added, or overrides an earlier one."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def piece(text: str, score: float = -1e9, kind: int = _NORMAL) -> bytes:
    """Return a piece to append to a file."""
    packed = bytes([2 << 3 | 5]) + struct.pack("<f", score)
    return field(1, field(1, text.encode()) + packed + field(3, kind))


def loaded(model: bytes) -> ReferenceTokenizer:
    return load_tokenizer({"kind": "sentencepiece", "bos": "<s>"}, {FILE: model})


# Runs of spaces share a score, as in Llama 2 and Mistral 7B.
_RUNS = b"".join(piece(SPACE_MARK * length) for length in (2, 3, 4, 7))
_MODELS = {
    "with a space before": train() + _RUNS,
    "without": train(add_dummy_prefix=False) + _RUNS + piece("▁▁▁▁▁", 0, _USER_DEFINED),
    "without runs": train(user_defined_symbols=[]),
}
_PARTS = [
    *(" ", "  ", "    ", SPACE_MARK, "▁▁", "\n", "\n\n", "\x00", "\t", "a", "aa", "ab", "-", "---", "été", "ét", "té"),
    *("<sep>", "m i", "m▁i", "m", "<s>", "</s>", "<unk>", "<0x0A>"),
    *("lorem", "ipsum", ",", "梦", "\U0001f469", "e\u0301"),
]


@pytest.fixture(scope="module", params=_MODELS)
def reference(request: pytest.FixtureRequest) -> ReferenceTokenizer:
    """A model of each sort that the fast encoder takes."""
    return loaded(_MODELS[request.param])


@pytest.fixture(scope="module")
def fast(reference: ReferenceTokenizer) -> FastTokenizer:
    """What encodes with the fast encoder of `reference`."""
    return fast_of(reference)


@given(st.lists(st.one_of(st.lists(st.sampled_from(_PARTS)).map("".join), st.text()), max_size=4))
@example(TEXTS)
@example([" " * length + end for length in range(40) for end in ("", "x", "\n")])
@example(["a" * 5000, "ab" * 3000, "-a" * 3000, " " * 5000])
def test_texts_have_the_ids_of_the_library(
    reference: ReferenceTokenizer, fast: FastTokenizer, texts: list[str]
) -> None:
    assert ids_of(fast, texts) == ids_of(reference, texts)


# ---- by construction

_ADDED = [
    piece("amx", -5e8, _UNUSED),
    piece("\x07", 0, _CONTROL),
    piece("a b", -5e8),
    piece("a梦", -5e8),  # a character that is not a piece
    piece("amx") + piece("mxa"),  # the same score
]


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (lambda: train(model_type="unigram", vocab_size=299), "settings"),
        (lambda: train(normalization_rule_name="nfkc"), "settings"),
        (lambda: train() + field(_NORMALIZER, field(7, 1)), "settings"),  # an unknown field
        (lambda: train() + b"\x1d\x18\x00\x18\x00", "fields"),  # a number in place of a message
        *((lambda added=added: train() + added, "pieces") for added in _ADDED),
    ],
)
def test_a_part_that_is_not_known_to_be_supported_is_named(model: Any, part: str) -> None:
    reference = loaded(model())
    with pytest.raises(Unproven, match=f"^gigatoken is not known to support its {part}$"):
        make_encoder(reference)


def test_a_damaged_model_that_the_library_takes_is_refused_or_encoded_the_same() -> None:
    whole, num_taken = train(), 0
    for seed in range(count(60, 5000)):
        damaged, draw = bytearray(whole), random.Random(seed)
        damaged[draw.randrange(len(damaged))] ^= draw.randrange(1, 256)
        try:
            reference = loaded(bytes(damaged))
            fast = fast_of(reference)
        except (TokenizerError, Unproven):
            continue
        num_taken += 1
        assert ids_of(fast, TEXTS) == ids_of(reference, TEXTS)
    assert num_taken
