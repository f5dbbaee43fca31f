"""Runs of spaces that are added tokens: marked before a text is encoded, with the ids of the reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers

from tests.builders.proofs import fast_of
from tests.tokenloom.test_fast_encoders import ids_of, loaded, train
from tests.tokenloom.test_parts import split
from tokenloom.tokenizers.base import Tokenizer as Reference
from tokenloom.tokenizers.fast.encoder import mark_runs, restore_runs
from tokenloom.tokenizers.fast.parts import MARKER, bare_content, with_marker
from tokenloom.tokenizers.fast.probe import with_byte_pairs
from tokenloom.tokenizers.fast.tokenizer import FastTokenizer
from tokenloom.tokenizers.patterns import QWEN_2

_END = "<|endoftext|>"
_PIECES = [
    *(" " * length for length in (1, 1, 2, 3, 4, 5, 6, 7, 10, 11)),
    *("\n", "\n\n", "\r\n", "\t", "\t\n", "\x0b", "\u00a0", "\u2003", "\u3000", "\u200b"),
    *("a", "bc", "Def", "\u00e9", "e\u0301", "\u0301", "\u4e00", "1", "234"),
    *("'s", "'LL", "'", ")", "):", "/", "#!", "_"),
    *(MARKER, _END, "\U0001f600"),
]
_texts = st.lists(st.lists(st.sampled_from(_PIECES), max_size=12).map("".join), max_size=4)


def gpt_2() -> dict[str, Any]:
    """Return a small tokenizer.json with the pattern of GPT-2, and added tokens for runs of 2 to 5 spaces."""
    runs = tuple(AddedToken(" " * length, normalized=True) for length in range(5, 1, -1))
    content: dict[str, Any] = json.loads(train(normalizers.NFC(), runs))
    return content


def qwen_2() -> dict[str, Any]:
    """Return a tokenizer.json with the pattern of Qwen 2, in which white space before a line end is one word."""
    content = gpt_2()
    split(QWEN_2)(content)
    return content


@pytest.fixture(scope="module", params=[gpt_2, qwen_2])
def reference(request: pytest.FixtureRequest) -> Reference:
    """A tokenizer with runs of spaces."""
    return loaded(json.dumps(request.param()).encode(), eot=_END)


@pytest.fixture(scope="module", params=["words", "byte pairs"])
def tokenizers(request: pytest.FixtureRequest, reference: Reference) -> tuple[Reference, FastTokenizer]:
    """The reference and the fast tokenizer, with the vocabulary and with one that shows each cut."""
    found = reference if request.param == "words" else with_byte_pairs(reference)
    return found, fast_of(found)


@given(_texts)
def test_texts_with_runs_of_spaces_have_the_ids_of_the_reference(
    tokenizers: tuple[Reference, FastTokenizer], texts: list[str]
) -> None:
    reference, fast = tokenizers
    assert ids_of(fast, texts) == ids_of(reference, texts)


@pytest.mark.parametrize("text", ["a  b", "a  b   c"])
def test_markers_that_were_lost_are_an_error(text: str) -> None:
    _, runs = mark_runs([text.encode()], [0, 0, 7, 8])
    with pytest.raises(ValueError, match="runs of spaces became 0 markers"):
        restore_runs([np.array([5, 6], np.uint32)], runs, 9)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["added_tokens"].pop(2),
        lambda content: content["added_tokens"][1].update(content="\t\t"),
        lambda content: content["model"].update(ignore_merges=True),
        lambda content: content["model"]["vocab"].update({"\u00c2\u0127a": 999}),
        lambda content: content.update(added_tokens=content["added_tokens"][:1]),
        lambda content: content.update(pre_tokenizer=qwen_2()["pre_tokenizer"]),
    ],
    ids=["a gap", "tabs", "ignore_merges", "a token with the marker", "no runs", "another pattern"],
)
def test_runs_are_left_to_the_library_where_a_marker_might_change_the_ids(
    change: Callable[[dict[str, Any]], object],
) -> None:
    content = gpt_2()
    change(content)
    assert with_marker(bare_content(content)) is None
