"""Where a rollback goes back to, by the log of its tag."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom.storage.versions.hand_moves import version_before
from tokenloom.storage.versions.tags import BUILD_REASON, TagEntry


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([], None),
        (["A"], None),
        (["A", "B"], "A"),
        (["A", "B", "A"], "B"),  # builds: the inputs were those of A again
        (["A", "B", "C", "b"], "A"),
        (["A", "B", "C", "b", "a"], None),
        (["A", "B", "C", "a"], None),
        (["A", "B", "C", "b", "D"], "B"),
        (["A", "B", "C", "b", "c"], "B"),  # undone
        (["A", "B", "b"], "A"),
        (["A", "x", "B", "x"], "A"),
    ],
)
def test_a_move_by_hand_goes_back_in_the_history_and_a_build_adds_to_it(moves: list[str], expected: str | None) -> None:
    # An upper-case letter is a build of that version, a lower-case one a move by hand.
    assert version_before(_entries(moves)) == (expected and expected.lower())


def _entries(moves: Sequence[str]) -> list[TagEntry]:
    return [
        TagEntry(move.lower(), None, "", "", BUILD_REASON if move.isupper() else "rollback", number)
        for number, move in enumerate(moves, start=1)
    ]


@given(st.lists(st.sampled_from("ABCDabcd"), min_size=1, max_size=12))
def test_rollbacks_in_a_row_end_and_never_stay(moves: list[str]) -> None:
    for _ in range(len(moves)):
        before = version_before(_entries(moves))
        if before is None:
            return
        assert before != moves[-1].lower()
        moves = [*moves, before]
    assert version_before(_entries(moves)) is None
