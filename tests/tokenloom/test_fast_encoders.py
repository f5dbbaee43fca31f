"""Fast encoders: the same ids as the reference, and each layer finds the wrong encoders that it must find."""

from __future__ import annotations

import base64
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.builders.proofs import fast_of, trust
from tests.builders.vocabularies import encoding_of
from tests.counts import count
from tokenloom.errors import EncoderMismatch, StoreError
from tokenloom.tokenizers import load_tokenizer
from tokenloom.tokenizers.base import ReferenceTokenizer as Reference
from tokenloom.tokenizers.base import Tokenizer as AnyTokenizer
from tokenloom.tokenizers.fast import proofs
from tokenloom.tokenizers.fast import tokenizer as fast_tokenizer
from tokenloom.tokenizers.fast.proofs import REFERENCE, Choice, choose
from tokenloom.tokenizers.fast.tokenizer import NO_OVERLAP, FastEncoder, FastTokenizer, Overlap, Router, make_encoder

_UINT32 = np.dtype(np.uint32)
_CORPUS = [
    "lorem ipsum dolor sit amet",
    "it's 1234 o'clock, isn't it?",
    "naïve café übergrößenträger",
    "def f(x):\n    y",
]
_SPECIAL = "<|endoftext|>"


def train(normalizer: Any = None, added: tuple[AddedToken, ...] = ()) -> bytes:
    """Return the tokenizer.json of a small byte-level BPE with the pattern of GPT-2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[_SPECIAL], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS * 3, trainer)
    tokenizer.add_tokens(list(added))
    return tokenizer.to_str().encode()


def loaded(data: bytes, **fields: Any) -> Reference:
    """Return the tokenizer of a tokenizer.json."""
    return load_tokenizer({"kind": "huggingface", **fields}, {"tokenizer.json": data})


@pytest.fixture(scope="module")
def reference() -> Reference:
    """A small tokenizer.json with NFC, as GPT-NeoX, OLMo and Qwen have it."""
    return loaded(train(normalizers.NFC(), (AddedToken("    ", normalized=True),)))


@pytest.fixture(scope="module")
def encoder(reference: Reference) -> FastEncoder:
    """The fast encoder of `reference`."""
    return make_encoder(reference)


def changed(encoder: FastEncoder, change: Callable[[str, list[int]], list[int]]) -> FastEncoder:
    """Return an encoder that gives the ids that `change` makes of a text and its ids."""

    def encode_texts(texts: list[bytes]) -> list[NDArray[np.uint32]]:
        ids = zip(texts, encoder.encode_texts(texts), strict=True)
        return [np.array(change(text.decode(), before.tolist()), np.uint32) for text, before in ids]

    other: Any = copy(encoder)
    other.encode_texts = encode_texts
    wrong: FastEncoder = other
    return wrong


def ids_of(tokenizer: AnyTokenizer, texts: list[str]) -> tuple[list[int], list[int]]:
    encoded = tokenizer.encode(pa.array(texts, pa.large_string()), _UINT32)
    return encoded.tokens.tolist(), encoded.num_tokens.tolist()


# ---- memory


@pytest.mark.slow
def test_gigatoken_gives_its_memory_back(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_tokenizer, "_MAX_GROWTH", 50_000_000)
    encoder = make_encoder(reference)
    generator = np.random.default_rng(0)
    start = peak = fast_tokenizer._resident_bytes() or 0
    for _ in range(count(20, 200)):
        words = base64.b64encode(generator.bytes(750_000)).decode()
        encoder.encode(pa.array([" ".join(words[i : i + 12] for i in range(0, len(words), 12))]), _UINT32)
        peak = max(peak, fast_tokenizer._resident_bytes() or 0)
    assert peak - start < 150_000_000  # without it, 240 MB, or 2.4 GB in the full run


# ---- routing


def test_texts_with_an_odd_character_or_a_spelling_need_the_reference() -> None:
    router = Router([(0x41, 0x41), (0xE9, 0xEA), (0x4E00, 0x4E01), (0x10FFFF, 0x10FFFF)], ["<s>", "a.c"])
    texts = ["", "A", "B", "é", "xê", "ë", "一x", "丂", "\U0010ffff", "\U0010fffe", "x<s>y", "<s", "abc", "a.c", "aé"]
    expected = [False, True, False, True, True, False, True, False, True, False, True, False, False, True, True]
    array = pa.array(["A", *texts, "é"], pa.large_string()).slice(1, len(texts))
    assert router.needs_reference(array).tolist() == expected
    assert Router([], []).needs_reference(array).tolist() == [False] * len(texts)


@pytest.fixture(scope="module", params=[None, normalizers.NFC()], ids=["as it is", "NFC"])
def with_added_tokens(request: pytest.FixtureRequest) -> Reference:
    """A tokenizer.json with added tokens of every sort."""
    added = [
        AddedToken("|||IP|||", normalized=True),
        AddedToken("<x>", normalized=False, lstrip=True),
        AddedToken("|=", special=True, normalized=True),
        AddedToken("  ", normalized=True),
    ]
    return loaded(train(request.param, tuple(added)), eot=_SPECIAL)


@given(
    st.lists(st.sampled_from(["|||IP|||", "<x>", "|=", "|", "=", " ", "\u0338", "e\u0301", "\u212a", "x", _SPECIAL]))
)
def test_texts_with_added_tokens_have_the_ids_of_the_reference(with_added_tokens: Reference, parts: list[str]) -> None:
    fast = fast_of(with_added_tokens)
    texts = ["".join(parts)]
    assert ids_of(fast, texts) == ids_of(with_added_tokens, texts)


# ---- the sample of every build


@pytest.mark.parametrize(
    ("check", "at_least", "at_most"),
    [
        (NO_OVERLAP, 0, 0),
        (Overlap(first_bytes=250_000), 250_000, 251_000),
        (Overlap(share=0.01, first_bytes=250_000), 250_000, 251_000),
        (Overlap(share=1.0, seconds=0.0), 0, 0),
    ],
)
def test_as_many_bytes_are_compared_as_the_check_asks_for(
    check: Overlap, at_least: int, at_most: int, reference: Reference, encoder: FastEncoder
) -> None:
    fast = FastTokenizer(reference, encoder, Router([], encoder.spellings), check)
    texts = pa.array([f"{i:05} lorem ipsum" * 10 for i in range(20_000)], pa.large_string())
    for _ in range(4):
        fast.encode(texts, _UINT32)
    assert at_least <= fast.num_compared <= at_most


def test_an_encoder_that_fails_is_an_error_that_names_it(reference: Reference, encoder: FastEncoder) -> None:
    def fail(text: str, ids: list[int]) -> list[int]:
        raise RuntimeError("out of tables")

    fast = FastTokenizer(reference, changed(encoder, fail), Router([], []))
    with pytest.raises(EncoderMismatch, match=rf"^{encoder.library} failed: out of tables$"):
        fast.encode(pa.array(["x"], pa.large_string()), _UINT32)


# ---- the choice


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine's cache without proofs."""
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def chosen(reference: Reference, backend: str = "auto") -> Choice:
    """Return what encodes."""
    return choose(reference, {"kind": reference.kind, "backend": backend})


