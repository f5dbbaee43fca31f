"""A conversation on a terminal: runs of one role, colours, and what is learned."""

from __future__ import annotations

import numpy as np
import pytest

from tokenloom.cli.classes_shown import class_runs, print_runs, role_of
from tokenloom.cli.output import Output
from tokenloom.storage.formats.classes import (
    ASSISTANT,
    BEGINS,
    ENDS_TURN,
    LAST_TURN,
    MAY_LEARN,
    TEMPLATE,
    USER,
    learned_classes,
)
from tokenloom.tokenizers import load_tokenizer

_TEXT = "<u>Hi\n<a>Yes.\nNo</>"
_BYTES = load_tokenizer({"kind": "byte"})


def _classes() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The classes of _TEXT: what the user writes, then a turn of the assistant that ends with </>."""
    template, said = TEMPLATE | MAY_LEARN, ASSISTANT | MAY_LEARN | LAST_TURN
    parts = [(3, template), (2, USER | MAY_LEARN), (4, template), (7, said), (2, said), (1, said | ENDS_TURN)]
    classes = np.concatenate([np.full(count, value, np.uint8) for count, value in parts])
    classes[0] |= BEGINS
    return classes


def _printed(capsys: pytest.CaptureFixture[str], chars: int = 100) -> str:
    ids = np.frombuffer(_TEXT.encode(), np.uint8)
    print_runs(Output(), class_runs(_BYTES, ids, _classes(), learned_classes("assistant")), chars)
    return capsys.readouterr().out


def test_runs_partition_the_tokens_by_role_and_by_what_is_learned() -> None:
    ids = np.frombuffer(_TEXT.encode(), np.uint8)
    runs = class_runs(_BYTES, ids, _classes(), learned_classes("assistant"))
    assert "".join(run["text"] for run in runs) == _TEXT
    assert [(run["role"], run["learned"], run["ends_turn"]) for run in runs] == [
        ("template", False, False),
        ("user", False, False),
        ("template", False, False),
        ("assistant", True, True),
    ]
    assert [run["start"] for run in runs[1:]] == [run["end"] for run in runs[:-1]]
    everything = class_runs(_BYTES, ids, _classes(), learned_classes("all"))
    assert [run["learned"] for run in everything] == [False, True, True, True, True]  # never the first token


def test_a_mark_says_what_is_learned(capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(capsys).splitlines() == [
        "    template     <u>",
        "    user         Hi",
        "    template     ⏎",
        "                 <a>",
        "  > assistant    Yes.⏎",
        "  >              No</>",
    ]


def test_a_long_run_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert "  > assistant    Yes...." in _printed(capsys, chars=4)


def test_an_unknown_role_has_a_name() -> None:
    assert role_of(12 | MAY_LEARN) == "role 12"
