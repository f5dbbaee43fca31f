"""Take the pictures of the site in docs/images: `python -m tests.site.pictures docs/images`, after scripts/site.py."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.servers.browser import Page, chromium
from tests.site.conftest import serving
from tests.site.test_shown import found, open_search, resize, set_theme

_ROOT = Path(__file__).parents[2]
#: Name of the picture: the page, its width and height in pixels, and the theme.
_PICTURES = {
    "site-home-light": ("", 1400, 840, "default"),
    "site-home-dark": ("", 1400, 840, "slate"),
    "site-guide-phone": ("guides/conversations/", 390, 844, "slate"),
    "site-reference": ("reference/python/", 1400, 840, "default"),
    "site-comparison": ("comparison/#trust", 1400, 840, "slate"),
    "site-search": ("", 1280, 760, "default"),
}


def take(page: Page, url: str, folder: Path) -> None:
    """Take all pictures into a folder."""
    for name, (path, width, height, theme) in _PICTURES.items():
        resize(page, width, height)
        page.driver.get(url + path)
        set_theme(page, theme)
        if name == "site-search":
            open_search(page)
            found(page, "change batch size")
        page.driver.save_screenshot(str(folder / f"{name}.png"))


if __name__ == "__main__":
    with serving(_ROOT / "site") as url, chromium(url) as page:
        take(page, url, Path(sys.argv[1]))