@pytest.mark.usefixtures("cache")
def test_only_an_encoder_that_is_proven_is_chosen(reference: Reference, encoder: FastEncoder) -> None:
    choice = chosen(reference)
    assert (choice.proof, choice.unproven) == (None, encoder.library)
    assert choice.line("x 1.0") == (
        f"encoded by x 1.0: {encoder.library} is not proven for this vocabulary; "
        "`tokenloom tokenizer SPEC` proves it in about a minute"
    )
    proof = trust(reference)
    assert chosen(reference).proof == proof
    assert chosen(reference).line("x 1.0") == f"encoded by {encoder.library}, which gives the ids of x 1.0"
    assert chosen(reference, REFERENCE).reason == "the spec asks for the reference library"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("release", ["installed_library", "backend"])
def test_a_proof_holds_for_one_release_of_each_library(
    release: str, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(reference)
    owner, value = (type(reference), "x 9") if release == "backend" else (proofs, lambda: "gigatoken 9.9")
    monkeypatch.setattr(owner, release, value)
    assert chosen(reference).unproven


def test_a_damaged_proof_is_none(reference: Reference, cache: Path) -> None:
    trust(reference)
    (path,) = cache.rglob("*.json")
    path.write_bytes(path.read_bytes()[:-3])
    assert chosen(reference).unproven


@pytest.mark.usefixtures("cache")
def test_a_library_that_is_not_installed_is_named(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(reference)
    monkeypatch.setattr(proofs, "installed_library", lambda: None)
    choice = chosen(reference)
    assert (choice.proof, choice.unproven) == (None, None)
    assert choice.line("x").endswith(": gigatoken is not installed; pip install 'tokenloom[fast]'")


def test_gigatoken_needs_no_room_in_tmpdir(
    vocabulary: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = vocabulary("gpt2")
    reference = load_tokenizer(definition)
    monkeypatch.setattr("tempfile.tempdir", "/dev/null/full")
    assert make_encoder(reference).encode_texts([b"hello"])[0].tolist() == encoding_of(definition).encode("hello")
    monkeypatch.setattr("sys.platform", "another")  # without files in memory
    with pytest.raises(StoreError, match=r"/dev/null/full: can't be written: .*set TMPDIR to another folder"):
        make_encoder(reference)
