"""The figures of conversations come from the counts of token classes."""

from __future__ import annotations

from tokenloom.storage.formats.classes import (
    ASSISTANT,
    BEGINS,
    ENDS_TURN,
    LAST_TURN,
    MAY_LEARN,
    TEMPLATE,
    TEXT_CLASS,
    TOOL_OUTPUT,
)
from tokenloom.tasks.building.version_facts import ClassFigures, class_figures


def test_roles_turns_and_learned_tokens_are_counted_over_all_bits() -> None:
    said = ASSISTANT | MAY_LEARN
    counts = {
        TEMPLATE | MAY_LEARN | BEGINS: 2,
        TEMPLATE: 2,  # the end of each text
        said: 30,
        said | LAST_TURN: 10,
        said | ENDS_TURN: 3,
        ASSISTANT: 7,  # of a message that is kept out
        TOOL_OUTPUT | MAY_LEARN: 5,
        TEXT_CLASS: 100,
    }
    by_number = {str(number): count for number, count in counts.items()}
    found = class_figures([by_number, {str(TEMPLATE): 0}])
    tokens = {"template": 4, "text": 100, "assistant": 50, "tool_output": 5}
    assert found == ClassFigures(conversations=2, turns=3, tokens=tokens, learned=143)
    assert found.learned_share == 143 / 159


def test_nothing_is_counted_without_classes() -> None:
    assert class_figures([]).learned_share == 0
