"""A run's name that Prefect generated is distinguished from one that a user typed."""

from __future__ import annotations

import pytest
from prefect.utilities.names import generate_slug

from tokenloom.flows.run_names import is_generated


def test_every_name_that_prefect_generates_is_known() -> None:
    assert [name for name in (generate_slug(2) for _ in range(5000)) if not is_generated(name)] == []


@pytest.mark.parametrize("name", ["Gorgeous-Mudi", "Handcrafted-Ox", "Small-Vicuña"])
def test_names_of_the_form_are_known(name: str) -> None:
    assert is_generated(name)


@pytest.mark.parametrize(
    "name", ["first-try", "for the paper", "news", "Small-batch", "Rustic-Wallpaper", "", "-", "news 2c25958a2a78f54e"]
)
def test_names_that_somebody_typed_are_not(name: str) -> None:
    assert not is_generated(name)
