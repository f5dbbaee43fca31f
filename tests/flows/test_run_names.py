"""Names of runs that Prefect generated are distinguished from names that a user typed."""

from __future__ import annotations

import re

import pytest
from prefect.utilities.names import generate_slug

from tokenloom.flows.runs import report
from tokenloom.flows.runs.names import is_generated


def test_names_that_prefect_generates_are_recognized() -> None:
    assert [name for name in (generate_slug(2) for _ in range(5000)) if not is_generated(name)] == []


@pytest.mark.parametrize("name", ["Gorgeous-Mudi", "Handcrafted-Ox", "Small-Vicuña"])
def test_names_from_the_form_are_recognized(name: str) -> None:
    assert is_generated(name)


@pytest.mark.parametrize(
    "name", ["first-try", "for the paper", "news", "Small-batch", "Rustic-Wallpaper", "", "-", "news 2c25958a2a78f54e"]
)
def test_names_that_a_user_typed_are_kept(name: str) -> None:
    assert not is_generated(name)


def test_no_name_of_a_file_counts_as_html_or_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(report, "create_markdown_artifact", lambda text, **_: written.append(text))
    name = "a|<img src=x onerror=alert(1)>`[b](http://c)\n## d\u202e"
    damage = {"file": name, "what": name, "next_step": name}
    report.show_verification(
        "data",
        {
            "reference": f"{name}@latest",
            "files": 1,
            "bytes": 1,
            "blocks_written": 0,
            "documents_encoded_again": 0,
            "damages": [damage],  # type: ignore[typeddict-item]
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
