"""The artifacts of a run."""

from __future__ import annotations

import re

import pytest

from tokenloom.flows import artifacts
from tokenloom.tasks.verification.verify import DamagedFile


def test_no_name_of_a_file_counts_as_html_or_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(artifacts, "create_markdown_artifact", lambda text, **_: written.append(text))
    name = "a|<img src=x onerror=alert(1)>`[b](http://c)\n## d\u202e"
    damage = DamagedFile(file=name, what=name, next_step=name)
    artifacts.show_verification(
        "data",
        {
            "reference": f"{name}@latest",
            "version": None,
            "files": 1,
            "bytes": 1,
            "documents_encoded_again": 0,
            "damages": [damage],
            "warnings": [name],
        },
    )
    (page,) = written
    assert "<" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") == 5
    lines = page.splitlines()
    assert [line for line in lines if line.startswith("## ")] == lines[:1]
    (row,) = [line for line in lines if line.startswith("| a")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 4, "three cells"
    assert not re.search(r"(?<!\\)[`\[]", page)
    assert page.replace("\n", "").isprintable()
