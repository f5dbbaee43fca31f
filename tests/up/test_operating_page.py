"""docs/guides/prefect.md and schedules.md can be followed in a browser, from the form to schedules of a spec file."""

from __future__ import annotations

import pytest

from tests.servers.browser import Page
from tests.servers.running import Up
from tests.up.walk import walk


@pytest.mark.timeout(1800)
def test_the_pages_on_operating_can_be_followed_by_clicks(up: Up, browser: Page) -> None:
    walk(browser, up.folder, up.url)
