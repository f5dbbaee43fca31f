"""The pages on concepts are correct: the tests that they name exist; names of versions and samples are as they say."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.datasets import make_spec
from tokenloom.storage.packing.packings import PACKINGS

_ROOT = Path(__file__).parents[2]
_PAGES = sorted(_ROOT.glob("docs/**/*.md"))
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)(?:\[[^`]*)?`")


@cache
def _functions(file: str) -> set[str]:
    return set(re.findall(r"^ *def (test_\w+)\(", (_ROOT / file).read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", ["guarantees", "identity"])
def test_every_promise_names_a_test(page: str) -> None:
    text = (_ROOT / "docs/concepts" / f"{page}.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| \w+ \| test \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) >= 8
    assert [row for row in rows if not _NAMED.search(row)] == []


def test_every_test_that_a_page_names_exists() -> None:
    named = {name for page in _PAGES for name in _NAMED.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 70
    assert [f"{file}::{name}" for file, name in sorted(named) if name not in _functions(file)] == []


_DECIDE_NOTHING: dict[str, Any] = {
    "store": "elsewhere",
    "checks": {"min_documents": 1},
    "report": True,
    "runner": {"kind": "process", "workers": 3},
    "credentials": [{"protocol": "s3", "block": "prod"}],
    "tokenizer": {"kind": "tiktoken", "name": "gpt2", "backend": "reference"},
}


@pytest.mark.parametrize("option", _DECIDE_NOTHING)
def test_options_that_decide_no_byte_make_no_other_version(option: str) -> None:
    source = {"kind": "text", "path": "a/*.txt"}
    given = make_spec("store", [source], tokenizer={"kind": "tiktoken", "name": "gpt2"})
    changed = given.model_validate(given.model_dump() | {option: _DECIDE_NOTHING[option]})
    assert changed != given
    assert changed.identity() == given.identity()
    page = (_ROOT / "docs/concepts/identity.md").read_text(encoding="utf-8")
    name = "tokenizer.backend" if option == "tokenizer" else option
    assert re.search(rf"^\|[^|]*`{name}`[^|]*\| no \|", page, re.MULTILINE)


def test_the_samples_of_the_example_are_those_of_the_packings() -> None:
    page = (_ROOT / "docs/concepts/packing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\[.*\)) \|$", page, re.MULTILINE)
    assert len(rows) >= 6
    offsets = np.cumsum([0, 7, 3, 2, 4]).astype(np.uint64)
    for name, samples in rows:
        plan = PACKINGS[name].plan(4, offsets)
        found = []
        for index in range(len(plan)):
            _, starts, lengths = plan.pieces(np.array([index]))
            pieces = zip(starts.tolist(), lengths.tolist(), strict=True)
            found.append(" + ".join(f"[{start}, {start + length})" for start, length in pieces))
        assert ", ".join(found) == samples, name
