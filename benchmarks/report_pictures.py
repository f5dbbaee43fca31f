"""Take the pictures of docs/report.md: the upper part of the report of three real sources, in light and dark.

    python benchmarks/report_pictures.py --data FOLDER [--output docs]

FOLDER has ag_news, multilingual/nsmc and longdocs/gutenberg.parquet. Needs Chromium and its driver.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tokenloom.flows.direct import build_directly
from tokenloom.spec.build_spec import BuildSpec

ROOT = Path(__file__).parents[1]
_WIDTH = 1120
_STORE = "/data/store"  # on the picture, whatever the folder is called


def build_versions(data: Path, store: Path) -> Path:
    """Build two versions, the second with more files and checks; return the place of its report."""
    report = None
    for nsmc, checks in (
        ("part-0000[0-3].parquet", {}),
        ("*.parquet", {"min_documents": 100_000, "max_duplicate_share": 0.05, "max_token_drift": 0.5}),
    ):
        sources = [
            {"kind": "parquet", "name": "ag_news", "path": str(data / "ag_news/*.parquet")},
            {"kind": "parquet", "name": "nsmc", "path": str(data / "multilingual/nsmc" / nsmc)},
            {"kind": "parquet", "name": "gutenberg", "path": str(data / "longdocs/gutenberg.parquet")},
        ]
        spec = {
            "dataset": "corpus",
            "store": str(store),
            "sources": sources,
            "tokenizer": {"kind": "tiktoken", "name": "o200k_base", "backend": "reference"},
            "documents": {"min_chars": 5},
            "checks": checks,
        }
        report = build_directly(BuildSpec.model_validate(spec), 2).report
    if report is None:
        raise SystemExit("the build wrote no report")
    return Path(report)


def open_browser() -> webdriver.Chrome:
    """Return a headless Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("headless=new", "no-sandbox", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def take_picture(browser: Any, page: Path, scheme: str, output: Path) -> None:
    """Write a picture of a page down to its section `rows`, in the colours of `scheme`."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": _WIDTH, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())
    height = browser.execute_script("return Math.floor(document.querySelector('#rows').offsetTop) - 24")
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics | {"height": height})
    browser.save_screenshot(str(output))


def main() -> None:
    """Take the pictures that the command line asks for."""
    parser = argparse.ArgumentParser(description="Take the pictures of docs/report.md.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the real sources")
    parser.add_argument("--output", type=Path, default=ROOT / "docs", help="the folder of the pictures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        report = build_versions(arguments.data, store)
        page = Path(folder) / "report.html"
        page.write_text(report.read_text().replace(str(store), _STORE))
        browser = open_browser()
        try:
            for scheme in ("light", "dark"):
                take_picture(browser, page, scheme, arguments.output / f"report-{scheme}.png")
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
