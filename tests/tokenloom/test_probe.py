"""The probe proves an encoder with the ids of the reference, and finds one that is wrong anywhere in its texts."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, normalizers

from tests.counts import FULL, every, full_only
from tests.tokenloom.test_fast_encoders import changed, ids_of, loaded, train
from tests.tokenloom.test_sentencepiece_encoder import _RUNS, piece
from tests.tokenloom.test_sentencepiece_encoder import loaded as loaded_model
from tests.tokenloom.test_sentencepiece_encoder import train as train_model
from tokenloom.errors import TokenizerError
from tokenloom.tokenizers.base import PROBE
from tokenloom.tokenizers.base import Tokenizer as Reference
from tokenloom.tokenizers.fast import Unproven, probe
from tokenloom.tokenizers.fast.parts import Parts, parts_of
from tokenloom.tokenizers.fast.probe import (
    NUM_CUT_SLICES,
    NUM_SLICES,
    Vocabulary,
    assigned,
    prove,
    slice_groups,
    vocabulary_of,
)
from tokenloom.tokenizers.fast.proofs import Proof
from tokenloom.tokenizers.fast.tokenizer import FastEncoder, FastTokenizer, Router, left_to_reference, make_encoder

Change = Callable[[str, list[int]], list[int]]


@pytest.fixture(scope="module")
def reference() -> Reference:
    """A small tokenizer.json with NFC, as GPT-NeoX, OLMo and Qwen have it."""
    return loaded(train(normalizers.NFC(), (AddedToken("    ", normalized=True),)))


def some(indices: Iterable[int]) -> Any:
    """Return a pool that runs only the jobs of some slices, in this process."""
    chosen = sorted(set(indices))
    return lambda function, jobs: map(function, [jobs[index] for index in chosen])


def proof_of(reference: Reference, pool: Any = None) -> Proof | str:
    """Return the proof of a tokenizer, or why there is none, with a part of the slices, or with all in the full run."""
    pool = pool or (map if FULL else some(range(0, NUM_SLICES, 20)))
    try:
        return prove(reference, parts_of(reference), lambda: reference, pool)
    except Unproven as error:
        return str(error)


def wrong(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Let fast encoders give the ids that `change` makes of a text and its ids."""

    def make(parts: Parts, bos_ids: list[int], eot_id: int) -> FastEncoder:
        return changed(FastEncoder(parts, bos_ids, eot_id), change)

    monkeypatch.setattr(probe, "FastEncoder", make)
    monkeypatch.setattr(probe, "subject_of", lru_cache(maxsize=1)(probe.subject_of.__wrapped__))


def slices_of(character: str) -> list[int]:
    """Return the slices that have the texts of a character."""
    index = assigned().index(ord(character))
    return [index % NUM_CUT_SLICES, NUM_CUT_SLICES + index % (NUM_SLICES - NUM_CUT_SLICES)]


# ---- the texts


def test_the_texts_are_the_same_in_every_process_and_version_of_python() -> None:
    """The shipped proofs were made with these texts."""
    texts = Vocabulary(["lorem", " ipsum", "", "\n\n"], [("l", "o"), (" ", "i")], normalizes=True)
    found = sha256()
    for index in range(NUM_SLICES):
        in_slice = [text for _, group in slice_groups(texts, index) for text in group]
        found.update("\0".join(in_slice).encode())
    assert found.hexdigest() == "65ca041285988cc8ed740097cd7c2c578f87dabec7b680ca5cbba99578ae7fdb"


def test_every_code_point_has_texts_or_always_goes_to_the_reference() -> None:
    codes = {ord(text[0]) for index in range(NUM_CUT_SLICES) for text in group(Vocabulary([], [], False), index)}
    left = {code for first, last in left_to_reference() for code in range(first, last + 1)}
    assert codes == set(assigned())
    assert codes.isdisjoint(left)
    assert codes | left | {*range(0xD800, 0xE000)} == set(range(0x110000))
    assert left.isdisjoint(map(ord, PROBE))


def group(vocabulary: Vocabulary, index: int, name: str = "characters") -> list[str]:
    """Return the texts of a group in a slice."""
    return list(dict(slice_groups(vocabulary, index))[name])


@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="needs the tables of Python 3.11")
def test_the_code_points_that_unicode_14_does_not_assign_are_listed() -> None:
    router = Router(left_to_reference(), [])
    unassigned = np.array([unicodedata.category(chr(code)) == "Cn" for code in range(0xF0000)])
    assert np.array_equal(router._is_odd[:0xF0000], unassigned)


