"""docs/concepts/order.md: its code, without tokenloom, gives its examples; and it gives what tokenloom computes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.counts import count
from tokenloom.reader.streams.schedule import Schedule, whole_weights
from tokenloom.storage.formats.keys import Purpose, mix64

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "order.md"
_WORDS = st.integers(0, 2**64 - 1)


@cache
def the_page() -> SimpleNamespace:
    """Run the page's code, of which each block needs only those before it; return the names that it defines.

    tests/reader/test_order.py compares `permute`, `block` and `full` with those of the reader.
    """
    names: dict[str, Any] = {}
    for block in _blocks():
        exec(compile(block, str(PAGE), "exec"), names)
    return SimpleNamespace(**names)


def _blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_worked_examples_follow_from_the_code_of_the_page_alone() -> None:
    assert {"batch", "mix64", "permute", "block", "full", "turns"} <= vars(the_page()).keys()
    assert re.findall(r"^(?:from|import) (\w+)", "".join(_blocks()), re.MULTILINE) == ["math"]


@given(st.sampled_from([Purpose.SHARD_ORDER, Purpose.SAMPLE_ORDER]), st.integers(0, 2**56 - 1), st.lists(_WORDS))
@settings(max_examples=count(50, 1000), deadline=None)
def test_the_hash_of_the_page_is_that_of_the_code(purpose: Purpose, seed: int, words: list[int]) -> None:
    (found,) = mix64(purpose, seed, [np.array([word], np.uint64) for word in words]).tolist()
    assert the_page().mix64(getattr(the_page(), purpose.name), seed, words) == found


@given(st.lists(st.integers(0, 12), min_size=1, max_size=7).filter(any), st.integers(0, 2**41 - 40))
@settings(max_examples=count(50, 1000), deadline=None)
def test_the_turns_of_the_page_are_those_of_the_code(weights: list[int], start: int) -> None:
    members, _ = Schedule([(0, weights)]).turns(np.arange(start, start + 40))
    assert the_page().turns(whole_weights(weights), start, start + 40) == members.tolist()
