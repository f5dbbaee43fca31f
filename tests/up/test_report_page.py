"""Reports, catalogue and drawings in a browser: charts, colours, texts in their boxes; no request, no scrolling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders.datasets import build, small_spec
from tests.servers.browser import Page

# the box of what each chart shows
_CHARTS = """
return [...document.querySelectorAll('svg.chart')].map(chart => {
    const [box, view] = [chart.getBoundingClientRect(), chart.viewBox.baseVal]
    const marks = [...chart.querySelectorAll('rect, path, text')].filter(each => each.getClientRects().length)
    return {label: chart.ariaLabel, width: box.width, height: box.height, marks: marks.length,
            scale: box.width / view.width, right: box.right,
            widest: Math.max(...marks.map(each => each.getBoundingClientRect().right))}
})
"""
_BOUNDS = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"


@pytest.fixture(scope="module")
def page_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a report."""
    report = build(small_spec(tmp_path_factory.mktemp("report"), report=True)).report
    assert report is not None
    return Path(report).as_uri()


@pytest.fixture
def resizable(browser: Page) -> Iterator[Page]:
    """The browser, whose size and colours are its own again after the test."""
    yield browser
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def _open(page: Page, url: str, width: int, scheme: str, media: str = "screen") -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    page.driver.get(url)


@pytest.mark.parametrize("width", [360, 768, 1400])
def test_every_chart_is_visible_and_nothing_leaves_the_page(resizable: Page, page_url: str, width: int) -> None:
    resizable.errors(), resizable.hosts()  # forget those of earlier tests
    _open(resizable, page_url, width, "light")
    charts: list[dict[str, Any]] = resizable.driver.execute_script(_CHARTS)
    assert len(charts) >= 10
    for chart in charts:
        assert chart["width"] > 200, chart
        assert chart["height"] > 20, chart
        assert chart["marks"] >= 3, chart
        assert chart["label"], chart
        assert 0.85 <= chart["scale"] <= 1.01, chart  # text stays readable
        assert chart["widest"] <= chart["right"] + 1, chart
    scroll_width, client_width = resizable.driver.execute_script(_BOUNDS)
    assert scroll_width <= client_width
    assert resizable.errors() == []
    assert resizable.hosts() == set()
