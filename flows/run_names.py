"""Names of flow runs: a name that Prefect generated is replaced, a name that a user typed stays."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import coolname
from coolname.loader import load_config

# Of the form in Prefect's second UI: an adjective of these and an animal of at most six letters.
_OF_THE_FORM = re.compile(
    "(Awesome|Ergonomic|Fantastic|Generic|Gorgeous|Handcrafted|Handmade|Incredible|Intelligent|Licensed|Practical"
    r"|Refined|Rustic|Sleek|Small|Tasty|Unbranded)-[A-Z]\w{1,5}"
)


def is_generated(name: str) -> bool:
    """Return whether Prefect generated a run's name: `rustic-otter`, or `Rustic-Otter` in the form of its UI."""
    if _OF_THE_FORM.fullmatch(name):
        return True
    first, _, second = name.partition("-")
    return bool(second) and {first, second} <= _words()


@cache
def _words() -> frozenset[str]:
    """Return the words of the library with which Prefect names runs: two of them, joined."""
    lists: dict[str, Any] = load_config(Path(coolname.__file__).with_name("data"))
    words = {word for each in lists.values() for word in each.get("words", ())}
    phrases = {tuple(phrase) for each in lists.values() for phrase in each.get("phrases", ())}
    return frozenset(words.union(*phrases))
