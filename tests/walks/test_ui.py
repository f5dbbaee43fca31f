"""docs/operate.md can be followed in a browser, from the form to a schedule that fires."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.walks.ui import walk


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_on_operating_can_be_followed_by_clicks(migrated: Path, tmp_path: Path) -> None:
    walk(tmp_path, migrated)
