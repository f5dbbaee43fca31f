"""What the classes of a version's tokens say of its conversations: roles, turns, and how much a model learns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tokenloom.storage.formats.arrays import Int64s
from tokenloom.storage.formats.classes import BEGINS, ENDS_TURN, ROLE_BITS, ROLES, learned_classes


@dataclass(frozen=True)
class ClassFigures:
    """Counts of a version with conversations.

    `turns` are those of the assistant that end with a stop token. `tokens` are by role, without roles that have none.
    `learned` are the tokens that are targets by default.
    """

    conversations: int
    turns: int
    tokens: dict[str, int]
    learned: int

    @property
    def learned_share(self) -> float:
        """The learned tokens of all tokens; 0 without tokens."""
        return self.learned / max(1, sum(self.tokens.values()))


def sum_by_class(counts: Iterable[Mapping[str, int]]) -> Int64s:
    """Return the tokens of each class, (256,), from several counts by the number of the class."""
    parts = list(counts)
    return np.array([sum(part.get(str(number), 0) for part in parts) for number in range(256)], np.int64)


def class_figures(counts: Iterable[Mapping[str, int]]) -> ClassFigures:
    """Return the figures of tokens, from several counts by the number of the class."""
    classes, by_class = np.arange(256), sum_by_class(counts)
    by_role = np.bincount(classes & ROLE_BITS, by_class, minlength=len(ROLES)).astype(np.int64)[: len(ROLES)].tolist()
    return ClassFigures(
        conversations=int(by_class[classes & BEGINS > 0].sum()),
        turns=int(by_class[classes & ENDS_TURN > 0].sum()),
        tokens={role: count for role, count in zip(ROLES, by_role, strict=True) if count},
        learned=int(by_class[learned_classes("assistant")].sum()),
    )
