"""The generated pages of the reference, in memory: tests must not depend on whether somebody has written them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from scripts.reference import FOLDER, PAGES

GENERATED = {FOLDER / f"{name}.md" for name in PAGES}


@cache
def generated_pages() -> dict[Path, str]:
    """Return the text of each generated page by its path."""
    return {FOLDER / f"{name}.md": page() for name, page in PAGES.items()}
