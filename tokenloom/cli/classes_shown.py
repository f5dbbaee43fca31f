"""A conversation on a terminal: its tokens in runs of one role.

`>` before a line says that it is learned. `⏎` is the end of a line of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from tokenloom.cli.output import Output
from tokenloom.console import printable_line
from tokenloom.reader.samples import Decoder, decode
from tokenloom.storage.formats.arrays import AnyArray
from tokenloom.storage.formats.classes import ENDS_TURN, ROLE_BITS, ROLES

_MAX_RUNS = 200  # shown of a document


class ClassRun(TypedDict):
    """Tokens [start, end) of a document that have one role and are all learned, or all not; `ends_turn`: its last."""

    start: int
    end: int
    role: str
    learned: bool
    ends_turn: bool
    text: str


def class_runs(
    tokenizer: Decoder, ids: AnyArray, classes: NDArray[np.uint8], learned: NDArray[np.bool_]
) -> list[ClassRun]:
    """Return the runs of the (n,) ids of a document and their classes, for a policy of (256,) classes."""
    shown = (classes & ROLE_BITS) + 16 * learned[classes]
    cuts = [0, *(np.flatnonzero(np.diff(shown)) + 1).tolist(), len(ids)]
    return [
        ClassRun(
            start=start,
            end=end,
            role=role_of(int(classes[start])),
            learned=bool(learned[classes[start]]),
            ends_turn=bool(classes[end - 1] & ENDS_TURN),
            text=decode(tokenizer, ids[start:end]),
        )
        for start, end in pairwise(cuts)
        if start < end
    ]


def role_of(token_class: int) -> str:
    """Name the role of a class; "role 12" for one that this release does not know."""
    role = token_class & ROLE_BITS
    return ROLES[role] if role < len(ROLES) else f"role {role}"


def print_runs(out: Output, runs: Sequence[ClassRun], chars: int) -> None:
    """Print runs, at most `chars` characters of each."""
    for run in runs[:_MAX_RUNS]:
        for name, line in _lines(run, chars):
            out.line(f"  {'>' if run['learned'] else ' '} {name:<12} {line}")
    if len(runs) > _MAX_RUNS:
        out.line(f"    and {len(runs) - _MAX_RUNS:,} more parts")


def _lines(run: ClassRun, chars: int) -> Iterator[tuple[str, str]]:
    """Yield (role, line) of each line of a run; the role stands only before the first."""
    text = run["text"]
    text = text if len(text) <= chars else text[:chars] + "..."
    lines = text.replace("\n", "⏎\n").split("\n")
    for number, line in enumerate(lines if lines[-1] else lines[:-1]):
        yield "" if number else run["role"], printable_line(line)
