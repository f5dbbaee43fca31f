"""Names of flow runs: names that Prefect generated are replaced, names that a user typed are kept."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import coolname
from coolname.loader import load_config

# Names from the form in Prefect's second UI: one of these adjectives, and an animal of at most six letters.
_FORM_NAME = re.compile(
    "(Awesome|Ergonomic|Fantastic|Generic|Gorgeous|Handcrafted|Handmade|Incredible|Intelligent|Licensed|Practical"
    r"|Refined|Rustic|Sleek|Small|Tasty|Unbranded)-[A-Z]\w{1,5}"
)


def is_generated(name: str) -> bool:
    """Return whether Prefect generated the name of a run: `rustic-otter`, or `Rustic-Otter` from its form."""
    if _FORM_NAME.fullmatch(name):
        return True
    first, _, second = name.partition("-")
    return bool(second) and {first, second} <= _words()


@cache
def _words() -> frozenset[str]:
    """Return the words of coolname; Prefect joins two of them to name a run."""
    lists: dict[str, Any] = load_config(Path(coolname.__file__).with_name("data"))
    words = {word for each in lists.values() for word in each.get("words", ())}
    phrases = {tuple(phrase) for each in lists.values() for phrase in each.get("phrases", ())}
    return frozenset(words.union(*phrases))