def test_each_entry_and_merge_is_in_one_slice() -> None:
    words = [f"w{i}" for i in range(1000)]
    texts = Vocabulary(words, [(word, "x") for word in words], normalizes=False)
    ids_slices = range(NUM_CUT_SLICES, NUM_SLICES)
    for name in ("words", "merges"):
        found = [text.split(" ")[0].split("x")[0] for index in ids_slices for text in group(texts, index, name)]
        assert sorted(found) == sorted(words)


# ---- proofs


@pytest.mark.slow
def test_the_probe_finds_the_characters_that_newer_unicode_tables_change(reference: Reference) -> None:
    proof = proof_of(reference, None if FULL else some([0, *slices_of("\u07fd")]))
    assert isinstance(proof, Proof)
    odd = {code for first, last in proof.odd for code in range(first, last + 1)}
    assert 0x07FD in odd  # a mark that Unicode 11 added: the reference does not reorder it
    assert odd.isdisjoint(map(ord, PROBE))
    texts = ["\u07f3\u07fd", "e\u0301", "plain", "a<|endoftext|>b", "", "\u0378\u0301", "\U000f0001"]
    encoder = make_encoder(reference)
    router = Router([*left_to_reference(), *proof.odd], encoder.spellings)
    assert ids_of(FastTokenizer(reference, encoder, router), texts) == ids_of(reference, texts)


def test_a_tokenizer_that_another_process_does_not_find_is_an_error(reference: Reference) -> None:
    with pytest.raises(TokenizerError, match="files changed while"):
        prove(reference, replace(parts_of(reference), marker_id=1), lambda: reference, some([0]))


# ---- refusals


@pytest.mark.slow
@pytest.mark.parametrize("name", every(2, ["characters", "marks", "runs", "mixtures", "words", "merges"]))
def test_an_encoder_that_is_wrong_for_one_text_of_a_group_is_found(
    name: str, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    indices = range(7, NUM_CUT_SLICES) if name in ("characters", "marks") else range(NUM_CUT_SLICES + 7, NUM_SLICES)
    texts = vocabulary_of(parts_of(reference))
    index, text = next((index, texts_[-1]) for index in indices if (texts_ := group(texts, index, name)))
    wrong(monkeypatch, lambda each, ids: [*ids, 7] if each == text else ids)
    found = proof_of(reference, some([index]))
    if name in ("characters", "marks"):
        assert isinstance(found, Proof)
        assert Router(found.odd, [])._is_odd[list(map(ord, text))].any()
    else:
        assert found == f"it encodes {text[:40]!a} differently"


def test_an_encoder_that_fails_is_refused(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str, ids: list[int]) -> list[int]:
        raise RuntimeError("out of tables")

    wrong(monkeypatch, fail)
    assert proof_of(reference, some([0])) == "its probe failed: out of tables"


def test_an_encoder_that_is_wrong_for_most_characters_is_refused(
    reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenloom.tokenizers.fast.probe._MAX_ODD", 1000)
    wrong(monkeypatch, lambda text, ids: [*ids, 7] if not text[:1].isascii() else ids)
    found = proof_of(reference, some([0]))
    assert isinstance(found, str)
    assert found.endswith(" characters differently")


# ---- SentencePiece


@pytest.mark.slow
def test_the_probe_proves_a_model_and_finds_no_odd_character() -> None:
    proof = proof_of(loaded_model(train_model() + _RUNS))
    assert isinstance(proof, Proof)
    assert not proof.odd


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: train_model(vocab_size=339) + piece("amet", -1e8) + _RUNS, id="a score", marks=full_only),
        pytest.param(lambda: train_model() + piece("\u2581" * 2) + piece("\u2581" * 3), id="runs of spaces"),
    ],
)
def test_the_probe_refuses_another_model(model: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    other = parts_of(loaded_model(model()))
    monkeypatch.setattr(probe, "FastEncoder", lambda parts, bos_ids, eot_id: FastEncoder(other, bos_ids, eot_id))
    monkeypatch.setattr(probe, "subject_of", lru_cache(maxsize=1)(probe.subject_of.__wrapped__))
    found = proof_of(loaded_model(train_model() + _RUNS))
    assert isinstance(found, str)
    assert found.startswith("it encodes ")
