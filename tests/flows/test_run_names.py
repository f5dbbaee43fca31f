"""Names of runs that Prefect generated are distinguished from names that a user typed."""

from __future__ import annotations

import pytest
from prefect.utilities.names import generate_slug

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
