"""Counts as people read them, wherever a message or a table has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tokenloom.storage.words import counted

_ROOT = Path(__file__).parent.parent.parent
_NOUNS = "files|documents|shards|samples|rows|partitions|batches|processes|inputs|datasets|versions"


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [
        (1, "file", "1 file"),
        (0, "file", "0 files"),
        (1234567, "document", "1,234,567 documents"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (2, "process", "2 processes"),
    ],
)
def test_a_count_stands_with_its_noun(count: int, noun: str, words: str) -> None:
    assert counted(count, noun) == words


def test_no_message_prints_a_number_before_a_plural_of_its_own() -> None:
    """A number that was checked to be more than one, or that stands behind "of", may be."""
    bare = re.compile(rf"(?<!of )\{{[^{{}}]*(?::,)\}} (?:{_NOUNS})\b")
    found = [
        f"{path.relative_to(_ROOT)}:{number}: {line.strip()}"
        for folder in ("flows", "tasks", "storage", "tokenloom")
        for path in sorted((_ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if bare.search(line)
    ]
    assert found == []
