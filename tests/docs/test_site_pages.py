"""The site has every page in its navigation, and links that lead to pages or to GitHub."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.site import OF_THE_ROOT, place_of, rewritten
from tests.docs.reference import GENERATED
from tokenloom.cli.commands.start import starter_spec

_ROOT = Path(__file__).parents[2]


def test_every_page_is_in_the_navigation_once() -> None:
    docs = _ROOT / "docs"
    found = [place_of(page.relative_to(_ROOT)) for page in [*docs.rglob("*.md"), *GENERATED]]
    pages = {place.as_posix() for place in found if place} | {*OF_THE_ROOT.values()}
    named = re.findall(r"^ *- .*?([\w/-]+\.md)$", (_ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(pages)


def test_links_lead_to_pages_of_the_site_or_to_github() -> None:
    titles = {Path("concepts/order.md"): "Order"}
    github = "https://github.com/tokenloom/tokenloom"
    for written, shown in {
        "[order.md](../concepts/order.md#seeds)": "[Order](../concepts/order.md#seeds)",
        "[the order](../concepts/order.md)": "[the order](../concepts/order.md)",
        "[security](../../SECURITY.md)": "[security](../project/security.md)",
        "[a script](../../examples/train_small.py)": f"[a script]({github}/blob/main/examples/train_small.py)",
        "[notes](../project/notebook/index.md)": f"[notes]({github}/blob/main/docs/project/notebook/index.md)",
        "[scripts](../../examples)": f"[scripts]({github}/tree/main/examples)",
        "[here](#below), [there](https://pytorch.org)": "[here](#below), [there](https://pytorch.org)",
        "```python\nrows[0](../../SECURITY.md)\n```": "```python\nrows[0](../../SECURITY.md)\n```",
    }.items():
        assert rewritten(written, Path("guides/training.md"), titles) == shown
    changes = rewritten("[order.md](docs/concepts/order.md)", Path("project/changelog.md"), titles)
    assert changes == "[Order](../concepts/order.md)"


def test_the_starter_spec_names_pages_and_where_they_are() -> None:
    assert re.findall(r"^site_url: (.*)$", (_ROOT / "mkdocs.yml").read_text(), re.MULTILINE)[0] in starter_spec()
    pages = re.findall(r"docs/[\w/-]+\.md", starter_spec())
    assert pages
    assert all((_ROOT / page).exists() for page in pages)
