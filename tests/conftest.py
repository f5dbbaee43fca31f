"""Fixtures that many tests share; plain helpers are in support.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import SUMMARY


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data, TOKENLOOM_TEST_DATA; tests that need it skip where it is missing."""
    folder = os.environ.get("TOKENLOOM_TEST_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs real data: set TOKENLOOM_TEST_DATA to its folder")
    return Path(folder)


@pytest.fixture(scope="session")
def tiktoken_cache() -> Path:
    """The folder of tiktoken's vocabularies, TIKTOKEN_CACHE_DIR; tests that need it skip where it is missing."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs vocabularies: set TIKTOKEN_CACHE_DIR to a folder that holds them")
    return Path(folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests counted."""
    for line in SUMMARY:
        terminalreporter.write_line(line)
