"""Tests with the released packages of other trainers: they run with TOKENLOOM_PEERS=1, in environments of their own.

environments.py has the pinned versions. A program that runs in one is a text in the module of its test, given to
`run_in(NAME, PROGRAM, ARGUMENTS...)`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder unless they are asked for."""
    skip = pytest.mark.skip(reason="needs released packages of other trainers: set TOKENLOOM_PEERS=1")
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and os.environ.get("TOKENLOOM_PEERS") != "1":
            item.add_marker(skip)
